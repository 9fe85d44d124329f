"""Connections to the brokers of a cluster, what is known of it, and where each request has to go.

A client has one cluster. Connections are opened when they are needed, one for each broker and *lane*: a Fetch that
waits for records must not hold back a heartbeat, so requests to coordinators have a lane of their own.

Metadata is read again when it is old, when somebody asks for it, and when a broker says that it is wrong. If no broker
that is known can be reached, the bootstrap addresses are tried again (KIP-899).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar, final

from kcoord.client.connection import VERSION_LIMIT, Connection, ConnectionOptions
from kcoord.client.deadline import Backoff, Deadline
from kcoord.client.errors import (
    BrokerError,
    ConnectionLost,
    IllegalState,
    InvalidConfiguration,
    KafkaError,
    RequestTimedOut,
    UnsupportedVersion,
    check,
    error_for,
    may_retry,
)
from kcoord.client.metadata import NO_NODE, Metadata, Node, TopicPartition
from kcoord.protocol import apis, errors
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kcoord.wire.message import Message

M = TypeVar("M", bound=Message)
T = TypeVar("T")
# A request, or a function that makes it for the version that was negotiated.
Ask = Message | Callable[[int], Message]

GROUP: Final = 0
TRANSACTION: Final = 1
DATA_LANE: Final = "data"
COORDINATOR_LANE: Final = "coordinator"
DEFAULT_PORT: Final = 9092
# Versions from which FindCoordinator has key types, and a list of keys.
KEY_TYPE_FROM: Final = 1
KEYS_FROM: Final = 4
# Metadata from this version on says whether topics may be created, and the first one with topic ids.
METADATA_VERSION_MIN: Final = 4
# A broker that could not be reached is not tried again for this time.
UNREACHABLE_S: Final = 0.05
# Codes after which a leader or coordinator has to be looked up again.
MOVED: Final = frozenset(
    {
        errors.NOT_COORDINATOR,
        errors.COORDINATOR_NOT_AVAILABLE,
        errors.NOT_LEADER_OR_FOLLOWER,
        errors.LEADER_NOT_AVAILABLE,
        errors.FENCED_LEADER_EPOCH,
        errors.UNKNOWN_LEADER_EPOCH,
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.UNKNOWN_TOPIC_ID,
        errors.INCONSISTENT_TOPIC_ID,
        errors.KAFKA_STORAGE_ERROR,
        errors.REPLICA_NOT_AVAILABLE,
        errors.NOT_CONTROLLER,
    }
)


def parse_bootstrap(servers: str | Iterable[str]) -> list[tuple[str, int]]:
    """`host:port` pairs from a list, or from a text with commas. Raises InvalidConfiguration."""
    given = servers.split(",") if isinstance(servers, str) else list(servers)
    found: list[tuple[str, int]] = []
    for address in (one.strip() for one in given):
        if not address:
            continue
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, str(DEFAULT_PORT)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        # A number of a few digits: `int` takes other digits than these as well, and refuses thousands of them.
        if not host or re.fullmatch(r"[0-9]{1,5}", port) is None or not 0 < int(port) < 65536:
            raise InvalidConfiguration(f"bootstrap_servers: {address!r} is not HOST:PORT")
        found.append((host, int(port)))
    if not found:
        raise InvalidConfiguration("bootstrap_servers: no address")
    return found


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Times in seconds."""

    bootstrap: list[tuple[str, int]]
    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    metadata_max_age_s: float = 300.0
    retry_backoff_s: float = 0.1
    retry_backoff_max_s: float = 1.0


@final
class Cluster:
    """Start it before use, and close it. Every failure is a KafkaError."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.metadata = Metadata()
        # Topics that Metadata is asked for; None means all of them.
        self.watched: set[str] | None = set()
        self.may_create_topics = False
        # Called after each change of the metadata.
        self.on_change: list[Callable[[], None]] = []
        self.is_closed = False
        self._connections: dict[tuple[int, str], Connection] = {}
        self._opening: dict[tuple[int, str], asyncio.Task[Connection]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        # The topics that it asks for.
        self._asked: set[str] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    # --- life

    async def start(self, timeout_s: float | None = None) -> None:
        """Read the metadata for the first time. Raises RequestTimedOut if no broker can be reached in time."""
        limit_s = self.options.connection.request_timeout_s if timeout_s is None else timeout_s
        await self.refresh(Deadline(limit_s, "connecting to the cluster"))
        self._keeper = asyncio.create_task(self._keep_fresh(), name="kcoord metadata")

    async def close(self) -> None:
        """Close all connections. Requests that wait fail with ConnectionLost."""
        self.is_closed = True
        tasks = [task for task in (self._keeper, self._refreshing, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, KafkaError):
                await task
        for connection in list(self._connections.values()):
            await connection.close()
        self._connections.clear()

    async def _keep_fresh(self) -> None:
        """Read the metadata when it is old, or when somebody has asked for it."""
        backoff = Backoff(self.options.retry_backoff_s, self.options.retry_backoff_max_s)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.options.metadata_max_age_s):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.refresh(Deadline(self.options.connection.request_timeout_s, "metadata"))
            except KafkaError:
                self._wanted.set()
            # So often at the most, whoever asks.
            await asyncio.sleep(backoff.next_s())
            if not self._wanted.is_set():
                backoff.reset()

    # --- metadata

    def want_refresh(self) -> None:
        """Have the metadata read soon, without waiting for it."""
        self._wanted.set()

    def watch(self, topics: Iterable[str] | None) -> None:
        """Ask for these topics from now on, too; None means all topics."""
        if topics is None:
            if self.watched is not None:
                self.watched = None
                self._wanted.set()
        elif self.watched is not None:
            new = set(topics) - self.watched
            if new:
                self.watched |= new
                self._wanted.set()

    def watch_only(self, topics: Iterable[str] | None) -> None:
        """Ask for these topics from now on, and for no others."""
        wanted = None if topics is None else set(topics)
        if wanted != self.watched:
            self.watched = wanted
            self._wanted.set()

    async def refresh(self, deadline: Deadline) -> None:
        """Read the metadata of all watched topics now. Calls at the same time share one request."""
        backoff = self._backoff()
        while True:
            if self.is_closed:
                raise IllegalState("the client is closed")
            if self._refreshing is None or self._refreshing.done():
                self._asked = None if self.watched is None else set(self.watched)
                self._refreshing = asyncio.create_task(self._refresh_once())
            task, is_whole = self._refreshing, self._asked == self.watched
            try:
                async with asyncio.timeout(deadline.left_s()):
                    await asyncio.shield(task)
                if is_whole:
                    return
            except TimeoutError:
                raise deadline.error() from None
            except KafkaError as error:
                if not may_retry(error):
                    raise
                await deadline.pause(backoff, error)

    async def _refresh_once(self) -> None:
        watched = None if self.watched is None else sorted(self.watched)
        topics = None if watched is None else [MetadataRequestTopic(name=name) for name in watched]
        request = MetadataRequest(topics, allow_auto_topic_creation=self.may_create_topics)
        answer = await self.ask_any(apis.METADATA, request, MetadataResponse, version_min=METADATA_VERSION_MIN)
        check(answer.error_code, "the list of brokers")
        if not answer.brokers:
            raise ConnectionLost("the cluster has no brokers yet")
        changed = self.metadata.update(answer, watched is None)
        if self.watched is not None:
            for name in list(self.metadata.topics):
                if name not in self.watched:
                    del self.metadata.topics[name]
        if changed:
            for callback in list(self.on_change):
                callback()

    def note_leader(self, partition: TopicPartition, leader: int, leader_epoch: int, nodes: list[Node]) -> None:
        """A broker has refused a request and named the new leader, or has not: then it is looked up."""
        if not self.metadata.note_leader(partition, leader, leader_epoch, nodes):
            self._wanted.set()
            return
        for callback in list(self.on_change):
            callback()

    # --- connections

    def nodes(self) -> list[int]:
        """All brokers that are known."""
        return list(self.metadata.nodes)

    async def connection(self, node_id: int, lane: str = DATA_LANE) -> Connection:
        """The connection to a broker, opened if necessary. Raises ConnectionLost."""
        key = (node_id, lane)
        found = self._connections.get(key)
        if found is not None and not found.is_closed:
            return found
        if self.is_closed:
            raise IllegalState("the client is closed")
        task = self._opening.get(key)
        if task is None:
            task = asyncio.create_task(self._open(key))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(task)

    def open_connection(self, node_id: int, lane: str = DATA_LANE) -> Connection | None:
        """The connection to a broker if it is open now."""
        found = self._connections.get((node_id, lane))
        return None if found is None or found.is_closed else found

    async def _open(self, key: tuple[int, str]) -> Connection:
        host, port = self._address(key[0])
        try:
            return await Connection.open(host, port, self.options.connection)
        except KafkaError:
            await asyncio.sleep(UNREACHABLE_S)
            raise

    def _opened(self, key: tuple[int, str], done: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if done.cancelled():
            return
        if done.exception() is not None:
            self._wanted.set()
        elif self.is_closed:
            done.result().abort(ConnectionLost("the client is closed"))
        else:
            self._connections[key] = done.result()

    def _address(self, node_id: int) -> tuple[str, int]:
        if node_id < 0:
            # A bootstrap address: -1 is the first one.
            return self.options.bootstrap[-1 - node_id]
        node = self.metadata.nodes.get(node_id)
        if node is None:
            self._wanted.set()
            raise ConnectionLost(f"broker {node_id} is unknown")
        return node.host, node.port

    # --- requests

    async def ask(
        self,
        node_id: int,
        api_key: int,
        request: Ask,
        answer_type: type[M],
        *,
        lane: str = DATA_LANE,
        version_min: int = 0,
        version_max: int = VERSION_LIMIT,
        timeout_s: float | None = None,
    ) -> M:
        """Send a request to a broker in the newest version that both sides know, within the limits."""
        connection = await self.connection(node_id, lane)
        version = connection.version(api_key, version_min, version_max)
        message = request if isinstance(request, Message) else request(version)
        return await connection.ask(api_key, version, message, answer_type, timeout_s)

    async def ask_any(
        self,
        api_key: int,
        request: Ask,
        answer_type: type[M],
        *,
        version_min: int = 0,
        version_max: int = VERSION_LIMIT,
    ) -> M:
        """Ask the first broker that answers: connected ones first, bootstrap addresses last."""
        problem: KafkaError | None = None
        connected = [key[0] for key, one in self._connections.items() if not one.is_closed]
        bootstrap = [-1 - number for number in range(len(self.options.bootstrap))]
        for node_id in dict.fromkeys([*connected, *self.metadata.nodes, *bootstrap]):
            try:
                return await self.ask(
                    node_id,
                    api_key,
                    request,
                    answer_type,
                    lane=COORDINATOR_LANE,
                    version_min=version_min,
                    version_max=version_max,
                )
            except (ConnectionLost, RequestTimedOut) as error:
                problem = error
        raise problem or ConnectionLost("no broker is known")

    async def coordinator(self, kind: int, key: str) -> int:
        """The coordinator of a group (GROUP) or transactional id (TRANSACTION), one attempt."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            return known
        answer = await self.ask_any(
            apis.FIND_COORDINATOR,
            lambda version: FindCoordinatorRequest(
                "" if version >= KEYS_FROM else key, kind, [key] if version >= KEYS_FROM else []
            ),
            FindCoordinatorResponse,
            version_min=KEY_TYPE_FROM if kind else 0,
        )
        subject = f"the coordinator of {key!r}"
        if answer.coordinators:
            found = answer.coordinators[0]
            check(found.error_code, subject, found.error_message)
            node = Node(found.node_id, found.host, found.port)
        else:
            check(answer.error_code, subject, answer.error_message)
            node = Node(answer.node_id, answer.host, answer.port)
        if node.node_id == NO_NODE:
            raise error_for(errors.COORDINATOR_NOT_AVAILABLE, subject)
        self.metadata.nodes.setdefault(node.node_id, node)
        self._coordinators[kind, key] = node.node_id
        return node.node_id

    async def coordinators(self, kind: int, keys: list[str]) -> dict[str, int | KafkaError]:
        """The coordinators of groups or transactional ids, one attempt: one request from Kafka 3.0 on (KIP-699)."""
        found: dict[str, int | KafkaError] = {}
        unknown = [key for key in keys if (kind, key) not in self._coordinators]
        if len(unknown) > 1:
            try:
                answer = await self.ask_any(
                    apis.FIND_COORDINATOR,
                    FindCoordinatorRequest("", kind, unknown),
                    FindCoordinatorResponse,
                    version_min=KEYS_FROM,
                )
            except UnsupportedVersion:
                answer = FindCoordinatorResponse()
            for one in answer.coordinators:
                if one.error_code:
                    found[one.key] = error_for(one.error_code, f"the coordinator of {one.key!r}", one.error_message)
                elif one.node_id != NO_NODE:
                    self.metadata.nodes.setdefault(one.node_id, Node(one.node_id, one.host, one.port))
                    self._coordinators[kind, one.key] = one.node_id
        for key in keys:
            if key not in found:
                try:
                    found[key] = await self.coordinator(kind, key)
                except KafkaError as error:
                    found[key] = error
        return found

    def forget_coordinator(self, kind: int, key: str) -> None:
        """The coordinator has moved, or cannot be reached: look it up again."""
        self._coordinators.pop((kind, key), None)

    async def ask_coordinator(
        self,
        kind: int,
        key: str,
        api_key: int,
        request: Ask,
        answer_type: type[M],
        *,
        lane: str = COORDINATOR_LANE,
        version_min: int = 0,
        version_max: int = VERSION_LIMIT,
        timeout_s: float | None = None,
    ) -> M:
        """One attempt to ask the coordinator. The caller calls `moved` for error codes in the answer."""
        try:
            node_id = await self.coordinator(kind, key)
            return await self.ask(
                node_id,
                api_key,
                request,
                answer_type,
                lane=lane,
                version_min=version_min,
                version_max=version_max,
                timeout_s=timeout_s,
            )
        except (ConnectionLost, RequestTimedOut):
            self.forget_coordinator(kind, key)
            raise

    async def retry(self, deadline: Deadline, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of `attempt`, which is made again after errors that may pass, until the deadline."""
        backoff = self._backoff()
        while True:
            try:
                async with asyncio.timeout(deadline.left_s()):
                    return await attempt()
            except TimeoutError:
                raise deadline.error() from None
            except KafkaError as error:
                if not may_retry(error):
                    raise
                if not isinstance(error, BrokerError) or error.code in MOVED:
                    self._wanted.set()
                await deadline.pause(backoff, error)

    async def retry_coordinator(
        self, deadline: Deadline, kind: int, key: str, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """`retry` for requests to a coordinator: it is looked up again when it has moved."""

        async def once() -> T:
            try:
                return await attempt()
            except BrokerError as error:
                if error.code in (errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE):
                    self.forget_coordinator(kind, key)
                raise

        return await self.retry(deadline, once)

    def _backoff(self) -> Backoff:
        return Backoff(self.options.retry_backoff_s, self.options.retry_backoff_max_s)
