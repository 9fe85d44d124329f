"""Converts a state to plain data: groups of every kind with their offsets, and topics."""

from __future__ import annotations

from typing import Any

from kcoord.cli.log.common import format_time
from kcoord.cli.log.past.replay import STAND_IN_ID, PastState
from kcoord.cli.log.past.typed_groups import Names, typed_plain
from kcoord.core.coordinator import Core
from kcoord.core.outcome import OFFSETS_TOPIC
from kcoord.log.record_plain import member_plain, uuid_text


def group_plain(core: Core, group_id: str) -> dict[str, Any]:
    """One group: its record and its offsets. The phase of a rebalance is not in the log."""
    group = core.groups.get(group_id)
    value = None if group is None else group.value
    members = [] if value is None else [member_plain(value.protocol_type, member) for member in value.members]
    stamp = -1 if value is None else value.current_state_timestamp
    return {
        "group": group_id,
        "state": "Stable" if members else "Empty",
        "protocol_type": "" if value is None else value.protocol_type,
        "protocol": None if value is None else value.protocol,
        "generation": -1 if value is None else value.generation,
        "leader": None if value is None else value.leader,
        "state_timestamp": format_time(stamp) or None,
        "state_timestamp_ms": stamp,
        "members": members,
        "offsets": offsets_plain(core, group_id),
    }


def offsets_plain(core: Core, group_id: str) -> list[dict[str, Any]]:
    of_group = core.offsets.by_group.get(group_id, {})
    rows: list[dict[str, Any]] = []
    for topic in sorted(of_group):
        for partition in sorted(of_group[topic]):
            stored = of_group[topic][partition]
            rows.append(
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": stored.committed_offset,
                    "leader_epoch": stored.leader_epoch,
                    "metadata": stored.metadata,
                    "commit_timestamp": format_time(stored.commit_timestamp_ms) or None,
                    "commit_timestamp_ms": stored.commit_timestamp_ms,
                    "expire_timestamp_ms": stored.expire_timestamp_ms,
                    "record_offset": stored.record_offset,
                }
            )
    return rows


def group_ids(past: PastState, groups: tuple[str, ...]) -> list[str]:
    """The classic groups and the groups with offsets only, among `groups`, or all if that is empty."""
    core = past.core
    known = set(core.groups.groups) | set(core.offsets.by_group)
    # A deleted simple group leaves an object without record and offsets.
    live = [g for g in known if _is_classic(core, g) or _has_only_offsets(past, g)]
    return sorted(g for g in live if not groups or g in groups)


def _is_classic(core: Core, group_id: str) -> bool:
    group = core.groups.get(group_id)
    return group is not None and group.value is not None


def _has_only_offsets(past: PastState, group_id: str) -> bool:
    return group_id in past.core.offsets.by_group and group_id not in past.typed.groups


def other_ids(past: PastState, groups: tuple[str, ...]) -> list[str]:
    """The consumer, share and streams groups among `groups`, or all if that is empty."""
    return sorted(g for g in past.typed.groups if not groups or g in groups)


def other_plain(past: PastState, group_id: str) -> dict[str, Any]:
    """A consumer, share or streams group: its records and its offsets."""
    offsets = offsets_plain(past.core, group_id)
    return typed_plain(group_id, past.typed.groups[group_id], topic_names(past.core), offsets)


def topic_names(core: Core) -> Names:
    return {uuid_text(topic.topic_id): name for name, topic in core.topics.topics.items()}


def topics_plain(core: Core) -> list[dict[str, Any]]:
    topics = []
    for name in core.topics.sorted_names():
        topic = core.topics.topics[name]
        if topic.topic_id != STAND_IN_ID:
            topics.append({"topic": name, "topic_id": uuid_text(topic.topic_id), "partitions": topic.partition_count})
    return topics


def ends_text(past: PastState) -> str:
    """The end of each log as text: `__consumer_offsets-0 below offset 7 (2025-…)`."""
    parts = []
    for end in past.ends:
        if end.files.topic == OFFSETS_TOPIC:
            when = f" ({format_time(end.timestamp)})" if end.timestamp >= 0 else ""
            parts.append(f"{end.files.name} below offset {end.offset}{when}")
    return ", ".join(parts)
