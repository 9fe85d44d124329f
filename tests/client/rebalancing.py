"""What holds for consumers in groups with every broker: the same checks run with kcoord and with Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest

from kcoord.client import Admin, Consumer, KafkaError, Producer, RebalanceListener, TopicPartition
from kcoord.client.admin.results import CommittedOffset, NewTopic

DEADLINE_S = 30.0
FOO, BAR = TopicPartition("foo", 0), TopicPartition("bar", 0)


class Recorder(RebalanceListener):
    """Keeps what it hears, as (what, partitions)."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, set[TopicPartition]]] = []
        # What the consumer had when it was told of a revocation.
        self.had: list[frozenset[TopicPartition]] = []
        self.consumer: Consumer | None = None

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self.heard.append(("revoked", set(revoked)))
        if self.consumer is not None:
            self.had.append(self.consumer.assignment())

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await asyncio.sleep(0)
        self.heard.append(("assigned", set(assigned)))

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self.heard.append(("lost", set(lost)))

    def revoked(self) -> list[set[TopicPartition]]:
        return [partitions for what, partitions in self.heard if what == "revoked"]

    def owned(self) -> set[TopicPartition]:
        """What follows from all calls. Fails if they are not symmetric."""
        owned: set[TopicPartition] = set()
        for what, partitions in self.heard:
            if what == "assigned":
                assert not owned & partitions
                owned |= partitions
            else:
                assert partitions <= owned
                owned -= partitions
        return owned


def consumer(bootstrap: str, group_id: str, protocol: str, **options: Any) -> Consumer:
    """A consumer that reacts quickly."""
    quick: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 10_000,
        "metadata_max_age_ms": 500,
        "fetch_max_wait_ms": 50,
    }
    return Consumer(bootstrap_servers=bootstrap, group_id=group_id, group_protocol=protocol, **{**quick, **options})


async def create(bootstrap: str, **partitions: int) -> None:
    """New topics with these numbers of partitions, in place of those that were there."""
    async with Admin(bootstrap) as admin:
        await admin.delete_topics(*partitions)
        for name, count in partitions.items():
            async with asyncio.timeout(DEADLINE_S):
                # A broker deletes topics after its answer.
                while isinstance((await admin.create_topics(NewTopic(name, count, 1)))[name], KafkaError):
                    await asyncio.sleep(0.05)


async def poll_until(condition: Callable[[], bool], *consumers: Consumer) -> None:
    """Poll all consumers until something holds. Fails if it does not in time."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.gather(*(one.poll(0.02) for one in consumers))


async def check_topic_subscription(bootstrap: str, protocol: str) -> None:
    """KIP-70, subscriptions to topics: the assignment stays until the next rebalance has revoked it."""
    await create(bootstrap, foo=1, bar=1)
    heard = Recorder()
    async with consumer(bootstrap, "topics", protocol) as one:
        heard.consumer = one
        one.subscribe(["foo", "bar"], listener=heard)
        assert one.assignment() == set()
        await poll_until(lambda: one.assignment() == {FOO, BAR}, one)
        assert heard.owned() == {FOO, BAR}
        one.subscribe(["bar"], listener=heard)
        # The existing semantics would leave out foo here.
        assert one.subscription() == {"bar"}
        assert one.assignment() == {FOO, BAR}
        await poll_until(lambda: one.assignment() == {BAR}, one)
        # The existing semantics would tell the listener of bar only.
        assert heard.revoked()[0] == ({FOO, BAR} if protocol == "classic" else {FOO})
        assert heard.had[0] == {FOO, BAR}
        assert heard.owned() == {BAR}
        # A topic more: what was there stays until the group has decided.
        one.subscribe(["foo", "bar"], listener=heard)
        assert one.assignment() == {BAR}
        await poll_until(lambda: one.assignment() == {FOO, BAR}, one)
        await one.unsubscribe()
        assert one.assignment() == set() == heard.owned()
        assert heard.had[-1] == {FOO, BAR}
    assert heard.owned() == set()


async def check_pattern_subscription(bootstrap: str, protocol: str) -> None:
    """KIP-70, subscriptions to patterns: as with topics."""
    async with Admin(bootstrap) as admin:
        # Topics of the same test with the other protocol.
        await admin.delete_topics("baz", "bazaar")
    await create(bootstrap, foo=1, bar=1)
    heard = Recorder()
    async with consumer(bootstrap, "patterns", protocol) as one:
        heard.consumer = one
        one.subscribe(pattern="foo|bar", listener=heard)
        await poll_until(lambda: one.assignment() == {FOO, BAR}, one)
        assert one.subscription() == {"foo", "bar"}
        one.subscribe(pattern="ba.", listener=heard)
        assert one.assignment() == {FOO, BAR}
        await poll_until(lambda: one.assignment() == {BAR}, one)
        assert heard.revoked()[0] == ({FOO, BAR} if protocol == "classic" else {FOO})
        assert heard.had[0] == {FOO, BAR}
        # A new topic that matches is read without a new subscription; one that matches in part only is not.
        await create(bootstrap, baz=1, bazaar=1)
        await poll_until(lambda: one.assignment() == {BAR, TopicPartition("baz", 0)}, one)
        assert one.subscription() == {"bar", "baz"}
    assert heard.owned() == set()


async def check_unsubscribe(bootstrap: str, protocol: str) -> None:
    """KIP-70: consumed offsets are committed before unsubscribe or close clears the assignment (auto commit)."""
    await create(bootstrap, foo=1)
    async with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            await producer.send("foo", b"%d" % number)
    async with consumer(bootstrap, "commits", protocol) as one:
        for expected in (8, 16):
            one.subscribe(["foo"])
            read = expected - 8
            async with asyncio.timeout(DEADLINE_S):
                while read < expected:
                    read += len(await one.poll(0.1, expected - read))
            await one.unsubscribe()
            assert one.assignment() == set()
            committed = await one.committed(FOO)
            assert committed is not None and committed.offset == expected
        one.subscribe(["foo"])
        async with asyncio.timeout(DEADLINE_S):
            while not (found := await one.poll(0.1, 1)):
                pass
        assert found[0].offset == 16
    async with consumer(bootstrap, "commits", protocol, enable_auto_commit=False) as one:
        committed = await one.committed(FOO)
        assert committed is not None and committed.offset == 17
        one.subscribe(["foo"])
        async with asyncio.timeout(DEADLINE_S):
            while not await one.poll(0.1, 1):
                pass
        # Without auto commit nothing is committed.
        await one.unsubscribe()
        assert await one.committed(FOO) == committed


async def check_listener_commits(bootstrap: str, protocol: str) -> None:
    """A listener may commit when partitions are revoked, also while the consumer unsubscribes or is closed."""
    await create(bootstrap, foo=1)

    class Committer(RebalanceListener):
        offset = 0

        async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
            await one.commit(dict.fromkeys(revoked, self.offset))
            with pytest.raises(KafkaError):
                await one.poll()

    listener = Committer()
    one = consumer(bootstrap, "listener", protocol, enable_auto_commit=False)
    await one.start()
    for listener.offset in (7, 8):
        one.subscribe(["foo"], listener=listener)
        await poll_until(lambda: one.assignment() == {FOO}, one)
        await (one.unsubscribe() if listener.offset == 7 else one.stop())
        async with Admin(bootstrap) as admin:
            committed = (await admin.list_group_offsets("listener"))[FOO]
        assert isinstance(committed, CommittedOffset) and committed.offset == listener.offset


async def check_members_come_and_go(bootstrap: str, protocol: str, **options: Any) -> None:
    """All partitions are read by exactly one member, whoever joins or leaves; no record is lost."""
    await create(bootstrap, t=6)
    everything = {TopicPartition("t", number) for number in range(6)}
    sent = 0
    seen: set[tuple[int, int]] = set()
    async with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        members: list[tuple[Consumer, Recorder]] = []

        async def settle() -> None:
            nonlocal sent

            def is_settled() -> bool:
                parts = [one.assignment() for one, _ in members]
                return sum(len(part) for part in parts) == 6 and set().union(*parts) == everything and all(parts)

            async with asyncio.timeout(DEADLINE_S):
                while not is_settled() or len(seen) < sent:
                    if not is_settled():
                        await producer.send("t", b"x", partition=sent % 6)
                        sent += 1
                    for records in await asyncio.gather(*(one.poll(0.02) for one, _ in members)):
                        seen.update((record.partition, record.offset) for record in records)
            for one, heard in members:
                assert heard.owned() == one.assignment()

        for _ in range(3):
            heard = Recorder()
            one = consumer(bootstrap, "members", protocol, **options)
            await one.start()
            one.subscribe(["t"], listener=heard)
            members.append((one, heard))
            await settle()
        while members:
            one, heard = members.pop(0)
            leaving = asyncio.create_task(one.stop())
            if members:
                await settle()
            await leaving
            assert heard.owned() == set()


async def check_eviction(bootstrap: str, protocol: str) -> None:
    """A member that does not poll leaves the group; its partitions are lost, and it cannot commit for them."""
    await create(bootstrap, t=1)
    (only,) = {TopicPartition("t", 0)}
    heard = Recorder()
    async with (
        consumer(bootstrap, "slow", protocol, max_poll_interval_ms=700, enable_auto_commit=False) as slow,
        consumer(bootstrap, "slow", protocol, enable_auto_commit=False) as other,
    ):
        slow.subscribe(["t"], listener=heard)
        await poll_until(lambda: slow.assignment() == {only}, slow)
        generation = slow.generation()
        assert generation > 0
        other.subscribe(["t"])
        await poll_until(lambda: other.assignment() == {only}, other)
        assert slow.assignment() == {only}
        with pytest.raises(KafkaError):
            await slow.commit({only: 1})
        await other.commit({only: 2})
        await other.stop()
        await poll_until(lambda: slow.assignment() == {only} and ("lost", {only}) in heard.heard, slow)
        committed = await slow.committed(only)
        assert committed is not None and committed.offset == 2


async def check_static_member(bootstrap: str, protocol: str) -> None:
    """A static member that stops and comes back has its partitions again, without a rebalance of the others."""
    await create(bootstrap, t=2)
    heard = Recorder()
    async with consumer(bootstrap, "static", protocol, group_instance_id="b") as stays:
        stays.subscribe(["t"], listener=heard)
        first = consumer(bootstrap, "static", protocol, group_instance_id="a")
        await first.start()
        first.subscribe(["t"])
        await poll_until(lambda: len(stays.assignment()) == 1 == len(first.assignment()), stays, first)
        had, calls = first.assignment(), len(heard.heard)
        await first.stop()
        async with consumer(bootstrap, "static", protocol, group_instance_id="a") as back:
            back.subscribe(["t"])
            await poll_until(lambda: back.assignment() == had, stays, back)
            assert len(heard.heard) == calls
            # A second one with the same id fences it (classic), or waits (consumer).


async def check_partitions_are_added(bootstrap: str, protocol: str) -> None:
    """New partitions of a topic are assigned."""
    await create(bootstrap, t=1)
    async with consumer(bootstrap, "grows", protocol) as one:
        one.subscribe(["t"])
        await poll_until(lambda: len(one.assignment()) == 1, one)
        async with Admin(bootstrap) as admin:
            await admin.create_partitions({"t": 3})
        await poll_until(lambda: len(one.assignment()) == 3, one)


async def check_listener_errors(bootstrap: str, protocol: str) -> None:
    """What a listener raises comes out of poll once, and the consumer goes on."""
    await create(bootstrap, foo=1)

    class Faulty(RebalanceListener):
        def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
            if assigned:
                raise ValueError("from the listener")

    async with consumer(bootstrap, "faulty", protocol) as one:
        one.subscribe(["foo"], listener=Faulty())
        with pytest.raises(ValueError, match="from the listener"):
            await poll_until(lambda: False, one)
        assert one.assignment() == {FOO}
        await poll_until(lambda: one.assignment() == {FOO}, one)
        await one.poll(0.05)
