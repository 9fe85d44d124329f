"""Sends the parts of a call to the brokers that are responsible for them, and again when those have moved.

A call has keys: groups, partitions, transactional ids, brokers. Each attempt finds the responsible broker of every key
that has no result yet and sends one request to each of these brokers, at the same time. An error belongs to its keys
only: the others have their results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar, final

from kcoord.client.cluster import COORDINATOR_LANE, MOVED, Cluster
from kcoord.client.connection import Connection
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import (
    BrokerError,
    ConnectionLost,
    KafkaError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    check,
    error_for,
    may_retry,
)
from kcoord.client.metadata import NO_NODE, Node, TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic

K = TypeVar("K")
V = TypeVar("V")

Locate = Callable[[list[K]], Awaitable[dict[K, int | KafkaError]]]
Ask = Callable[[Connection, list[K]], Awaitable[dict[K, V | KafkaError]]]

# A topic that was just created may be unknown to some brokers. After so many attempts it counts as unknown.
UNKNOWN_ATTEMPTS: Final = 3
# Metadata requests below this version cannot say that the topic must not be created.
METADATA_VERSION_MIN: Final = 4


def only(results: dict[K, V | KafkaError], key: K) -> V:
    """The result of one key. Raises its error."""
    found = results[key]
    if isinstance(found, KafkaError):
        raise found
    return found


@final
class Spread:
    """Spreads calls over a cluster."""

    def __init__(self, cluster: Cluster, api_timeout_s: float) -> None:
        self.cluster = cluster
        self.api_timeout_s = api_timeout_s

    def deadline(self, what: str, timeout_s: float | None) -> Deadline:
        return Deadline(self.api_timeout_s if timeout_s is None else timeout_s, what)

    async def over(
        self,
        deadline: Deadline,
        keys: Iterable[K],
        locate: Locate[K],
        ask: Ask[K, V],
        failed: Callable[[K, KafkaError], None] | None = None,
    ) -> dict[K, V | KafkaError]:
        """The results of all keys, in their order. Keys without one at the deadline have RequestTimedOut.

        `failed` is called for each error that is followed by another attempt.
        """
        whole = list(dict.fromkeys(keys))
        results: dict[K, V | KafkaError] = {}
        options = self.cluster.options
        backoff = Backoff(options.retry_backoff_s, options.retry_backoff_max_s)
        pending = whole
        attempts = 0
        while pending:
            attempts += 1
            found = await self._attempt(deadline, pending, locate, ask)
            later: list[K] = []
            for key in pending:
                result: V | KafkaError = found[key]
                if isinstance(result, KafkaError) and _is_passing(result, attempts):
                    # An attempt that the deadline has ended says less than the one before.
                    if not (isinstance(result, RequestTimedOut) and deadline.is_over()):
                        deadline.cause = result
                    later.append(key)
                    if failed is not None:
                        failed(key, result)
                results[key] = result
            pending = later
            try:
                if pending:
                    await deadline.pause(backoff)
            except RequestTimedOut:
                for key in pending:
                    last = results[key]
                    if isinstance(last, KafkaError) and not isinstance(last, RequestTimedOut):
                        deadline.cause = last
                    results[key] = deadline.error()
                break
        return {key: results[key] for key in whole}

    async def _attempt(
        self, deadline: Deadline, keys: list[K], locate: Locate[K], ask: Ask[K, V]
    ) -> dict[K, V | KafkaError]:
        found: dict[K, V | KafkaError] = {}
        try:
            async with asyncio.timeout(deadline.left_s()):
                nodes: dict[int, list[K]] = {}
                for key, node in (await locate(keys)).items():
                    if isinstance(node, KafkaError):
                        found[key] = node
                    else:
                        nodes.setdefault(node, []).append(key)
                tasks = (self._ask_node(node, part, ask) for node, part in nodes.items())
                for answer in await asyncio.gather(*tasks):
                    found.update(answer)
        except TimeoutError:
            for key in keys:
                found.setdefault(key, deadline.error())
        except KafkaError as error:
            for key in keys:
                found.setdefault(key, error)
        for key in keys:
            found.setdefault(key, ConnectionLost(f"the answer leaves out {key}"))
        return found

    async def _ask_node(self, node_id: int, keys: list[K], ask: Ask[K, V]) -> dict[K, V | KafkaError]:
        try:
            connection = await self.cluster.connection(node_id, COORDINATOR_LANE)
            return await ask(connection, keys)
        except KafkaError as error:
            if not isinstance(error, BrokerError):
                self.cluster.want_refresh()
            return dict.fromkeys(keys, error)

    # --- who is responsible

    async def over_coordinators(
        self, deadline: Deadline, kind: int, keys: Iterable[str], ask: Ask[str, V]
    ) -> dict[str, V | KafkaError]:
        """For groups (GROUP) or transactional ids (TRANSACTION)."""
        cluster = self.cluster

        def failed(key: str, error: KafkaError) -> None:
            if not isinstance(error, BrokerError) or error.code in MOVED:
                cluster.forget_coordinator(kind, key)

        return await self.over(deadline, keys, lambda part: cluster.coordinators(kind, part), ask, failed)

    async def over_leaders(
        self, deadline: Deadline, partitions: Iterable[TopicPartition], ask: Ask[TopicPartition, V]
    ) -> dict[TopicPartition, V | KafkaError]:
        """For partitions: the leaders, which are looked up for each attempt."""
        return await self.over(deadline, partitions, self._leaders, ask)

    async def over_brokers(
        self, deadline: Deadline, nodes: Iterable[int], ask: Ask[int, V]
    ) -> dict[int, V | KafkaError]:
        """For brokers by their ids."""

        async def locate(part: list[int]) -> dict[int, int | KafkaError]:
            return {node: node for node in part}

        return await self.over(deadline, nodes, locate, ask)

    async def over_controller(self, deadline: Deadline, keys: Iterable[K], ask: Ask[K, V]) -> dict[K, V | KafkaError]:
        """The controller is responsible for all keys. Clusters without ZooKeeper name any broker as it."""
        is_known = False

        async def locate(part: list[K]) -> dict[K, int | KafkaError]:
            nonlocal is_known
            if is_known:
                await self.cluster.refresh(deadline)
            is_known = True
            controller = self.cluster.metadata.controller_id
            if controller == NO_NODE:
                return dict.fromkeys(part, error_for(errors.NOT_CONTROLLER, "the cluster has no controller"))
            return dict.fromkeys(part, controller)

        return await self.over(deadline, keys, locate, ask)

    async def all_brokers(self, deadline: Deadline) -> list[int]:
        """The ids of all brokers, read now."""
        await self.cluster.refresh(deadline)
        return sorted(self.cluster.metadata.nodes)

    # --- metadata

    async def topics(self, names: Iterable[str] | None) -> dict[str, MetadataResponseTopic]:
        """Metadata of these topics, or of all with None: one attempt, which creates no topic."""
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(asked, allow_auto_topic_creation=False)
        answer = await self.cluster.ask_any(apis.METADATA, request, MetadataResponse, version_min=METADATA_VERSION_MIN)
        check(answer.error_code, "the list of topics")
        for one in answer.brokers:
            self.cluster.metadata.nodes.setdefault(one.node_id, Node(one.node_id, one.host, one.port, one.rack))
        return {topic.name: topic for topic in answer.topics if topic.name is not None}

    async def _leaders(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        topics = await self.topics(dict.fromkeys(one.topic for one in partitions))
        found: dict[TopicPartition, int | KafkaError] = {}
        for wanted in partitions:
            topic = topics.get(wanted.topic)
            if topic is None or topic.error_code != errors.NONE:
                code = errors.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
                found[wanted] = error_for(code, f"topic {wanted.topic}")
                continue
            leader = {one.partition_index: one.leader_id for one in topic.partitions}.get(wanted.partition)
            if leader is None:
                found[wanted] = error_for(errors.UNKNOWN_TOPIC_OR_PARTITION, f"partition {wanted}")
            elif leader == NO_NODE:
                found[wanted] = error_for(errors.LEADER_NOT_AVAILABLE, f"partition {wanted}")
            else:
                found[wanted] = leader
        return found


def _is_passing(error: KafkaError, attempts: int) -> bool:
    """Whether another attempt may help."""
    if isinstance(error, UnknownTopicOrPartition) and attempts >= UNKNOWN_ATTEMPTS:
        return False
    return may_retry(error)
