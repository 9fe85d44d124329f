"""Rebuilds groups of the newer protocols from their records: consumer groups (KIP-848), share and streams groups.

Every fact is a record of its own, and a newer record of the same key replaces it: the group's epoch, each member, the
target and the current assignment of each member, regular expressions. So the state is the newest fact of each kind and
nothing is derived. That holds at any offset, even between two records of one change. The module is for tools: it checks
no rules, keeps records that a server would reject, and supports every kind of group in a broker's log.
"""

from __future__ import annotations

from typing import Any, Final, final

from kcoord.log.record_plain import plain
from kcoord.wire.message import Message

CONSUMER: Final = "consumer"
SHARE: Final = "share"
STREAMS: Final = "streams"
# The prefixes of the record types by kind of group.
PREFIXES: Final = {"ConsumerGroup": CONSUMER, "ShareGroup": SHARE, "StreamsGroup": STREAMS}
# The remaining parts of the names.
GROUP: Final = "Metadata"
TARGET_EPOCH: Final = "TargetAssignmentMetadata"
MEMBER: Final = "MemberMetadata"
TARGET: Final = "TargetAssignmentMember"
CURRENT: Final = "CurrentMemberAssignment"
EXPRESSION: Final = "RegularExpression"
PARTITIONS: Final = "PartitionMetadata"
SHARE_STATE: Final = "StatePartitionMetadata"
TOPOLOGY: Final = "Topology"
FACTS: Final = frozenset((GROUP, TARGET_EPOCH, MEMBER, TARGET, CURRENT, EXPRESSION, PARTITIONS, SHARE_STATE, TOPOLOGY))

STATES: Final = {0: "stable", 1: "unrevoked_partitions", 2: "unreleased_partitions"}
STREAMS_STATES: Final = {1: "stable", 2: "unrevoked_tasks", 3: "unreleased_tasks"}
# The fields of a current assignment about the member, not about partitions.
EPOCH_FIELDS: Final = ("member_epoch", "previous_member_epoch", "state")

Names = dict[str, str]


@final
class TypedGroup:
    """The facts of one group, by kind and, for members and expressions, by id."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.facts: dict[tuple[str, str], Message] = {}

    def fact(self, about: str) -> Message | None:
        return self.facts.get((about, ""))

    def of_each(self, about: str) -> dict[str, Message]:
        return {name: value for (what, name), value in self.facts.items() if what == about}

    def member_ids(self) -> list[str]:
        return sorted({name for what, name in self.facts if what in (MEMBER, TARGET, CURRENT)})


@final
class TypedGroups:
    """All groups, by group id."""

    def __init__(self) -> None:
        self.groups: dict[str, TypedGroup] = {}

    def replay(self, key: Message, value: Message | None) -> None:
        """Apply a record. Records of other kinds are ignored."""
        kind, about = _about(key)
        if not kind:
            return
        group_id: str = getattr(key, "group_id", "")
        group = self.groups.get(group_id)
        if group is not None and group.kind != kind:
            # After a group is deleted, a group of another kind may use the id, while late tombstones still follow.
            if value is None:
                return
            group = None
        if group is None:
            if value is None:
                return
            group = self.groups[group_id] = TypedGroup(kind)
        whose = getattr(key, "member_id", "") or getattr(key, "regular_expression", "")
        if value is None:
            group.facts.pop((about, whose), None)
            if not group.facts:
                del self.groups[group_id]
        else:
            group.facts[(about, whose)] = value


def _about(key: Message) -> tuple[str, str]:
    """Kind of group and kind of fact; two empty strings for another record."""
    name = type(key).__name__
    for prefix, kind in PREFIXES.items():
        if name.startswith(prefix) and name.endswith("Key"):
            about = name[len(prefix) : -len("Key")]
            return (kind, about) if about in FACTS else ("", "")
    return "", ""


# --- as plain data


def typed_plain(group_id: str, group: TypedGroup, names: Names, offsets: list[dict[str, Any]]) -> dict[str, Any]:
    """One group for JSON. `names` maps topic ids to names; epochs without a record are None."""
    value = group.fact(GROUP)
    document: dict[str, Any] = {"group": group_id, "kind": group.kind, "epoch": None}
    document.update(_plain(value, names))
    target = _plain(group.fact(TARGET_EPOCH), names)
    document["assignment_epoch"] = target.get("assignment_epoch")
    document["assignment_timestamp_ms"] = target.get("assignment_timestamp")
    document["members"] = [member_plain(group, member_id, names) for member_id in group.member_ids()]
    if group.kind == CONSUMER:
        expressions = group.of_each(EXPRESSION)
        document["regular_expressions"] = [
            {"regular_expression": text, **_plain(expressions[text], names)} for text in sorted(expressions)
        ]
        document["topics"] = _plain(group.fact(PARTITIONS), names).get("topics")
    elif group.kind == SHARE:
        document["share_state"] = _plain(group.fact(SHARE_STATE), names) or None
    else:
        document["topology"] = _plain(group.fact(TOPOLOGY), names) or None
    document["offsets"] = offsets
    return document


def member_plain(group: TypedGroup, member_id: str, names: Names) -> dict[str, Any]:
    """A member: its metadata, its epochs, its current assignment (`assignment`) and its target assignment (`target`).

    `assignment` and `target` are None if there is no record.
    """
    document: dict[str, Any] = {"member_id": member_id}
    document.update(_plain(group.facts.get((MEMBER, member_id)), names))
    current = _plain(group.facts.get((CURRENT, member_id)), names)
    states = STREAMS_STATES if group.kind == STREAMS else STATES
    for name in EPOCH_FIELDS:
        document[name] = current.pop(name, None)
    if document["state"] is not None:
        document["state"] = states.get(document["state"], f"state {document['state']}")
    # Further fields of a newer schema belong to the member.
    document.update({name: item for name, item in current.items() if not isinstance(item, list)})
    document["assignment"] = {name: item for name, item in current.items() if isinstance(item, list)} or None
    document["target"] = _plain(group.facts.get((TARGET, member_id)), names) or None
    return document


def _plain(message: Message | None, names: Names) -> dict[str, Any]:
    if message is None:
        return {}
    document: dict[str, Any] = _named(plain(message), names)
    return document


def _named(item: Any, names: Names) -> Any:
    """The same with topic names in addition to their ids, if known."""
    if isinstance(item, list):
        return [_named(each, names) for each in item]
    if not isinstance(item, dict):
        return item
    document = {name: _named(value, names) for name, value in item.items()}
    topic_id = document.get("topic_id")
    if isinstance(topic_id, str) and "topic_name" not in document:
        document = {"topic": names.get(topic_id), **document}
    return document


# --- as text


def group_text(document: dict[str, Any]) -> str:
    parts = [f"{document['group']}: a {document['kind']} group"]
    parts.append("no epoch" if document["epoch"] is None else f"epoch {document['epoch']}")
    if document["assignment_epoch"] is not None:
        parts.append(f"assignment of epoch {document['assignment_epoch']}")
    return ", ".join(parts)


def member_text(member: dict[str, Any]) -> str:
    parts = [f"member {member['member_id']}"]
    if member.get("instance_id"):
        parts[0] += f" ({member['instance_id']})"
    if "client_id" in member:
        parts[0] += f" of {member['client_id']} at {member['client_host']}"
    if member["member_epoch"] is not None:
        parts.append(f"epoch {member['member_epoch']}, {str(member['state']).replace('_', ' ')}")
    topics = list(member.get("subscribed_topic_names") or [])
    if member.get("subscribed_topic_regex"):
        topics.append(f"/{member['subscribed_topic_regex']}/")
    if topics:
        parts.append(f"subscribed to {' '.join(topics)}")
    if member["assignment"] is not None:
        parts.append(f"assigned {assignment_text(member['assignment'])}")
    if member["target"] is not None and assignment_text(member["target"]) != _main_text(member["assignment"]):
        parts.append(f"target {assignment_text(member['target'])}")
    return ", ".join(parts)


def assignment_text(assignment: dict[str, Any]) -> str:
    """`orders-0 orders-1`; for streams `0-1` of a subtopology; other parts with their names."""
    texts = [_main_text(assignment) or "nothing"]
    for name, items in assignment.items():
        if name not in MAIN_PARTS and items and isinstance(items, list):
            texts.append(f"{name.replace('_', ' ')} {partitions_text(items)}")
    return "; ".join(texts)


MAIN_PARTS: Final = ("assigned_partitions", "topic_partitions", "active_tasks")


def _main_text(assignment: dict[str, Any] | None) -> str:
    for name in MAIN_PARTS:
        if assignment is not None and name in assignment:
            return partitions_text(assignment[name])
    return ""


def partitions_text(items: list[dict[str, Any]]) -> str:
    words = []
    for item in items:
        where = item.get("subtopology_id") or item.get("topic") or item.get("topic_id")
        words += [f"{where}-{partition}" for partition in item.get("partitions", [])]
    return " ".join(words)
