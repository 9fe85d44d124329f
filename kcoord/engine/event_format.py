"""How events and marks are written to the topic `__group_events`: compact JSON, see docs/group-events.md.

A module of its own, which is imported for the first event: a start need not wait for `json`.
"""

from __future__ import annotations

import json
from typing import Final

from kcoord.core.cause import NO_TIME
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.history.timeline import REBALANCE_FINISHED, UNKNOWN, GroupEvent

# Made once, since json.dumps makes a new one for each event.
_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def event_key(event: GroupEvent) -> bytes:
    """`group|epoch|offset`, with the offset of the record in the coordinator log."""
    return f"{event.group}|{event.epoch}|{event.offset}".encode("utf-8", "replace")


def event_document(event: GroupEvent, partition: int) -> dict[str, object]:
    """An event as it is stored in the topic, see docs/group-events.md."""
    document: dict[str, object] = {
        "version": 1,
        "event": event.event,
        "group": event.group,
        "protocol": event.protocol,
        "epoch": event.epoch,
        "time_ms": event.time_ms,
    }
    if event.started_ms != NO_TIME:
        document["started_ms"] = event.started_ms
        document["duration_ms"] = max(event.time_ms - event.started_ms, 0)
    cause = event.cause
    if cause is not None:
        document["cause"] = cause.kind
        document["member"] = cause.member_id or None
        document["detail"] = cause.detail or None
    elif event.event != REBALANCE_FINISHED:
        # A broker wrote the record, or a kcoord without causes.
        document["cause"] = None
        document["member"] = None
        document["detail"] = None
    document["members"] = None if event.members == UNKNOWN else event.members
    document["partitions"] = None if event.partitions == UNKNOWN else event.partitions
    document["log"] = f"{OFFSETS_TOPIC}-{partition}"
    document["offset"] = event.offset
    return document


def encode_event(event: GroupEvent, partition: int) -> bytes:
    text = _JSON.encode(event_document(event, partition))
    return text.encode("utf-8", "replace")


def encode_marks(marks: dict[int, int]) -> bytes:
    by_name: dict[str, int] = {str(partition): marks[partition] for partition in sorted(marks)}
    return json.dumps(by_name, separators=(",", ":")).encode("ascii")


def decode_marks(data: bytes) -> dict[int, int]:
    """The next offsets by partition of `__consumer_offsets`; empty if the mark cannot be decoded."""
    marks: dict[int, int] = {}
    try:
        document = json.loads(data.decode("utf-8"))
    except ValueError:
        return marks
    if isinstance(document, dict):
        for name, offset in document.items():
            if isinstance(name, str) and name.isdigit() and isinstance(offset, int):
                marks[int(name)] = offset
    return marks
