"""Where the calls of the admin client go, and what they do when brokers refuse, move or say nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kcoord.client.admin.admin import Admin
from kcoord.client.admin.groups import decode_assignment
from kcoord.client.admin.results import EARLIEST, MAX_TIMESTAMP, CommittedOffset, ListedOffset
from kcoord.client.errors import (
    AuthorizationFailed,
    BrokerError,
    KafkaError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from kcoord.client.partition import TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.list_groups import ListedGroup, ListGroupsResponse
from kcoord.protocol.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kcoord.wire.message import Message
from tests.unit.client.brokers import Brokers, Handler, two_brokers

A = TopicPartition("a", 0)
B = TopicPartition("a", 1)


@asynccontextmanager
async def admin_of(brokers: Brokers) -> AsyncIterator[Admin]:
    async with Admin(f"127.0.0.1:{brokers.ports[1]}", retry_backoff=0.01, default_api_timeout=30) as admin:
        yield admin


def offset_fetch(codes: dict[str, int]) -> Handler:
    """Each group has offset 5 in a-0, or the error."""

    def answer(_node: int, version: int, request: Message) -> OffsetFetchResponse:
        assert isinstance(request, OffsetFetchRequest)
        if version < 8:
            assert request.topics is None
            code = codes.get(request.group_id, 0)
            partition = OffsetFetchResponsePartition(0, 5, -1, "", 0)
            return OffsetFetchResponse(0, [] if code else [OffsetFetchResponseTopic("a", [partition])], code)
        groups = []
        for group in request.groups:
            assert group.topics is None
            code = codes.get(group.group_id, 0)
            topics = [] if code else [OffsetFetchResponseTopics("a", partitions=[_five()])]
            groups.append(OffsetFetchResponseGroup(group.group_id, topics, code))
        return OffsetFetchResponse(groups=groups)

    return answer


def _five() -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(0, 5, -1, "", 0)


FIVE = {A: CommittedOffset(5)}


def install(brokers: Brokers, codes: dict[str, int]) -> None:
    brokers.handlers[apis.OFFSET_FETCH] = offset_fetch(codes)


# --- KIP-88: offsets of groups


async def test_several_groups_are_asked_for_in_one_request_to_each_coordinator() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        install(brokers, {})
        brokers.coordinators = {"g2": 2, "g4": 2}
        found = await admin.list_groups_offsets(dict.fromkeys(["g1", "g2", "g3", "g4"]))
        assert found == dict.fromkeys(["g1", "g2", "g3", "g4"], FIVE)
        assert brokers.count(apis.FIND_COORDINATOR) == 1
        assert sorted(one[0] for one in brokers.seen if one[1] == apis.OFFSET_FETCH) == [1, 2]


@pytest.mark.parametrize("version", [2, 7])
async def test_older_brokers_are_asked_for_one_group_after_the_other(version: int) -> None:
    async with two_brokers() as brokers:
        brokers.version_max = {apis.OFFSET_FETCH: version, apis.FIND_COORDINATOR: 3}
        install(brokers, {"g2": errors.GROUP_AUTHORIZATION_FAILED})
        async with admin_of(brokers) as admin:
            found = await admin.list_groups_offsets(dict.fromkeys(["g1", "g2", "g3"]))
            assert (found["g1"], found["g3"]) == (FIVE, FIVE) and isinstance(found["g2"], AuthorizationFailed)
            assert brokers.count(apis.OFFSET_FETCH) == brokers.count(apis.FIND_COORDINATOR) == 3


async def test_an_error_of_the_group_is_no_empty_result() -> None:
    """The proposal's reason for an error code at the top level of the answer."""
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        install(brokers, {"g": errors.GROUP_AUTHORIZATION_FAILED})
        with pytest.raises(AuthorizationFailed, match="group g: GROUP_AUTHORIZATION_FAILED"):
            await admin.list_group_offsets("g")


async def test_stable_offsets_need_a_broker_that_knows_them() -> None:
    async with two_brokers() as brokers:
        brokers.version_max = {apis.OFFSET_FETCH: 6}
        install(brokers, {})
        async with admin_of(brokers) as admin:
            assert await admin.list_group_offsets("g") == FIVE
            with pytest.raises(UnsupportedVersion):
                await admin.list_group_offsets("g", require_stable=True)


@pytest.mark.parametrize("code", [errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE])
async def test_a_coordinator_that_moves(code: int) -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:

        def answer(node: int, version: int, request: Message) -> Message | None:
            brokers.coordinators["g"] = 2
            return offset_fetch({"g": code} if node == 1 else {})(node, version, request)

        brokers.handlers[apis.OFFSET_FETCH] = answer
        assert await admin.list_group_offsets("g") == FIVE
        assert [one[0] for one in brokers.seen if one[1] == apis.OFFSET_FETCH] == [1, 2]


async def test_a_coordinator_that_loads_does_not_hold_up_other_groups_for_good() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        install(brokers, {"busy": errors.COORDINATOR_LOAD_IN_PROGRESS})
        found = await admin.list_groups_offsets(dict.fromkeys(["busy", "g"]), timeout_s=0.5)
        assert found["g"] == FIVE
        late = found["busy"]
        assert isinstance(late, RequestTimedOut) and "COORDINATOR_LOAD_IN_PROGRESS" in str(late)


async def test_a_group_without_a_coordinator_has_its_error() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        install(brokers, {})
        brokers.coordinator_errors = {"closed": errors.GROUP_AUTHORIZATION_FAILED}
        found = await admin.list_groups_offsets(dict.fromkeys(["closed", "g"]))
        assert isinstance(found["closed"], AuthorizationFailed) and found["g"] == FIVE


async def test_a_broker_that_says_nothing() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.handlers[apis.OFFSET_FETCH] = lambda _node, _version, _request: None
        started = time.monotonic()
        with pytest.raises(RequestTimedOut):
            await admin.list_group_offsets("g", timeout_s=0.3)
        assert time.monotonic() - started < 20


async def test_an_answer_that_leaves_out_a_group() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.handlers[apis.OFFSET_FETCH] = lambda _node, _version, _request: OffsetFetchResponse(
            groups=[OffsetFetchResponseGroup("other", [], 0)]
        )
        with pytest.raises(RequestTimedOut, match="leaves out g"):
            await admin.list_group_offsets("g", timeout_s=0.3)


# --- all brokers, and leaders


async def test_groups_of_all_brokers() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.handlers[apis.LIST_GROUPS] = lambda node, _version, _request: ListGroupsResponse(
            0, 0, [ListedGroup(f"g{3 - node}", "consumer", "Empty", "Classic")]
        )
        assert [(one.group_id, one.type) for one in await admin.list_groups()] == [("g1", "classic"), ("g2", "classic")]


async def test_one_broker_that_refuses_the_list() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.handlers[apis.LIST_GROUPS] = lambda node, _version, _request: ListGroupsResponse(
            0, errors.CLUSTER_AUTHORIZATION_FAILED if node == 2 else 0, []
        )
        with pytest.raises(AuthorizationFailed):
            await admin.list_groups()


async def test_filters_that_a_broker_does_not_know() -> None:
    async with two_brokers() as brokers:
        brokers.version_max = {apis.LIST_GROUPS: 3, apis.LIST_OFFSETS: 6}
        brokers.topics = {"a": [1]}
        async with admin_of(brokers) as admin:
            with pytest.raises(UnsupportedVersion):
                await admin.list_groups(states=["Empty"])
            assert isinstance((await admin.list_offsets({A: MAX_TIMESTAMP}))[A], UnsupportedVersion)
            assert not brokers.seen


def leaders_say(brokers: Brokers) -> None:
    """Each leader has offset 10 times its id; the other broker refuses."""

    def answer(node: int, _version: int, request: Message) -> ListOffsetsResponse:
        assert isinstance(request, ListOffsetsRequest)
        topics = []
        for topic in request.topics:
            partitions = []
            for one in topic.partitions:
                is_leader = brokers.topics[topic.name][one.partition_index] == node
                code = 0 if is_leader else errors.NOT_LEADER_OR_FOLLOWER
                partitions.append(ListOffsetsPartitionResponse(one.partition_index, code, -1, 10 * node, 0))
            topics.append(ListOffsetsTopicResponse(topic.name, partitions))
        return ListOffsetsResponse(0, topics)

    brokers.handlers[apis.LIST_OFFSETS] = answer


async def test_partitions_are_asked_for_at_their_leaders() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.topics = {"a": [2, 1]}
        leaders_say(brokers)
        found = await admin.list_offsets({A: EARLIEST, B: EARLIEST})
        assert found == {A: ListedOffset(20, -1, 0), B: ListedOffset(10, -1, 0)}
        assert brokers.count(apis.LIST_OFFSETS) == 2


async def test_a_leader_that_moves() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.topics = {"a": [1, 1]}
        leaders_say(brokers)
        stay = brokers.handlers[apis.LIST_OFFSETS]

        def move(node: int, version: int, request: Message) -> Message | None:
            brokers.topics = {"a": [2, 1]}
            return stay(node, version, request)

        brokers.handlers[apis.LIST_OFFSETS] = move
        found = await admin.list_offsets({A: EARLIEST, B: EARLIEST})
        assert found == {A: ListedOffset(20, -1, 0), B: ListedOffset(10, -1, 0)}
        assert brokers.count(apis.LIST_OFFSETS) == 2, "the second attempt asks for the rest only"


async def test_partitions_that_do_not_exist_end_the_attempts() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.topics = {"a": [1]}
        leaders_say(brokers)
        found: dict[TopicPartition, ListedOffset | KafkaError] = await admin.list_offsets(
            {A: EARLIEST, B: EARLIEST, TopicPartition("none", 0): EARLIEST}
        )
        assert found[A] == ListedOffset(10, -1, 0)
        assert isinstance(found[B], UnknownTopicOrPartition)
        assert isinstance(found[TopicPartition("none", 0)], UnknownTopicOrPartition)


async def test_a_partition_without_a_leader() -> None:
    async with two_brokers() as brokers, admin_of(brokers) as admin:
        brokers.topics = {"a": [-1]}
        late = (await admin.list_offsets({A: EARLIEST}, timeout_s=0.3))[A]
        assert isinstance(late, RequestTimedOut) and isinstance(late.__cause__, BrokerError)
        assert late.__cause__.code == errors.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xff\x00\x00\x00\x00", b"\x00\x00\x7f\xff\xff\xff", b"rubbish"])
def test_assignments_of_no_known_form(data: bytes) -> None:
    assert decode_assignment(data) == ()
