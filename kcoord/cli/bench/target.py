"""A cluster under measurement: requests that prepare a workload, and what has to be removed afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from kcoord.cli.bench.options import PREFIX
from kcoord.cli.online.run import note_later
from kcoord.client.admin.admin import Admin
from kcoord.client.admin.results import CLASSIC, NewTopic
from kcoord.client.cluster import GROUP, TRANSACTION, Cluster, ClusterOptions, parse_bootstrap
from kcoord.client.connection import Connection, ConnectionOptions
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import BrokerError, KafkaError, RequestTimedOut, error_for, may_retry
from kcoord.client.load.frames import CLIENT_ID, error_codes
from kcoord.client.load.members import LEAVE_EPOCH, leave_request
from kcoord.client.metadata import Node, TopicMetadata
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.leave_group import LeaveGroupResponse
from kcoord.wire.message import Message

M = TypeVar("M", bound=Message)

CLEANUP_S: Final = 30.0
PAUSE_S: Final = 0.05
RUN_ID_BYTES: Final = 4
# A transaction that cannot be aborted is aborted after this time.
TRANSACTION_TIMEOUT_MS: Final = 10_000
# What removing something answers that has removed itself.
GONE: Final = frozenset(
    {
        errors.GROUP_ID_NOT_FOUND,
        errors.UNKNOWN_MEMBER_ID,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


@dataclass(frozen=True, slots=True)
class Joined:
    """A member of a group, which has to leave it before the group can be removed."""

    group_id: str
    member_id: str
    is_classic: bool


class Target:
    """Use it with `async with`, which removes on exit what was created, also when the task is cancelled.

    Errors are KafkaError.
    """

    def __init__(self, bootstrap: str, timeout_s: float, replication_factor: int = -1) -> None:
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self.replication_factor = replication_factor
        self.prefix = f"{PREFIX}{secrets.token_hex(RUN_ID_BYTES)}-"
        self.connection_options = ConnectionOptions(CLIENT_ID, timeout_s)
        self.cluster = Cluster(ClusterOptions(parse_bootstrap(bootstrap), self.connection_options))
        self.admin = Admin(bootstrap, client_id=CLIENT_ID, request_timeout=timeout_s, default_api_timeout=timeout_s)
        self.topics: set[str] = set()
        self.groups: set[str] = set()
        self.members: set[Joined] = set()
        # Groups whose members were in other processes, which may be gone: the cluster is asked who they are.
        self.crowds: set[str] = set()
        self.transactional_ids: set[str] = set()
        # What could not be removed.
        self.left_over: list[str] = []

    async def __aenter__(self) -> Self:
        note = note_later(self.bootstrap, self.timeout_s)
        try:
            await self.cluster.start(self.timeout_s)
            await self.admin.start()
        except BaseException:
            await self.close()
            raise
        finally:
            note.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.clean()
        finally:
            await self.close()

    async def close(self) -> None:
        await self.admin.close()
        await self.cluster.close()

    def deadline(self, what: str) -> Deadline:
        return Deadline(self.timeout_s, what)

    # --- topics

    async def topic(self, name: str, partitions: int) -> TopicMetadata:
        """The topic of this name, created with so many partitions unless it exists; each has a leader."""
        full = self.prefix + name
        self.topics.add(full)
        made = await self.admin.create_topics(NewTopic(full, partitions, self.replication_factor))
        problem = made.get(full)
        if isinstance(problem, KafkaError):
            if not (isinstance(problem, BrokerError) and problem.code == errors.TOPIC_ALREADY_EXISTS):
                raise problem
        deadline = self.deadline(f"leaders for topic {full}")
        self.cluster.watch([full])
        while True:
            await self.cluster.refresh(deadline)
            topic = self.cluster.metadata.topics.get(full)
            if topic is not None and len(topic.partitions) >= partitions:
                if all(self.cluster.metadata.nodes.get(one.leader) for one in topic.partitions.values()):
                    return topic
            deadline.check()
            await asyncio.sleep(PAUSE_S)

    def node(self, node_id: int) -> Node:
        return self.cluster.metadata.nodes[node_id]

    def leader(self, topic: TopicMetadata, partition: int) -> Node:
        return self.node(topic.partitions[partition].leader)

    # --- groups and transactional ids

    def group(self, name: str) -> str:
        """The id of a group that is removed at the end."""
        self.groups.add(self.prefix + name)
        return self.prefix + name

    async def coordinator(self, key: str, kind: int = GROUP) -> Node:
        """The broker that coordinates a group or transactional id."""
        deadline = self.deadline(f"the coordinator of {key}")
        node_id = await self.cluster.retry(deadline, lambda: self.cluster.coordinator(kind, key))
        return self.node(node_id)

    async def connect(self, node: Node) -> Connection:
        return await Connection.open(node.host, node.port, self.connection_options)

    async def ask(
        self, connection: Connection, api_key: int, version: int, request: Message, answer_type: type[M],
        accepted: Iterable[int] = (),
    ) -> M:  # fmt: skip
        """Send a request until its answer has no error code, or only `accepted` ones."""
        name = apis.APIS[api_key].name
        deadline = self.deadline(name)
        backoff = Backoff()
        while True:
            answer = await connection.ask(api_key, version, request, answer_type)
            codes = [code for code in error_codes(answer) if code not in accepted]
            if not codes:
                return answer
            problem = error_for(codes[0], name)
            # A topic or a coordinator that was created a moment ago is not known everywhere.
            if not may_retry(problem):
                raise problem
            await deadline.pause(backoff, problem)

    # --- the end

    async def clean(self) -> None:
        """Remove members, groups and topics. What cannot be removed is listed in `left_over`."""
        try:
            async with asyncio.timeout(CLEANUP_S):
                await self.leave()
                await self._abort()
                await self._remove_groups()
                await self._remove_topics()
        except (TimeoutError, KafkaError) as error:
            names = sorted(self.groups | self.topics)
            self.left_over += [f"{name}: {error or 'no answer in time'}" for name in names]

    async def leave(self) -> None:
        """Let all members leave; who has left or expired is not there any more."""
        members, self.members = self.members, set()
        crowds, self.crowds = self.crowds, set()
        if crowds:
            for name, found in (await self.admin.describe_groups(*sorted(crowds))).items():
                if not isinstance(found, KafkaError):
                    members |= {Joined(name, one.member_id, found.type == CLASSIC) for one in found.members}
        gathered = await asyncio.gather(*(self._leave_one(one) for one in members), return_exceptions=True)
        for problem in gathered:
            if isinstance(problem, BaseException) and not isinstance(problem, KafkaError):
                raise problem

    async def _leave_one(self, one: Joined) -> None:
        with contextlib.suppress(RequestTimedOut):
            if not one.is_classic:
                request: Message = ConsumerGroupHeartbeatRequest(one.group_id, one.member_id, LEAVE_EPOCH)
                await self.cluster.ask_coordinator(
                    GROUP, one.group_id, apis.CONSUMER_GROUP_HEARTBEAT, request, ConsumerGroupHeartbeatResponse
                )
                return
            await self.cluster.ask_coordinator(
                GROUP, one.group_id, apis.LEAVE_GROUP,
                lambda version: leave_request(version, one.group_id, one.member_id), LeaveGroupResponse,
            )  # fmt: skip

    async def _abort(self) -> None:
        """Abort the transactions that an interrupted run has left open: a new producer epoch does it."""
        names, self.transactional_ids = self.transactional_ids, set()
        await asyncio.gather(*(self.init_producer(name) for name in names), return_exceptions=True)

    async def init_producer(self, transactional_id: str) -> Connection:
        """Give a transactional id a new producer epoch. Returns the connection that was used, closed.

        Raises KafkaError.
        """
        self.transactional_ids.add(transactional_id)
        connection = await self.connect(await self.coordinator(transactional_id, TRANSACTION))
        try:
            version = connection.version(apis.INIT_PRODUCER_ID)
            request = InitProducerIdRequest(transactional_id, TRANSACTION_TIMEOUT_MS)
            await self.ask(connection, apis.INIT_PRODUCER_ID, version, request, InitProducerIdResponse)
        finally:
            await connection.close()
        return connection

    async def _remove_groups(self) -> None:
        """A group counts its members a moment longer, so a refusal is tried again."""
        backoff = Backoff()
        while self.groups:
            results = await self.admin.delete_groups(*sorted(self.groups))
            waiting = set()
            for name, problem in results.items():
                if is_code(problem, errors.NON_EMPTY_GROUP):
                    waiting.add(name)
                    self.crowds.add(name)
                elif problem is not None and not is_gone(problem):
                    self.left_over.append(str(problem))
            self.groups = waiting
            if waiting:
                await asyncio.sleep(backoff.next_s())
                await self.leave()

    async def _remove_topics(self) -> None:
        if self.topics:
            results = await self.admin.delete_topics(*sorted(self.topics))
            self.topics = set()
            self.left_over += [str(problem) for problem in results.values() if problem and not is_gone(problem)]


def is_code(problem: KafkaError | None, code: int) -> bool:
    return isinstance(problem, BrokerError) and problem.code == code


def is_gone(problem: KafkaError) -> bool:
    return isinstance(problem, BrokerError) and problem.code in GONE
