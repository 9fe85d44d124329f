"""Clients that come while others work: how long it takes until a new one has its partition and its first commit.

One newcomer comes after the other, with connections of its own, as a consumer that has just been started: ApiVersions,
Metadata of its topic, FindCoordinator, another connection to the coordinator, the join, OffsetFetch and a commit. Then
it leaves. They live in a process of their own, so they do not wait for the load that comes from the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kcoord.cli.bench.joining import GroupMember, classic_member, consumer_member
from kcoord.cli.bench.load import CONNECTION_LOST, DRAIN_S, NO_ANSWER, figures
from kcoord.cli.bench.steady import FIRST_OFFSET, commit_request, offset_fetch_request
from kcoord.cli.bench.target import Target
from kcoord.client.connection import Connection
from kcoord.client.errors import BrokerError, KafkaError, RequestTimedOut, error_for
from kcoord.client.load.histogram import Histogram
from kcoord.client.metadata import Node, TopicMetadata
from kcoord.protocol import apis, errors
from kcoord.protocol.offset_commit import OffsetCommitResponse
from kcoord.protocol.offset_fetch import OffsetFetchResponse

# The groups that newcomers join in turn; there is an end to what has to be removed.
GROUPS: Final = 16
# How long a newcomer tries to get in.
LIMIT_S: Final = DRAIN_S
PAUSE_S: Final = 0.01

Join = Callable[[Target, Connection, Node, str, TopicMetadata], Awaitable[GroupMember]]
JOINS: Final[dict[str, Join]] = {"classic": classic_member, "consumer": consumer_member}


def newcomer_plan(bootstrap: str, protocol: str, topic: str, groups: list[str]) -> dict[str, Any]:
    """What a process needs to know, as JSON, for `NewcomerLoad`."""
    return {"bootstrap": bootstrap, "protocol": protocol, "topic": topic, "groups": groups}


class NewcomerLoad:
    def __init__(self, plans: list[dict[str, Any]]) -> None:
        (self.plan,) = plans
        self.count = 0

    async def open(self) -> None:
        """Let a first one come: a cluster may not have what it needs. Raises KafkaError."""
        await self._come()

    async def close(self) -> None:
        """Each has closed its connections."""

    async def round(self, warm_up_s: float, seconds: float) -> dict[str, Any]:
        await asyncio.sleep(warm_up_s)
        latencies = Histogram()
        problems: dict[str, int] = {}
        began, cpu_began = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            try:
                latencies.add(await self._come())
            except (KafkaError, OSError) as error:
                name = name_of(error)
                problems[name] = problems.get(name, 0) + 1
            await asyncio.sleep(PAUSE_S)
        elapsed, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        return figures(latencies.total, elapsed, [latencies], [problems], 0, cpu)

    async def _come(self) -> int:
        """One newcomer, from its first connection until it has left. Returns after how many nanoseconds its commit was
        stored. Raises KafkaError.
        """
        group_id = self.plan["groups"][self.count % len(self.plan["groups"])]
        self.count += 1
        target = Target(self.plan["bootstrap"], LIMIT_S)
        target.cluster.watch([self.plan["topic"]])
        began_ns = time.perf_counter_ns()
        try:
            await target.cluster.start(LIMIT_S)
            topic = target.cluster.metadata.topics.get(self.plan["topic"])
            if topic is None:
                raise error_for(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {self.plan['topic']}")
            await self._work(target, group_id, topic)
            return time.perf_counter_ns() - began_ns
        finally:
            # Also after an error: the next one in this group would wait for this member.
            await target.leave()
            await target.close()

    async def _work(self, target: Target, group_id: str, topic: TopicMetadata) -> None:
        node = await target.coordinator(group_id)
        connection = await target.connect(node)
        try:
            member = await JOINS[self.plan["protocol"]](target, connection, node, group_id, topic)
            version = connection.version(apis.OFFSET_FETCH)
            fetch = offset_fetch_request(version, group_id, topic, list(topic.partitions))
            await target.ask(connection, apis.OFFSET_FETCH, version, fetch, OffsetFetchResponse)
            version = connection.version(apis.OFFSET_COMMIT)
            commit = commit_request(member, topic, len(topic.partitions), FIRST_OFFSET)
            await target.ask(connection, apis.OFFSET_COMMIT, version, commit, OffsetCommitResponse)
        finally:
            await connection.close()


def name_of(error: KafkaError | OSError) -> str:
    """The name by which an error is counted."""
    if isinstance(error, BrokerError):
        return error.name
    return NO_ANSWER if isinstance(error, RequestTimedOut) else CONNECTION_LOST
