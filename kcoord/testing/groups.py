"""Describes a group and its offsets for tests, whichever protocol its members use."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar, final

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kcoord.protocol.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kcoord.protocol.errors import GROUP_ID_NOT_FOUND
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kcoord.wire.message import Message

# The newest version that reports an unknown group as Dead, not as an error.
CLASSIC_VERSION: Final = 5
CONSUMER_VERSION: Final = 1
# The newest version that identifies topics by name, not by id.
OFFSET_FETCH_VERSION: Final = 8

M = TypeVar("M", bound=Message)


class View(Protocol):
    """Answers requests: the coordinator itself, or a connection to it."""

    def ask(self, api_key: int, version: int, body: Message, response: type[M], /) -> M: ...


@final
class SeenMember:
    def __init__(self, member_id: str, instance_id: str | None, client_id: str, client_host: str, owns: str) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        # Its partitions as text.
        self.owns = owns


@final
class SeenGroup:
    def __init__(self, error_code: int, state: str, members: list[SeenMember]) -> None:
        self.error_code = error_code
        # Kafka's name of the state; `Dead` if the group does not exist.
        self.state = state
        self.members = members


def describe(view: View, group: str) -> SeenGroup:
    """Describe a group. Asks for a consumer group first, then for a classic one."""
    request = ConsumerGroupDescribeRequest([group], False)
    answer = view.ask(apis.CONSUMER_GROUP_DESCRIBE, CONSUMER_VERSION, request, ConsumerGroupDescribeResponse)
    found = answer.groups[0]
    if found.error_code == GROUP_ID_NOT_FOUND:
        return _describe_classic(view, group)
    members = [
        SeenMember(one.member_id, one.instance_id, one.client_id, one.client_host, _partitions_text(one.assignment))
        for one in found.members
    ]
    return SeenGroup(found.error_code, found.group_state, members)


def _describe_classic(view: View, group: str) -> SeenGroup:
    request = DescribeGroupsRequest([group], False)
    answer = view.ask(apis.DESCRIBE_GROUPS, CLASSIC_VERSION, request, DescribeGroupsResponse)
    found = answer.groups[0]
    members = [
        SeenMember(
            one.member_id, one.group_instance_id, one.client_id, one.client_host,
            _assignment_text(one.member_assignment),
        )
        for one in found.members
    ]  # fmt: skip
    return SeenGroup(found.error_code, found.group_state, members)


def committed_offsets(view: View, group: str) -> dict[tuple[str, int], int]:
    """The group's committed offsets by (topic, partition)."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
    answer = view.ask(apis.OFFSET_FETCH, OFFSET_FETCH_VERSION, request, OffsetFetchResponse)
    found: OffsetFetchResponseGroup = answer.groups[0]
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in found.topics
        for partition in topic.partitions
    }


def _partitions_text(assignment: Assignment) -> str:
    parts = [f"{topic.topic_name}{sorted(topic.partitions)}" for topic in assignment.topic_partitions]
    return ", ".join(parts) or "no partitions"


def _assignment_text(assignment: bytes) -> str:
    """A classic consumer's assignment as text; groups of other protocol types have other data there."""
    if not assignment:
        return "nothing assigned"
    from kcoord.protocol.records.consumer_protocol_assignment import decode_consumer_protocol_assignment
    from kcoord.wire.primitives import DecodeError, Reader

    reader = Reader(assignment)
    try:
        # Any version begins with the fields of version 0.
        reader.int16()
        decoded = decode_consumer_protocol_assignment(reader, 0)
    except DecodeError:
        return f"{len(assignment)} bytes"
    parts = [f"{part.topic}{sorted(part.partitions)}" for part in decoded.assigned_partitions]
    return ", ".join(parts) or "no partitions"
