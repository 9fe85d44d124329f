"""Records and configs as tests give and get them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

from kcoord.wire.record_batch import Headers

Bytes = bytes | str | None
GivenHeaders = Mapping[str, Bytes] | Iterable[tuple[str, Bytes]]

FIELDS: Final = ("key", "value", "headers", "partition", "timestamp_ms")


class Position(NamedTuple):
    """Where a record was written."""

    partition: int
    offset: int


@final
@dataclass(frozen=True, slots=True)
class Record:
    """A record of a topic. `timestamp_ms` is -1 if it has none."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def text(self) -> str | None:
        """The value as UTF-8."""
        return None if self.value is None else self.value.decode()

    def json(self) -> Any:
        """The value as JSON."""
        return None if self.value is None else json.loads(self.value)


@final
@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write. Without a partition the key decides; without a time it is now."""

    value: bytes | None = None
    key: bytes | None = None
    headers: Headers = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None


# What `produce` takes as a record: a value, the fields of a record, or one that was read.
GivenRecord = Bytes | Mapping[str, Any] | Record | NewRecord


def to_bytes(value: Bytes, what: str) -> bytes | None:
    """Text as UTF-8. Raises TypeError."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"{what} is bytes, str or None, not {type(value).__name__}: {value!r}")


def to_headers(headers: GivenHeaders | None) -> Headers:
    """Raises TypeError."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [(name, to_bytes(value, f"header {name!r}")) for name, value in pairs]


def new_record(given: GivenRecord, defaults: NewRecord) -> NewRecord:
    """One of the records that a test gave; what it does not have is as in `defaults`. Raises TypeError, ValueError."""
    if isinstance(given, NewRecord):
        return given
    if isinstance(given, Record):
        # Written again: at its partition, with its time.
        time_ms = None if given.timestamp_ms < 0 else given.timestamp_ms
        return NewRecord(given.value, given.key, given.headers, given.partition, time_ms)
    if not isinstance(given, Mapping):
        value = to_bytes(given, "a value")
        return NewRecord(value, defaults.key, defaults.headers, defaults.partition, defaults.timestamp_ms)
    for name in given:
        if name not in FIELDS:
            raise ValueError(f"a record has no field {name!r}; there are {', '.join(FIELDS)}")
    headers = to_headers(given["headers"]) if "headers" in given else defaults.headers
    return NewRecord(
        to_bytes(given.get("value"), "a value"),
        to_bytes(given["key"], "a key") if "key" in given else defaults.key,
        headers,
        given.get("partition", defaults.partition),
        given.get("timestamp_ms", defaults.timestamp_ms),
    )


def config_text(value: object) -> str | None:
    """A config's value as Kafka writes it: `true`, not `True`."""
    if value is None or isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
