"""Phantom members: members of groups that a test scripts, without a consumer of its own.

A phantom is a real client, kcoord's own consumer, on a thread and an event loop of its own. It fetches no records. So
it takes part in rebalances with other clients as any member does, and `requests(client_id=...)` lists what it sends. To
go silent, it stops its event loop as a frozen process does: connections stay open, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Self, final

from kcoord.client import Consumer, RebalanceListener, TopicPartition
from kcoord.client.consumer.assignors.choice import parse_strategy
from kcoord.client.consumer.options import CLASSIC, CONSUMER, PROTOCOLS
from kcoord.client.errors import InvalidConfiguration, KafkaError
from kcoord.server.failures import ServerError
from kcoord.server.server import Server
from kcoord.server.settings.listeners import format_address
from kcoord.testing.cluster_controls import ClusterControls
from kcoord.testing.double.faults import HOLD, Action, Rule
from kcoord.testing.double.selector import Selector
from kcoord.testing.waiting import TIMEOUT_S, WaitTimeout, refuse_on_event_loop

# Members learn of a rebalance with their next heartbeat.
HEARTBEAT_MS: Final = 100.0
SESSION_TIMEOUT_MS: Final = 10_000.0
REBALANCE_TIMEOUT_MS: Final = 60_000.0
POLL_S: Final = 60.0
LEAVE_S: Final = 10.0
PHANTOMS_MAX: Final = 200
# So many turns of its loop the server needs at most to accept a connection and to read what it has sent.
LOOP_TURNS: Final = 20


@final
class _Listener(RebalanceListener):
    def __init__(self, assigned: Callable[[Collection[Any]], None], revoked: Callable[[Collection[Any]], None]) -> None:
        self._assigned = assigned
        self._revoked = revoked

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._assigned(assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._revoked(revoked)


@final
class Phantom:
    """One phantom member. It joins at once; `KcoordServer.phantom` makes it. Any thread may use it.

    A with statement has it leave at its end.
    """

    def __init__(
        self,
        client_id: str,
        topics: Sequence[str],
        options: dict[str, Any],
        settle: Callable[[], None],
        ended: Callable[[Phantom], None],
    ) -> None:
        self.client_id = client_id
        self._topics = topics
        self._options = options
        # Has the server read what has been sent.
        self._settle = settle
        self._ended = ended
        # Guards what other threads read, and tells them of changes.
        self._changed = threading.Condition()
        self._assigned: set[TopicPartition] = set()
        self._failure: KafkaError | None = None
        self._is_silent = False
        self._thaw = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._consumer: Consumer | None = None
        # Set while it polls.
        self._polls = asyncio.Event()
        self._polls.set()
        self._polling: asyncio.Task[Any] | None = None
        self._life: asyncio.Task[None] | None = None
        self._leaves = True
        self._is_ending = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kcoord-{client_id}", daemon=True)
        self._thread.start()

    # --- what a test sees

    @property
    def member_id(self) -> str:
        """Its member id; empty before it has joined."""
        return "" if self._consumer is None else self._consumer.group_metadata().member_id

    @property
    def epoch(self) -> int:
        """Its generation (classic), or its member epoch; -1 before it has joined."""
        return -1 if self._consumer is None else self._consumer.group_metadata().generation_id

    @property
    def is_silent(self) -> bool:
        return self._is_silent

    @property
    def is_over(self) -> bool:
        """Whether it has left, was ended, or has failed."""
        return self._is_over.is_set()

    @property
    def failure(self) -> KafkaError | None:
        """What ended it, for example kcoord.client's FencedInstanceId."""
        return self._failure

    def assignment(self) -> list[tuple[str, int]]:
        """The topics and partitions that it owns, sorted. A silent one still believes to own them."""
        with self._changed:
            return sorted((one.topic, one.partition) for one in self._assigned)

    def wait_assigned(self, partitions: int | None = None, timeout: float = TIMEOUT_S) -> list[tuple[str, int]]:
        """Wait until it owns so many partitions, or any, and return them.

        Raises WaitTimeout, or the error that has ended it.
        """
        refuse_on_event_loop()

        def is_met() -> bool:
            count = len(self._assigned)
            return self._is_over.is_set() or (count > 0 if partitions is None else count == partitions)

        with self._changed:
            is_in_time = self._changed.wait_for(is_met, timeout)
        if self._failure is not None:
            raise self._failure
        if not is_in_time or self._is_over.is_set():
            wanted = "partitions" if partitions is None else f"{partitions} partitions"
            raise WaitTimeout(f"waited {timeout:g} s for {self.client_id} to own {wanted}; it has {self.assignment()}")
        return self.assignment()

    def wait_over(self, timeout: float = TIMEOUT_S) -> KafkaError | None:
        """Wait until it is over, for example because it was fenced. Returns its failure. Raises WaitTimeout."""
        refuse_on_event_loop()
        if not self._is_over.wait(timeout):
            raise WaitTimeout(f"waited {timeout:g} s for the end of {self!r}")
        return self._failure

    async def wait_assigned_async(
        self, partitions: int | None = None, timeout: float = TIMEOUT_S
    ) -> list[tuple[str, int]]:
        """Like wait_assigned."""
        return await asyncio.to_thread(self.wait_assigned, partitions, timeout)

    # --- what a test has it do

    def go_silent(self) -> None:
        """Send nothing any more, as a frozen process: its session ends after its timeout, or with `expire_member`.

        When the call returns, the server has read what it had sent.
        """
        if self._is_silent or self.is_over:
            return
        self._is_silent = True
        self._thaw.clear()
        is_frozen = threading.Event()

        def freeze() -> None:
            is_frozen.set()
            self._thaw.wait()

        self._call(freeze)
        is_frozen.wait(LEAVE_S)
        self._settle()

    def stop_polling(self) -> None:
        """Heartbeat, and do nothing else, as a consumer that is busy with a record: it joins no rebalance, and gives
        up no partitions, until `resume` or the end of its rebalance timeout.
        """

        def stop() -> None:
            self._polls.clear()
            if self._polling is not None:
                self._polling.cancel()

        self._call(stop)

    def resume(self) -> None:
        """Go on after `go_silent` or `stop_polling`: it finds out what has become of its membership."""
        self._is_silent = False
        self._thaw.set()
        self._call(self._polls.set)

    def leave(self) -> None:
        """Leave the group and end, as a consumer that is closed. A static member stays in the group, as in Kafka."""
        self._end(leaves=True)

    def kill(self) -> None:
        """End without leaving, as a process that is killed: it stays a member until its session ends."""
        self._end(leaves=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        state = "over" if self.is_over else "silent" if self._is_silent else "alive"
        return f"Phantom({self.client_id}, {state}, {self.assignment()})"

    def _end(self, leaves: bool) -> None:
        def end() -> None:
            if self._life is not None and not self._is_ending:
                self._is_ending = True
                self._leaves = leaves
                self._life.cancel()

        self._call(end)
        self._is_silent = False
        self._thaw.set()
        self._thread.join(LEAVE_S)

    def _call(self, function: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has just ended
            self._loop.call_soon_threadsafe(function)

    # --- on its thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._life = self._loop.create_task(self._live())
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._life)
        finally:
            self._loop.close()
            self._ended(self)
            with self._changed:
                self._is_over.set()
                self._changed.notify_all()

    async def _live(self) -> None:
        consumer = Consumer(**self._options)
        try:
            await consumer.start()
            self._consumer = consumer
            consumer.subscribe(self._topics, listener=_Listener(self._take, self._give_up))
            while True:
                await self._polls.wait()
                self._polling = asyncio.create_task(consumer.poll(POLL_S))
                await asyncio.wait([self._polling])
                if not self._polling.cancelled():
                    self._polling.result()
        except KafkaError as error:
            self._failure = error
        finally:
            await self._close(consumer)

    async def _close(self, consumer: Consumer) -> None:
        if self._polling is not None and not self._polling.done():
            self._polling.cancel()
            await asyncio.wait([self._polling])
        if not self._leaves:
            await _hang_up(consumer)
            return
        with contextlib.suppress(KafkaError):
            await consumer.stop(LEAVE_S)

    def _take(self, assigned: Collection[TopicPartition]) -> None:
        assert self._consumer is not None
        self._consumer.pause(*assigned)
        with self._changed:
            self._assigned.update(assigned)
            self._changed.notify_all()

    def _give_up(self, revoked: Collection[TopicPartition]) -> None:
        with self._changed:
            self._assigned.difference_update(revoked)
            self._changed.notify_all()


async def _hang_up(consumer: Consumer) -> None:
    """Close the connections, and end all tasks of this loop, so that nothing tells the coordinator of the end."""
    parts = consumer._parts
    if parts is None:
        return
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await parts.close()


class PhantomTools(ClusterControls):
    """The part of the fixture that has phantom members."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._phantoms: list[Phantom] = []
        self._phantoms_made = 0
        self._phantoms_lock = threading.Lock()

    def phantom(
        self,
        group: str,
        topics: Sequence[str],
        *,
        protocol: str = CLASSIC,
        assignor: str | None = None,
        instance_id: str | None = None,
        client_id: str | None = None,
        rack: str = "",
        session_timeout_ms: float = SESSION_TIMEOUT_MS,
        rebalance_timeout_ms: float = REBALANCE_TIMEOUT_MS,
        never_sync: bool = False,
    ) -> Phantom:
        """Have a phantom member join a group; returns at once.

        `protocol` is `classic` or `consumer` (KIP-848). `assignor` is one of `range`, `roundrobin`, `sticky` and
        `cooperative-sticky` (classic; without it as in Kafka's client), or the name of one of the server's. In a
        consumer group the session timeout is that of the group. With `never_sync` (classic) its SyncGroup is never
        received, so it has no partitions; as the leader it blocks the group until its rebalance timeout has passed.
        `reset` ends all phantoms.
        """
        if not group:
            raise ValueError("group is empty")
        if protocol not in PROTOCOLS:
            raise ValueError(f"protocol is one of {', '.join(PROTOCOLS)}")
        if never_sync and protocol != CLASSIC:
            raise ValueError("members of a consumer group do not sync; never_sync needs protocol='classic'")
        with self._phantoms_lock:
            if len(self._phantoms) >= PHANTOMS_MAX:
                raise RuntimeError(f"there are {PHANTOMS_MAX} phantoms; end some of them")
            self._phantoms_made += 1
            name = client_id or f"phantom-{self._phantoms_made}"
        options: dict[str, Any] = {
            "bootstrap_servers": [format_address(*address) for address in self._thread.addresses[: self._brokers]],
            "group_id": group,
            "group_protocol": protocol,
            "group_instance_id": instance_id,
            "client_id": name,
            "client_rack": rack,
            "enable_auto_commit": False,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": min(HEARTBEAT_MS, session_timeout_ms / 3),
            "max_poll_interval_ms": rebalance_timeout_ms,
        }
        if assignor is not None and protocol == CONSUMER:
            options["group_remote_assignor"] = assignor
        elif assignor is not None:
            options["partition_assignment_strategy"] = [assignor]
        try:
            Consumer(**options)
            parse_strategy(options.get("partition_assignment_strategy"))
        except InvalidConfiguration as error:
            raise ValueError(str(error)) from None
        rules: list[Rule] = []
        if never_sync:
            selector = Selector(api="SyncGroup", client_id=name)
            rules.append(self._call(lambda double: double.rules.add(selector, Action(HOLD))))

        def ended(phantom: Phantom) -> None:
            with self._phantoms_lock:
                if phantom in self._phantoms:
                    self._phantoms.remove(phantom)
            with contextlib.suppress(ServerError):
                self._remove(*rules)

        phantom = Phantom(name, [topics] if isinstance(topics, str) else list(topics), options, self._settle, ended)
        with self._phantoms_lock:
            self._phantoms.append(phantom)
        return phantom

    def _settle(self) -> None:
        async def turn(server: Server) -> None:
            for _ in range(LOOP_TURNS):
                await asyncio.sleep(0)

        with contextlib.suppress(ServerError):
            self._thread.run(turn)

    def end_phantoms(self) -> None:
        """End all phantoms without having them leave."""
        with self._phantoms_lock:
            phantoms = list(self._phantoms)
        for phantom in phantoms:
            phantom.kill()
