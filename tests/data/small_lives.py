"""What clients do in the small data sets: groups of both protocols, each with what may become of it.

Every life leaves members alive, which are there when the broker stops and are killed after it.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer

from tests.data.broker_java import JavaMember
from tests.data.broker_life import Life, Member, Victim, done, wait_until
from tests.data.broker_topics import delete, producer
from tests.data.broker_transactions import Transactional, left_open
from tests.interop import tools

NEW = {"group_protocol": "consumer"}
# So long that no member expires in a broker that is started on the logs to be asked about them.
PATIENT_MS = "1200000"
# librdkafka wants the second to be no less than the first.
PATIENT = (f"session.timeout.ms={PATIENT_MS}", f"max.poll.interval.ms={PATIENT_MS}")


def topics(life: Life) -> None:
    """Some with messages, so that positions are numbers."""
    for topic, partitions in (("orders", 3), ("payments", 2), ("region-eu", 1), ("region-us", 1)):
        life.create(topic, partitions)
    sender = producer(life, enable_idempotence=True)
    for i in range(30):
        sender.produce("orders", b"order %d" % i, b"customer-%d" % (i % 4), i % 3)
    sender.flush()


def without_members(life: Life) -> None:
    """Offsets of groups that never had a member: set, rewound, deleted with their group, partition or topic."""
    for offset, metadata in ((5, "by hand"), (9, ""), (3, "rewound, größe")):
        life.commit_as_admin("simple", [("orders", p, offset + p, metadata) for p in range(3)])
    life.commit_as_admin("deleted", [("orders", p, 10 + p, "") for p in range(3)])
    done(life.admin.delete_consumer_groups(["deleted"]))
    life.note("admin", "delete group", group="deleted")
    for p in range(3):
        life.note_forgotten("deleted", "orders", p, "group deleted")
    life.commit_as_admin("half-deleted", [("orders", p, 20 + p, "half") for p in range(3)])
    at = ["--bootstrap-server", life.bootstrap, "--group", "half-deleted", "--topic", "orders:1"]
    told = tools.run(tools.GROUPS, *at, "--delete-offsets", release=life.release)
    assert told.code == 0, told
    life.note_forgotten("half-deleted", "orders", 1, "offsets deleted")
    life.create("doomed", 1)
    life.commit_as_admin("bereft", [("doomed", 0, 1, ""), ("orders", 0, 6, "stays")])
    delete(life, "doomed")
    wait_until("offsets of the deleted topic to go", lambda: len(life.committed("bereft")) == 1)
    life.note_forgotten("bereft", "doomed", 0, "topic deleted")


def classic(life: Life, word: str) -> list[Victim | JavaMember]:
    """Classic members that come and go, a static one that comes back; of `live-classic` two stay."""
    one = Member(life, "classic-1", f"classic{word}", ["orders"])
    one.wait_owned(3)
    one.commit(*[("orders", p, 2 + p, "one") for p in range(3)])
    two = Member(
        life, "classic-2", f"classic{word}", ["orders", "payments"], group_instance_id="instance-2"
    )
    wait_until("both own some", lambda: len(one.owned()) > 0 and ["payments", 0] in two.owned())
    life.wait_stable(f"classic{word}", 2)
    two.commit(*[(topic, p, 4, "two") for topic, p in two.owned()])
    wait_until("messages", lambda: any(offset > 0 for _, _, offset in one.positions()))
    life.describe(f"classic{word}")
    one.close()
    two.wait_owned(5)
    two.committed()
    two.close()
    again = Member(
        life, "classic-3", f"classic{word}", ["orders", "payments"], group_instance_id="instance-2"
    )
    again.wait_owned(5)
    again.commit(("orders", 1, 7, "back"))
    again.close()

    async def aio() -> None:
        group = f"aiokafka{word}"
        other = AIOKafkaConsumer(
            "orders", bootstrap_servers=life.bootstrap, group_id=group, enable_auto_commit=False, client_id="aio"
        )  # fmt: skip
        await other.start()
        for offset in (8, 6):
            await other.commit({AioPartition("orders", 1): (offset, "größe \U0001f680")})
            life.note_commit("aio", group, ("orders", 1, offset, "größe \U0001f680"), "commit")
        await other.stop()

    asyncio.run(aio())
    return stay(life, f"live-classic{word}", "classic")


def stay(life: Life, group: str, protocol: str, librdkafka: bool = True) -> list[Victim | JavaMember]:
    """Two members of a group, one of them static, with offsets; they stay until they are killed."""
    patient = {} if protocol == "consumer" else {"session_timeout_ms": PATIENT_MS}
    static = JavaMember(
        life, f"java-{group}", group, "orders", group_protocol=protocol, group_instance_id=f"{group}-i", **patient
    )
    found: list[Victim | JavaMember] = [static]
    static.wait_owned(3)
    if librdkafka:
        more = PATIENT if patient else ()
        found.append(Victim(life, "member", f"{group}-2", group, protocol, "orders", *more))
    else:
        found.append(JavaMember(life, f"java-{group}-2", group, "orders", group_protocol=protocol, **patient))
    life.wait_stable(group, 2)
    wait_until("both own some", lambda: len(static.owned()) in (1, 2))
    static.commit(*[(topic, p, 3 + p, "stays") for topic, p in static.owned()])
    static.positions()
    static.committed()
    life.describe(group)
    return found


def consumer(life: Life) -> list[Victim | JavaMember]:
    """Consumer groups (KIP-848) of Java's clients: a static member that leaves for a while, a group that is deleted."""
    one = JavaMember(life, "java-next-1", "next", "orders", **NEW)
    one.wait_owned(3)
    for offset in (5, 9, 2):
        one.commit(*[("orders", p, offset, f"epoch of {offset}") for p in range(3)])
    static = JavaMember(life, "java-next-2", "next", "orders,payments", group_instance_id="instance-n", **NEW)
    wait_until("next shared", lambda: ["payments", 1] in static.owned())
    life.wait_stable("next", 2)
    static.commit(*[(topic, p, 6, "static") for topic, p in static.owned()])
    one.positions()
    static.committed()
    life.describe("next")
    one.close()
    static.wait_owned(5)
    static.close()
    static = JavaMember(life, "java-next-3", "next", "orders,payments", group_instance_id="instance-n", **NEW)
    static.wait_owned(5)
    static.commit(("payments", 0, 1, "back"))
    static.close()

    gone = JavaMember(life, "java-gone", "deleted-next", "orders", **NEW)
    gone.wait_owned(3)
    gone.commit(("orders", 0, 4, "soon gone"))
    gone.close()
    wait_until("an empty group", lambda: not life.describe("deleted-next")["members"])
    done(life.admin.delete_consumer_groups(["deleted-next"]))
    life.note("admin", "delete group", group="deleted-next")
    life.note_forgotten("deleted-next", "orders", 0, "group deleted")
    return [*stay(life, "live-consumer", "consumer", False), *mixed(life)]


def mixed(life: Life) -> list[Victim | JavaMember]:
    """A group on its way from one protocol to the other: a member of each kind stays."""
    old = Victim(life, "member", "mixed-old", "mixed", "classic", "orders", *PATIENT)
    new = JavaMember(life, "java-mixed-new", "mixed", "orders", **NEW)
    life.wait_stable("mixed", 2)
    wait_until("the new one owns some", lambda: len(new.owned()) in (1, 2))
    new.commit(*[(topic, p, 2, "consumer") for topic, p in new.owned()])
    life.describe("mixed")
    return [old, new]


def regex(life: Life) -> list[Victim | JavaMember]:
    """librdkafka's consumer group members subscribe to a pattern that the broker resolves, from 4.0 on."""
    finder = Member(life, "regex-1", "regex", ["^region-.*"], **NEW)
    finder.wait_owned(2)
    finder.commit(("region-eu", 0, 1, "found"), ("region-us", 0, 1, ""))
    finder.close()
    return [Victim(life, "member", "regex-2", "regex", "consumer", "^region-.*")]


def transactions(life: Life) -> list[Victim | JavaMember]:
    """Offsets in transactions: committed, aborted, of a member and of no member; one stays open."""
    one = Transactional(life, "tx-offsets")
    member = Member(life, "tx-classic-1", "tx-classic", ["orders"])
    member.wait_owned(3)
    life.wait_stable("tx-classic", 1)
    for i in range(4):
        one.begin()
        one.send("payments", i % 2, 1, f"round {i}")
        one.send_offsets(
            member.metadata(), "tx-classic", *[("orders", p, 2 * i + p, f"transaction {i}") for p in range(3)]
        )
        one.end(i % 3 != 1)
    member.close()
    with ExitStack() as stack:
        helper = Consumer({"bootstrap.servers": life.bootstrap, "group.id": "tx-simple", "log_level": 0})
        stack.callback(helper.close)
        for i, commit in enumerate((True, False)):
            one.begin()
            one.send_offsets(helper.consumer_group_metadata(), "tx-simple", ("orders", 0, 5 + i, "no member"))
            one.end(commit)
    return [left_open(life)]
