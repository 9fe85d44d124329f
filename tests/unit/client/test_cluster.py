"""A cluster: metadata, where requests go, and retries."""

from __future__ import annotations

import asyncio
import time

import pytest

from kcoord.client.cluster import GROUP, TRANSACTION, Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.connection import ConnectionOptions
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import (
    BrokerError,
    ConnectionLost,
    IllegalState,
    InvalidConfiguration,
    RequestTimedOut,
    UnknownMember,
    error_for,
)
from kcoord.client.metadata import NO_NODE, Metadata, Node, TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kcoord.testing.fixture import KcoordServer
from kcoord.wire.primitives import Reader
from tests.unit.client.peers import answer_frame, peer, versions_answer

OPTIONS = ConnectionOptions(request_timeout_s=20)


def cluster_of(*addresses: tuple[str, int]) -> Cluster:
    return Cluster(ClusterOptions(list(addresses), OPTIONS))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a:1", [("a", 1)]),
        ("a:1, b:2,", [("a", 1), ("b", 2)]),
        (["a", "b:2"], [("a", 9092), ("b", 2)]),
        ("[::1]:9", [("::1", 9)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap_servers(given: str | list[str], found: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(given) == found


@pytest.mark.parametrize("given", ["", ",", "a:", "a:x", ":1", "a:0", "a:65536", "a:²", "a:" + "1" * 5000, []])
def test_bootstrap_servers_that_are_none(given: str | list[str]) -> None:
    with pytest.raises(InvalidConfiguration):
        parse_bootstrap(given)


async def test_topics_and_coordinators(kcoord: KcoordServer) -> None:
    # The first address does not answer.
    cluster = cluster_of(("127.0.0.1", 1), (kcoord.host, kcoord.port))
    await cluster.start()
    changes: list[int] = []
    cluster.on_change.append(lambda: changes.append(1))
    request = CreateTopicsRequest([CreatableTopic("a", 3, 1)], 5000)
    await cluster.ask_any(apis.CREATE_TOPICS, request, CreateTopicsResponse)
    cluster.watch(["a", "missing"])
    await cluster.refresh(Deadline(20))
    assert changes
    assert cluster.metadata.partition_count("a") == 3
    assert cluster.metadata.leader(TopicPartition("a", 2)) == cluster.metadata.controller_id
    assert cluster.metadata.topics["missing"].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert cluster.metadata.leader(TopicPartition("a", 3)) == NO_NODE
    for kind in (GROUP, TRANSACTION):
        node_id = await cluster.retry(Deadline(20), lambda kind=kind: cluster.coordinator(kind, "g"))  # type: ignore[misc]
        assert cluster.metadata.nodes[node_id].port == kcoord.port
    cluster.watch_only(["a"])
    await cluster.refresh(Deadline(20))
    assert list(cluster.metadata.topics) == ["a"]
    await cluster.close()
    with pytest.raises(IllegalState):
        await cluster.refresh(Deadline(1))


async def test_new_topics_are_seen_without_asking(kcoord: KcoordServer) -> None:
    cluster = cluster_of((kcoord.host, kcoord.port))
    await cluster.start()
    seen = asyncio.Event()
    cluster.on_change.append(lambda: seen.set() if cluster.metadata.partition_count("b") else None)
    request = CreateTopicsRequest([CreatableTopic("b", 1, 1)], 5000)
    await cluster.ask_any(apis.CREATE_TOPICS, request, CreateTopicsResponse)
    cluster.watch(None)
    async with asyncio.timeout(20):
        await seen.wait()
    await cluster.close()


async def test_no_broker_at_all() -> None:
    cluster = cluster_of(("127.0.0.1", 1))
    started = time.monotonic()
    with pytest.raises(RequestTimedOut, match=r"connecting to the cluster.*127\.0\.0\.1:1"):
        await cluster.start(0.5)
    assert time.monotonic() - started < 15
    await cluster.close()


async def test_a_broker_that_comes_back_is_found(kcoord: KcoordServer) -> None:
    cluster = cluster_of((kcoord.host, kcoord.port))
    await cluster.start()
    node_id = cluster.metadata.controller_id
    (await cluster.connection(node_id)).abort(ConnectionLost("pulled"))
    assert not (await cluster.connection(node_id)).is_closed
    await cluster.close()


async def test_calls_end_at_their_deadline() -> None:
    async def refuse() -> None:
        raise error_for(errors.COORDINATOR_LOAD_IN_PROGRESS, "the coordinator")

    async def hang() -> None:
        await asyncio.sleep(1000)

    cluster = cluster_of(("127.0.0.1", 1))
    with pytest.raises(RequestTimedOut, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await cluster.retry(Deadline(0.4), refuse)
    with pytest.raises(RequestTimedOut):
        await cluster.retry(Deadline(0.2), hang)
    await cluster.close()


async def test_errors_that_do_not_pass_are_not_retried() -> None:
    calls: list[int] = []

    async def refuse() -> None:
        calls.append(1)
        raise error_for(errors.UNKNOWN_MEMBER_ID, "the group", "gone")

    cluster = cluster_of(("127.0.0.1", 1))
    with pytest.raises(UnknownMember, match=r"the group: UNKNOWN_MEMBER_ID \(gone\)"):
        await cluster.retry(Deadline(20), refuse)
    assert calls == [1]
    await cluster.close()


async def test_a_coordinator_that_has_moved_is_looked_up_again(kcoord: KcoordServer) -> None:
    cluster = cluster_of((kcoord.host, kcoord.port))
    await cluster.start()
    known: list[bool] = []

    async def once() -> None:
        await cluster.coordinator(GROUP, "g")
        known.append((GROUP, "g") in cluster._coordinators)
        if len(known) == 1:
            raise error_for(errors.NOT_COORDINATOR, "g")
        known.append(True)

    lookups: list[int] = []
    ask_any = cluster.ask_any

    async def counted(*args: object, **kwargs: object) -> object:
        lookups.append(1)
        return await ask_any(*args, **kwargs)  # type: ignore[arg-type]

    cluster.ask_any = counted  # type: ignore[assignment, method-assign]
    await cluster.retry_coordinator(Deadline(20), GROUP, "g", once)
    assert len(lookups) >= 2
    await cluster.close()


def answer(leader: int, epoch: int, topic_id: bytes = bytes(15) + b"1") -> MetadataResponse:
    partition = MetadataResponsePartition(0, 0, leader, epoch, [1, 2], [1, 2])
    topic = MetadataResponseTopic(0, "t", topic_id, False, [partition])
    brokers = [MetadataResponseBroker(1, "a", 1), MetadataResponseBroker(2, "b", 2)]
    return MetadataResponse(0, brokers, "c", 1, [topic])


def test_leader_epochs_do_not_go_back() -> None:
    metadata, partition = Metadata(), TopicPartition("t", 0)
    assert metadata.update(answer(1, 5), False)
    assert not metadata.update(answer(1, 5), False)
    assert not metadata.update(answer(2, 4), False)
    assert (metadata.leader(partition), metadata.leader_epoch(partition)) == (1, 5)
    assert metadata.update(answer(2, 6), False)
    assert metadata.leader(partition) == 2
    # A topic that was deleted and created again begins anew.
    assert metadata.update(answer(1, 0, bytes(15) + b"2"), False)
    assert (metadata.leader(partition), metadata.leader_epoch(partition)) == (1, 0)
    assert not metadata.note_leader(partition, 2, 0, [])
    assert not metadata.note_leader(partition, 9, 1, [])
    assert metadata.note_leader(partition, 9, 1, [Node(9, "c", 3)])
    assert (metadata.leader(partition), metadata.leader_epoch(partition)) == (9, 1)


def test_pauses_grow_to_a_limit() -> None:
    backoff = Backoff(0.1, 1.0)
    pauses = [backoff.next_s() for _ in range(8)]
    for pause, nominal in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1], strict=True):
        assert nominal * 0.8 <= pause <= nominal * 1.2
    backoff.reset()
    assert backoff.next_s() <= 0.12


async def test_a_cluster_without_brokers_is_asked_again() -> None:
    asked: list[int] = []

    async def starting(key: int, version: int, correlation_id: int, body: Reader) -> bytes:
        if key == apis.API_VERSIONS:
            return versions_answer(version, correlation_id)
        asked.append(1)
        brokers = [MetadataResponseBroker(7, "127.0.0.1", 1)] if len(asked) > 2 else []
        return answer_frame(key, version, correlation_id, MetadataResponse(0, brokers))

    async with peer(starting) as (host, port):
        cluster = cluster_of((host, port))
        await cluster.start()
        assert list(cluster.metadata.nodes) == [7]
        assert len(asked) == 3
        await cluster.close()


def test_an_error_has_its_code_and_name() -> None:
    error = error_for(errors.NOT_COORDINATOR, "group g")
    assert isinstance(error, BrokerError)
    assert (error.code, error.name, str(error)) == (16, "NOT_COORDINATOR", "group g: NOT_COORDINATOR")
    assert str(error_for(9999)) == "error code 9999"
