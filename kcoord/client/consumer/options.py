"""The arguments of a consumer, checked. Names and defaults are those of Kafka 4.3 where they mean the same."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from kcoord.client.errors import InvalidConfiguration

log = logging.getLogger("kcoord.client.consumer")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
NONE: Final = "none"
RESETS: Final = (EARLIEST, LATEST, NONE)

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
PROTOCOLS: Final = (CONSUMER, CLASSIC)

READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"
ISOLATION_LEVELS: Final = (READ_UNCOMMITTED, READ_COMMITTED)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Times in seconds, sizes in bytes. `is_auto_commit` is what is in force (KIP-289)."""

    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    client_id: str
    client_rack: str
    auto_offset_reset: str
    is_auto_commit: bool
    auto_commit_interval_s: float
    is_read_committed: bool
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_s: float
    max_partition_fetch_bytes: int
    buffer_bytes_max: int
    record_batch_bytes_max: int
    max_poll_records: int
    max_poll_interval_s: float
    session_timeout_s: float
    heartbeat_interval_s: float
    default_api_timeout_s: float
    request_timeout_s: float
    retry_backoff_s: float
    retry_backoff_max_s: float
    check_crcs: bool
    exclude_internal_topics: bool
    # KIP-848: the assignor of the coordinator, None for the group's default.
    group_remote_assignor: str | None

    @property
    def has_group(self) -> bool:
        """Whether offsets can be committed and partitions assigned by a group (KIP-289)."""
        return bool(self.group_id)


def parse_auto_commit(wanted: bool | None, group_id: str | None) -> bool:
    """Auto commit is on by default, and off without a group id (KIP-289). Raises InvalidConfiguration."""
    if group_id:
        return True if wanted is None else wanted
    if wanted and group_id is None:
        # As in Kafka: who asks for it by name must name a group.
        raise InvalidConfiguration("enable_auto_commit: cannot be on without a group_id")
    return False


def warn_of_empty_group_id(group_id: str | None) -> None:
    """KIP-289: the empty group id is deprecated."""
    if group_id == "":
        log.warning(
            "group_id='' is deprecated: it cannot commit or fetch offsets. Leave group_id out, or name a group."
        )


def check_options(options: ConsumerOptions) -> None:
    """Raises InvalidConfiguration."""
    for name, text, allowed in (
        ("auto_offset_reset", options.auto_offset_reset, RESETS),
        ("group_protocol", options.group_protocol, PROTOCOLS),
    ):
        if text not in allowed:
            raise InvalidConfiguration(f"{name}: {text!r} is not one of {', '.join(allowed)}")
    for name, value, least in (
        ("fetch_min_bytes", options.fetch_min_bytes, 0),
        ("fetch_max_bytes", options.fetch_max_bytes, 1),
        ("max_partition_fetch_bytes", options.max_partition_fetch_bytes, 1),
        ("buffer_bytes_max", options.buffer_bytes_max, 1),
        ("record_batch_bytes_max", options.record_batch_bytes_max, 1),
        ("max_poll_records", options.max_poll_records, 1),
        ("fetch_max_wait_ms", options.fetch_max_wait_s, 0),
        ("auto_commit_interval_ms", options.auto_commit_interval_s, 0),
        ("retry_backoff_ms", options.retry_backoff_s, 0.001),
    ):
        if value < least:
            raise InvalidConfiguration(f"{name}: {value} is less than {least}")
    for name, value in (
        ("request_timeout_ms", options.request_timeout_s),
        ("default_api_timeout_ms", options.default_api_timeout_s),
        ("max_poll_interval_ms", options.max_poll_interval_s),
        ("session_timeout_ms", options.session_timeout_s),
        ("heartbeat_interval_ms", options.heartbeat_interval_s),
    ):
        if value <= 0:
            raise InvalidConfiguration(f"{name}: must be above 0")
    if options.fetch_max_wait_s >= options.request_timeout_s:
        raise InvalidConfiguration("fetch_max_wait_ms: must be less than request_timeout_ms")
    if options.group_protocol == CLASSIC and options.heartbeat_interval_s >= options.session_timeout_s:
        raise InvalidConfiguration("heartbeat_interval_ms: must be less than session_timeout_ms")
    if options.group_instance_id == "":
        raise InvalidConfiguration("group_instance_id: must not be empty")
