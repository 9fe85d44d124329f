"""The arguments of a producer, checked. Names and defaults are those of Kafka 4.3 where they mean the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcoord.client.errors import InvalidConfiguration
from kcoord.wire.compression import CODEC_NAMES

ALL: Final = -1
CODECS: Final = {name: codec for codec, name in CODEC_NAMES.items()}
# A broker remembers the last five batches of a producer in each partition.
IDEMPOTENT_IN_FLIGHT_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """`acks` is a number here, ALL for all in-sync replicas. Times in seconds."""

    acks: int
    is_idempotent: bool
    codec: int
    linger_s: float
    batch_bytes_max: int
    buffer_bytes_max: int
    max_request_size: int
    max_in_flight: int
    delivery_timeout_s: float
    request_timeout_s: float
    max_block_s: float
    retry_backoff_s: float
    retry_backoff_max_s: float
    transactional_id: str | None = None
    transaction_timeout_s: float = 60.0


def parse_acks(acks: str | int) -> int:
    """Raises InvalidConfiguration."""
    found = {"all": ALL, "-1": ALL, "0": 0, "1": 1}.get(str(acks))
    if found is None:
        raise InvalidConfiguration(f"acks: {acks!r} is not 0, 1 or 'all'")
    return found


def parse_codec(name: str | None) -> int:
    """Raises InvalidConfiguration."""
    codec = CODECS.get(name or "none")
    if codec is None:
        raise InvalidConfiguration(f"compression_type: {name!r} is not one of {', '.join(CODECS)}")
    return codec


def parse_idempotence(wanted: bool | None, acks: int, max_in_flight: int) -> bool:
    """Idempotence is on unless other arguments exclude it. Raises InvalidConfiguration."""
    is_possible = acks == ALL and max_in_flight <= IDEMPOTENT_IN_FLIGHT_MAX
    if wanted and not is_possible:
        raise InvalidConfiguration(
            f"enable_idempotence: needs acks='all' and max_in_flight of {IDEMPOTENT_IN_FLIGHT_MAX} at most"
        )
    return is_possible if wanted is None else wanted


def check_options(options: ProducerOptions) -> None:
    """Raises InvalidConfiguration."""
    for name, value, least in (
        ("linger_ms", options.linger_s, 0),
        ("batch_bytes_max", options.batch_bytes_max, 1),
        ("buffer_bytes_max", options.buffer_bytes_max, 1),
        ("max_request_size", options.max_request_size, 1),
        ("max_in_flight", options.max_in_flight, 1),
        ("max_block_ms", options.max_block_s, 0),
        ("retry_backoff_ms", options.retry_backoff_s, 0.001),
    ):
        if value < least:
            raise InvalidConfiguration(f"{name}: {value} is less than {least}")
    if options.transactional_id is not None:
        if not options.transactional_id:
            raise InvalidConfiguration("transactional_id: must not be empty")
        if not options.is_idempotent:
            raise InvalidConfiguration("transactional_id: needs idempotence, acks='all' and max_in_flight of 5 at most")
        if options.transaction_timeout_s <= 0:
            raise InvalidConfiguration("transaction_timeout_ms: must be above 0")
    if options.request_timeout_s <= 0:
        raise InvalidConfiguration("request_timeout_ms: must be above 0")
    if options.delivery_timeout_s < options.linger_s + options.request_timeout_s:
        raise InvalidConfiguration("delivery_timeout_ms: must be at least linger_ms + request_timeout_ms")
