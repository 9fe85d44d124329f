"""Groups of every kind: their members come, commit, go, are killed, expire, are deleted."""

from __future__ import annotations

from functools import partial

import asyncio
import time

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.structs import OffsetAndMetadata

from tests.data.broker_life import Life, Member, Victim, wait_until
from tests.harness.session import Session
from tests.interop import tools
from tests.interop.oracle import Oracle

CONSOLE_SHARE_CONSUMER = tools.TOOLS + "consumer.ConsoleShareConsumer"


def expiring(life: Life) -> None:
    """Two groups whose offsets the broker is to expire a minute after the last member left, or the last commit."""
    member = Member(life, "expiring-1", "expiring", ["orders"])
    member.wait_owned(3)
    member.commit(("orders", 0, 7, "soon gone"), ("orders", 1, 8, ""), ("orders", 2, 9, ""))
    life.describe("expiring")
    member.close()
    life.commit_as_admin("expiring-simple", [("orders", 0, 5, "no members ever")])


def is_forgotten(life: Life, group: str) -> bool:
    return not life.committed(group)


def wait_expired(life: Life) -> None:
    for group in ("expiring", "expiring-simple"):
        places = [(entry["topic"], entry["partition"]) for entry in life.commits if entry["group"] == group]
        wait_until(f"{group} to expire", partial(is_forgotten, life, group), 120)
        for topic, partition in places:
            life.note_forgotten(group, topic, partition, "expired")


def classic(life: Life) -> None:
    """Members one, two and three of range; many commits, rewinds, metadata; describes in between."""
    one = Member(life, "classic-1", "classic", ["orders"])
    one.wait_owned(3)
    for offset, metadata in (
        (10, ""),
        (20, "first"),
        (15, "rewound"),
        (15, "again"),
        (30, "forward"),
    ):
        one.commit(*[("orders", p, offset + p, metadata) for p in range(3)])
    life.describe("classic")
    two = Member(life, "classic-2", "classic", ["orders"])
    life.wait_stable("classic", 2)
    wait_until("classic shared", lambda: {len(one.owned()), len(two.owned())} == {1, 2})
    for i in range(60):
        for member in (one, two):
            member.commit(*[(topic, p, 40 + i * 2, f"round {i}") for topic, p in member.owned()])
    life.describe("classic")
    three = Member(life, "classic-3", "classic", ["orders", "trimmed"])
    life.wait_stable("classic", 3)
    wait_until("trimmed owned", lambda: ["trimmed", 0] in three.owned())
    three.commit(("trimmed", 0, 200, "another topic"))
    life.describe("classic")
    one.close()
    life.wait_stable("classic", 2)
    time.sleep(0.5)
    for member in (two, three):
        member.commit(
            *[(topic, p, 170 if topic == "orders" else 201, "in the end") for topic, p in member.owned()]
        )
    two.close()
    three.close()
    life.describe("classic")
    life.commit_as_admin("classic", [("orders", 1, 3, "reset by the admin")])


def classic_others(life: Life) -> None:
    """Cooperative members, a static one that comes back, one that is killed, and other clients' consumers."""
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    one = Member(life, "coop-1", "classic-coop", ["orders", "payments"], **settings)
    one.wait_owned(5)
    two = Member(life, "coop-2", "classic-coop", ["orders", "payments"], **settings)
    life.wait_stable("classic-coop", 2)
    wait_until("coop shared", lambda: len(two.owned()) >= 2 and len(one.owned()) + len(two.owned()) == 5)
    life.wait_stable("classic-coop", 2)
    one.commit(*[(topic, p, 4, "one") for topic, p in one.owned()])
    two.commit(*[(topic, p, 5, "two") for topic, p in two.owned()])
    life.describe("classic-coop")
    two.close()
    one.wait_owned(5)
    one.close()

    for again in (0, 1):
        static = Member(life, f"static-{again}", "classic-static", ["orders"], group_instance_id="instance-1")
        static.wait_owned(3)
        static.commit(("orders", 0, 11 + again, "static"))
        life.describe("classic-static")
        static.close()

    dying = Victim(life, "member", "dying-1", "classic-dying", "classic", "orders")
    dying.kill()
    after = Member(life, "dying-2", "classic-dying", ["orders"])
    after.wait_owned(3)
    after.commit(("orders", 2, 99, "after a death"))
    life.describe("classic-dying")
    after.close()
    python_clients(life)


def python_clients(life: Life) -> None:
    consumer = KafkaConsumer(
        "orders",
        bootstrap_servers=life.bootstrap,
        group_id="kafka-python",
        enable_auto_commit=False,
        client_id="kp",
    )
    wait_until(
        "kafka-python's partitions", lambda: bool(consumer.poll(1000)) or len(consumer.assignment()) == 3
    )
    # Metadata beyond ASCII is here only.
    for offset, metadata in ((1, "kafka-python"), (2, "größe \U0001f680")):
        consumer.commit({PythonPartition("orders", 0): OffsetAndMetadata(offset, metadata, -1)})
        life.note_commit("kp", "kafka-python", ("orders", 0, offset, metadata), "commit")
    life.describe("kafka-python")
    consumer.close()

    async def aio() -> None:
        other = AIOKafkaConsumer(
            "orders",
            bootstrap_servers=life.bootstrap,
            group_id="aiokafka",
            enable_auto_commit=False,
            client_id="aio",
        )
        await other.start()
        for offset in (100, 50):
            await other.commit({AioPartition("orders", 1): (offset, "aiokafka")})
            life.note_commit("aio", "aiokafka", ("orders", 1, offset, "aiokafka"), "commit")
        await other.stop()

    asyncio.run(aio())


def java_clients(life: Life) -> None:
    """Java's consumers of both protocols. They commit by themselves, so what is known is only the end."""
    for protocol in ("classic", "consumer"):
        at = ["--bootstrap-server", life.bootstrap, "--topic", "orders", "--group", f"java-{protocol}"]
        at += ["--from-beginning", "--max-messages", "100", "--timeout-ms", "20000"]
        got = tools.run(tools.CONSOLE_CONSUMER, *at, "--command-property", f"group.protocol={protocol}")
        assert len(got.lines) == 100, got
        life.describe(f"java-{protocol}")
    at = [
        "--bootstrap-server",
        life.bootstrap,
        "--topic",
        "orders",
        "--group",
        "share-1",
        "--timeout-ms",
        "3000",
    ]
    tools.run(CONSOLE_SHARE_CONSUMER, *at)


def retained(life: Life, port: int) -> None:
    """A commit of a client so old that it says itself how long its offsets are to be kept: for a second, for a day."""
    with Oracle() as oracle:
        session = Session("127.0.0.1", port, oracle)
        for topic, partition, retention_ms in (("orders", 0, 1000), ("orders", 1, 86_400_000)):
            at = {"partitionIndex": partition, "committedOffset": 42, "committedMetadata": "kept"}
            request = {"groupId": "retained", "generationIdOrMemberEpoch": -1, "memberId": ""}
            request.update(retentionTimeMs=retention_ms, topics=[{"name": topic, "partitions": [at]}])
            told = session.call("commit", "OffsetCommit", 2, request)
            assert told["topics"][0]["partitions"][0]["errorCode"] == 0, told
            entry = life.note_commit("by hand", "retained", (topic, partition, 42, "kept"), "request")
            entry["retention_ms"] = retention_ms
        session.close()
    wait_until("the short-lived offset to go", lambda: len(life.committed("retained")) == 1)
    life.note_forgotten("retained", "orders", 0, "expired")


def busy(life: Life) -> None:
    """Groups whose many commits fill segments: with these names, one is in each partition of the offsets topic."""
    for group in ("busy-0", "busy-1", "busy-2"):
        for i in range(40):
            life.commit_as_admin(
                group, [("orders", p, 6 * i + p, f"commit {i} of {group}") for p in range(3)]
            )


def next_generation(life: Life) -> None:
    """Consumer groups: members come and go, one is static and leaves for a while, one is killed."""
    new = {"group_protocol": "consumer"}
    one = Member(life, "next-1", "next", ["orders"], **new)
    one.wait_owned(3)
    for offset in (5, 12, 9):
        one.commit(*[("orders", p, offset, f"epoch of {offset}") for p in range(3)])
    life.describe("next")
    two = Member(life, "next-2", "next", ["orders"], **new)
    wait_until("next shared", lambda: {len(one.owned()), len(two.owned())} == {1, 2})
    life.wait_stable("next", 2)
    for i in range(40):
        for member in (one, two):
            member.commit(*[(topic, p, 20 + i, "") for topic, p in member.owned()])
    life.describe("next")
    static = Member(
        life, "next-static", "next", ["orders", "payments"], group_instance_id="instance-n", **new
    )
    wait_until("payments owned", lambda: ["payments", 1] in static.owned())
    life.wait_stable("next", 3)
    static.commit(*[(topic, p, 70, "static") for topic, p in static.owned()])
    life.describe("next")
    two.close()
    life.wait_stable("next", 2)
    static.close()
    time.sleep(1)
    static = Member(
        life, "next-static-2", "next", ["orders", "payments"], group_instance_id="instance-n", **new
    )
    wait_until("payments owned again", lambda: ["payments", 1] in static.owned())
    life.wait_stable("next", 2)
    static.commit(*[(topic, p, 71, "back") for topic, p in static.owned()])
    life.describe("next")
    one.close()
    dying = Victim(life, "member", "next-dying", "next", "consumer", "orders")
    dying.kill()
    wait_until("the death noticed", lambda: len(life.describe("next")["members"]) == 1)
    static.close()

    finder = Member(life, "regex-1", "regex", ["^region-.*"], **new)
    finder.wait_owned(2)
    finder.commit(("region-eu", 0, 1, ""), ("region-us", 0, 1, ""))
    life.create("region-asia", 2)
    finder.wait_owned(4)
    life.wait_stable("regex", 1)
    finder.commit(("region-asia", 0, 2, "found later"))
    life.describe("regex")
    finder.close()


def migrated(life: Life) -> None:
    """A classic group whose members go over to the other protocol one by one, and back."""
    old = Member(life, "old", "migrated", ["orders"])
    old.wait_owned(3)
    old.commit(("orders", 0, 1, "classic"))
    new = Member(life, "new", "migrated", ["orders"], group_protocol="consumer")
    wait_until("both own some", lambda: {len(old.owned()), len(new.owned())} == {1, 2})
    life.wait_stable("migrated", 2)
    new.commit(*[(topic, p, 2, "consumer") for topic, p in new.owned()])
    life.describe("migrated")
    old.close()
    new.wait_owned(3)
    life.wait_stable("migrated", 1)
    new.commit(*[(topic, p, 3, "alone") for topic, p in new.owned()])
    life.describe("migrated")
    new.close()


def deleted(life: Life) -> None:
    """A group deleted, offsets of one partition deleted, a topic deleted that groups have offsets of."""
    life.commit_as_admin("deleted", [("orders", p, 10 + p, "") for p in range(3)])
    life.admin.delete_consumer_groups(["deleted"])["deleted"].result(20)
    life.note("admin", "delete group", group="deleted")
    for p in range(3):
        life.note_forgotten("deleted", "orders", p, "group deleted")

    life.commit_as_admin("half-deleted", [("orders", p, 20 + p, "half") for p in range(3)])
    at = [
        "--bootstrap-server",
        life.bootstrap,
        "--delete-offsets",
        "--group",
        "half-deleted",
        "--topic",
        "orders:1",
    ]
    told = tools.run(tools.GROUPS, *at)
    assert told.code == 0, told
    life.note_forgotten("half-deleted", "orders", 1, "offsets deleted")
    life.commit_as_admin("half-deleted", [("orders", 2, 0, "from the beginning")])

    life.create("doomed", 2)
    life.commit_as_admin("bereft", [("doomed", 0, 0, ""), ("doomed", 1, 1, ""), ("orders", 0, 6, "stays")])
    life.admin.delete_topics(["doomed"])["doomed"].result(20)
    life.note("admin", "delete topic", topic="doomed")
    wait_until("offsets of the deleted topic to go", lambda: len(life.committed("bereft")) == 1)
    for p in range(2):
        life.note_forgotten("bereft", "doomed", p, "topic deleted")
