"""Groups of both protocols: list, describe, delete, remove members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcoord.client.admin.results import CLASSIC, CONSUMER, GroupDescription, GroupListing, MemberDescription
from kcoord.client.admin.spread import Spread, only
from kcoord.client.cluster import GROUP
from kcoord.client.connection import Connection
from kcoord.client.deadline import Deadline
from kcoord.client.errors import KafkaError, check, error_for
from kcoord.client.metadata import NO_NODE, Node, TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kcoord.protocol.consumer_group_describe import DescribedGroup as ConsumerGroup
from kcoord.protocol.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from kcoord.protocol.list_groups import ListGroupsRequest, ListGroupsResponse
from kcoord.protocol.records.consumer_protocol_assignment import decode_consumer_protocol_assignment
from kcoord.wire.primitives import DecodeError, Reader

# The versions of ListGroups that filter by state (KIP-518) and by type (KIP-848).
STATES_FROM: Final = 4
TYPES_FROM: Final = 5
# The state in which brokers before 4.0 describe a group that does not exist.
DEAD: Final = "Dead"
CONSUMER_PROTOCOL: Final = "consumer"
# Answers for groups of the other protocol, or that do not exist.
NOT_A_CONSUMER_GROUP: Final = (errors.GROUP_ID_NOT_FOUND, errors.UNSUPPORTED_VERSION)


async def list_groups(
    spread: Spread, deadline: Deadline, states: Iterable[str], types: Iterable[str]
) -> list[GroupListing]:
    request = ListGroupsRequest(list(states), list(types))
    version_min = TYPES_FROM if request.types_filter else STATES_FROM if request.states_filter else 0

    async def ask(connection: Connection, nodes: list[int]) -> dict[int, list[GroupListing] | KafkaError]:
        version = connection.version(apis.LIST_GROUPS, version_min)
        answer = await connection.ask(apis.LIST_GROUPS, version, request, ListGroupsResponse)
        check(answer.error_code, f"the groups of {connection.address}")
        groups = [
            GroupListing(one.group_id, one.protocol_type, one.group_state, one.group_type.lower())
            for one in answer.groups
        ]
        return dict.fromkeys(nodes, groups)

    brokers = await spread.all_brokers(deadline)
    answers = await spread.over_brokers(deadline, brokers, ask)
    found = {group.group_id: group for node in brokers for group in only(answers, node)}
    return [found[group_id] for group_id in sorted(found)]


async def describe_groups(
    spread: Spread, deadline: Deadline, group_ids: Iterable[str]
) -> dict[str, GroupDescription | KafkaError]:
    async def ask(connection: Connection, part: list[str]) -> dict[str, GroupDescription | KafkaError]:
        found: dict[str, GroupDescription | KafkaError] = {}
        if connection.has(apis.CONSUMER_GROUP_DESCRIBE):
            found = await _describe_consumer(spread, connection, part)
        rest = [group_id for group_id in part if group_id not in found]
        if rest:
            found |= await _describe_classic(spread, connection, rest)
        return found

    return await spread.over_coordinators(deadline, GROUP, group_ids, ask)


async def _describe_consumer(
    spread: Spread, connection: Connection, group_ids: list[str]
) -> dict[str, GroupDescription | KafkaError]:
    """Leaves out classic and unknown groups."""
    version = connection.version(apis.CONSUMER_GROUP_DESCRIBE)
    request = ConsumerGroupDescribeRequest(group_ids, False)
    answer = await connection.ask(apis.CONSUMER_GROUP_DESCRIBE, version, request, ConsumerGroupDescribeResponse)
    found: dict[str, GroupDescription | KafkaError] = {}
    for group in answer.groups:
        if group.error_code in NOT_A_CONSUMER_GROUP:
            continue
        if group.error_code:
            found[group.group_id] = error_for(group.error_code, f"group {group.group_id}", group.error_message)
        else:
            found[group.group_id] = _consumer_group(group, _coordinator(spread, connection))
    return found


def _consumer_group(group: ConsumerGroup, coordinator: Node) -> GroupDescription:
    members = [
        MemberDescription(
            one.member_id,
            one.instance_id,
            one.client_id,
            one.client_host,
            _partitions(one.assignment),
            one.rack_id,
            one.member_epoch,
            _partitions(one.target_assignment),
            tuple(sorted(one.subscribed_topic_names)),
            one.subscribed_topic_regex or None,
        )
        for one in group.members
    ]
    return GroupDescription(
        group.group_id,
        CONSUMER,
        group.group_state,
        CONSUMER_PROTOCOL,
        group.assignor_name,
        coordinator,
        tuple(sorted(members, key=lambda one: one.member_id)),
        group.group_epoch,
        group.assignment_epoch,
    )


def _partitions(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, one) for topic in assignment.topic_partitions for one in topic.partitions
        )
    )


async def _describe_classic(
    spread: Spread, connection: Connection, group_ids: list[str]
) -> dict[str, GroupDescription | KafkaError]:
    version = connection.version(apis.DESCRIBE_GROUPS)
    request = DescribeGroupsRequest(group_ids, False)
    answer = await connection.ask(apis.DESCRIBE_GROUPS, version, request, DescribeGroupsResponse)
    found: dict[str, GroupDescription | KafkaError] = {}
    for group in answer.groups:
        code = group.error_code
        if not code and group.group_state == DEAD:
            code = errors.GROUP_ID_NOT_FOUND
        if code:
            found[group.group_id] = error_for(code, f"group {group.group_id}", group.error_message)
        else:
            found[group.group_id] = _classic_group(group, _coordinator(spread, connection))
    return found


def _classic_group(group: DescribedGroup, coordinator: Node) -> GroupDescription:
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL
    members = [
        MemberDescription(
            one.member_id,
            one.group_instance_id,
            one.client_id,
            one.client_host,
            decode_assignment(one.member_assignment) if is_consumer else (),
        )
        for one in group.members
    ]
    return GroupDescription(
        group.group_id,
        CLASSIC,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        coordinator,
        tuple(sorted(members, key=lambda one: one.member_id)),
    )


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a member of a classic group; none if its bytes are of no known form."""
    reader = Reader(data, 0)
    try:
        version = reader.int16()
        if version < 0:
            return ()
        assignment = decode_consumer_protocol_assignment(reader, min(version, 3))
    except DecodeError:
        return ()
    return tuple(
        sorted(TopicPartition(topic.topic, one) for topic in assignment.assigned_partitions for one in topic.partitions)
    )


def _coordinator(spread: Spread, connection: Connection) -> Node:
    for node in spread.cluster.metadata.nodes.values():
        if f"{node.host}:{node.port}" == connection.address:
            return node
    host, _, port = connection.address.rpartition(":")
    return Node(NO_NODE, host, int(port))
