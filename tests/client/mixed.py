"""Members of ours in classic groups of other libraries' members, for rolling restarts under load.

The group goes the way of KIP-429: from `range` over members that know both assignors to `cooperative-sticky`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final

from kcoord.client import Consumer, KafkaError, RebalanceListener, TopicPartition
from tests.e2e.movers import POLL_S, SESSION_MS, Worker, run_confluent
from tests.e2e.ownership import OPEN, Interval, Ownership
from tests.e2e.rolling import DEADLINE_S, GROUP, PARTITIONS, Load, Member, Rolling

WORK_S: Final = 0.2
OURS: Final = "kcoord"
RANGE, COOPERATIVE = "range", "cooperative-sticky"
STRATEGIES: Final = {
    "kcoord-eager": [RANGE],
    "kcoord-both": [COOPERATIVE, RANGE],
    "kcoord-cooperative": [COOPERATIVE],
}


class ClassicWorker(Worker):
    """A consumer of ours, or one of librdkafka with cooperative rebalances."""

    def run(self) -> None:
        try:
            if self.kind in STRATEGIES:
                asyncio.run(run_ours(self, STRATEGIES[self.kind]))
            else:
                run_confluent(self, {"partition.assignment.strategy": COOPERATIVE, "session.timeout.ms": SESSION_MS,
                                     "heartbeat.interval.ms": 100})  # fmt: skip
        except BaseException as e:
            self.failure = e
        finally:
            self.notes.given_up(self.name, self.owned())


class _Callbacks(RebalanceListener):
    def __init__(self, worker: ClassicWorker, consumer: Consumer) -> None:
        self.worker = worker
        self.consumer = consumer

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        partitions = [one.partition for one in revoked]
        # Nothing may prevent this commit: the group waits for it.
        await commit_ours(self.worker, self.consumer, self.worker.to_commit(partitions))
        self.worker.notes.given_up(self.worker.name, partitions)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        # As in Kafka: who is closed during a rebalance may be without its partitions already.
        assert self.worker.stopping.is_set() and not self.worker.done, f"{self.worker.name} has lost {sorted(lost)}"
        self.worker.notes.given_up(self.worker.name, [one.partition for one in lost])

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self.worker.notes.assigned(self.worker.name, [one.partition for one in assigned])


async def commit_ours(worker: ClassicWorker, consumer: Consumer, offsets: dict[int, int]) -> None:
    if offsets:
        await consumer.commit({TopicPartition(worker.topic, number): at for number, at in offsets.items()})


async def run_ours(worker: ClassicWorker, strategy: list[str]) -> None:
    options: dict[str, Any] = {
        "group_protocol": "classic", "enable_auto_commit": False, "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100, "session_timeout_ms": SESSION_MS, "partition_assignment_strategy": strategy,
    }  # fmt: skip
    async with Consumer(bootstrap_servers=worker.bootstrap, group_id=worker.group, **options) as consumer:
        consumer.subscribe([worker.topic], listener=_Callbacks(worker, consumer))
        while not worker.stopping.is_set():
            for record in await consumer.poll(POLL_S):
                worker.process(record.partition, record.offset, record.value)
                assert TopicPartition(worker.topic, record.partition) in consumer.assignment()
            await try_commit(worker, consumer, worker.to_commit())
        async with asyncio.timeout(DEADLINE_S):
            while worker.done:
                await try_commit(worker, consumer, worker.to_commit(list(worker.done)))
                consumer.pause(*consumer.assignment())
                await consumer.poll(POLL_S)


async def try_commit(worker: ClassicWorker, consumer: Consumer, offsets: dict[int, int]) -> None:
    """During a rebalance offsets may be refused: they are committed later."""
    try:
        await commit_ours(worker, consumer, offsets)
    except KafkaError:
        worker.done = {**offsets, **worker.done}


def begin(kind: str, bootstrap: str, group: str, topic: str, notes: Ownership) -> Member:
    is_ours = kind in STRATEGIES or kind == "confluent-cooperative"
    return (ClassicWorker if is_ours else Worker)(kind, bootstrap, group, topic, notes)


class MixedGroup(Rolling):
    """A classic group that is never without members."""

    def __init__(self, bootstrap: str, begin: Callable[..., Member] = begin) -> None:
        super().__init__(bootstrap, begin)
        self.work_s = WORK_S

    def wait_settled(self) -> None:
        """As in the base class, and every member has processed something: on a busy machine that may take longer."""
        super().wait_settled()
        end = time.monotonic() + DEADLINE_S
        while not {one.name for one in self.members} <= {one.member for one in self.notes.intervals if one.processed}:
            assert time.monotonic() < end
            time.sleep(0.01)

    def assignor(self) -> str:
        """The assignor that the group uses; it has none during a rebalance."""
        end = time.monotonic() + DEADLINE_S
        while True:
            found = self.admin.describe_consumer_groups([GROUP])[GROUP].result(DEADLINE_S).partition_assignor
            if found:
                return str(found)
            assert time.monotonic() < end
            time.sleep(0.02)

    def held(self, name: str) -> list[Interval]:
        return [one for one in self.notes.intervals if one.member == name and one.end == OPEN]

    def repeated(self) -> list[str]:
        """Records that a member of ours has processed and, when it gave the partition up, not committed."""
        found: list[str] = []
        ordered = sorted(self.notes.intervals, key=lambda one: (one.partition, one.begin))
        for i, one in enumerate(ordered):
            if one.member.startswith(OURS):
                for other in ordered[i + 1 :]:
                    both = set(one.processed) & set(other.processed) if other.partition == one.partition else set()
                    if both:
                        found.append(f"partition {one.partition}: {one.member}, {other.member}: {sorted(both)[:5]}")
        return found


def check_from_eager_to_cooperative(
    group: MixedGroup, eager: Sequence[str], both: Sequence[str], cooperative: Sequence[str]
) -> None:
    """The group changes its members one by one, then has only the last one, which is ours, and grows again."""
    group.create_topic()
    load = Load(group.bootstrap)
    try:
        for kind in eager:
            group.start(kind)
        assert group.assignor() == RANGE
        for kind in both:
            group.replace(kind)
        for kind in cooperative:
            group.replace(kind)
        assert group.assignor() == COOPERATIVE
        # It keeps what it has when others come, and gives up only what moves.
        ours = group.members[-1].name
        assert ours.startswith(OURS)
        while len(group.members) > 1:
            group.members.pop(0).stop()
        group.wait_settled()
        before = group.held(ours)
        for kind in cooperative[-2:]:
            group.start(kind)
        kept = group.held(ours)
        assert 0 < len(kept) < len(before) == PARTITIONS
        assert all(one in before for one in kept)
        group.check(load)
    finally:
        load.stop()
        for one in group.members:
            with suppress(AssertionError):
                one.stop()
    assert group.repeated() == []
    everybody = len(eager) + len(both) + len(cooperative) + 2
    assert len({interval.member for interval in group.notes.intervals if interval.processed}) == everybody
