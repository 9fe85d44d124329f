"""Transactions: committed, aborted, timed out and left open, with messages and with offsets."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.data.broker_life import Commit, Life, Member, Victim, wait_until
from tests.data.broker_topics import SMALL, producer


class Transactional:
    """A transactional producer; says what became of each transaction."""

    def __init__(self, life: Life, name: str, **settings: Any) -> None:
        self.life = life
        self.name = name
        self.producer: Producer = producer(life, transactional_id=name, **settings)
        self.producer.init_transactions(20)
        life.note(name, "init transactions")
        self._sent: list[dict[str, Any]] = []

    def begin(self) -> None:
        self.producer.begin_transaction()
        self._sent = []

    def send(self, topic: str, partition: int, count: int, word: str) -> None:
        for i in range(count):
            value = f"{word} {i} of {self.name}".encode()
            self.producer.produce(topic, value, word.encode(), partition, headers=[("word", word.encode())])
        self.producer.flush()
        self.life.note(self.name, "produce", topic=topic, partition=partition, count=count, word=word)

    def send_offsets(self, group: Any, name: str, *commits: Commit) -> None:
        offsets = [TopicPartition(topic, p, offset, metadata) for topic, p, offset, metadata in commits]
        self.producer.send_offsets_to_transaction(offsets, group, 20)
        for commit in commits:
            self._sent.append(self.life.note_commit(self.name, name, commit, "transaction", self.name))

    def end(self, commit: bool) -> None:
        if commit:
            self.producer.commit_transaction(20)
        else:
            self.producer.abort_transaction(20)
        outcome = "committed" if commit else "aborted"
        for entry in self._sent:
            entry["outcome"] = outcome
        self.life.note(self.name, "end transaction", outcome=outcome)


def expiring(life: Life) -> None:
    """A transactional id that the broker forgets in its first life."""
    one = Transactional(life, "tx-forgotten")
    one.begin()
    one.send("payments", 0, 2, "forgotten")
    one.end(True)


def payments(life: Life) -> None:
    """Two producers whose transactions interleave, aborted ones followed by plain data, and one per codec."""
    one = Transactional(life, "tx-1")
    two = Transactional(life, "tx-2", compression_type="lz4")
    plain = producer(life, enable_idempotence=True)
    for i in range(24):
        one.begin()
        one.send("payments", 0, 3, f"one-{i}")
        two.begin()
        two.send("payments", 0, 2, f"two-{i}")
        two.send("payments", 1, 2, f"two-{i}")
        one.send("payments", 0, 1, f"one-{i}-more")
        one.end(i % 3 != 1)
        plain.produce("payments", b"plain %d" % i, b"plain", 0)
        plain.flush()
        two.end(i % 2 == 0)
    # An aborted one that wrote nothing but its markers' partitions, and an empty one.
    one.begin()
    one.send("payments", 1, 1, "aborted last")
    one.end(False)
    one.begin()
    one.end(True)
    # The same id once more: its epoch goes up.
    again = Transactional(life, "tx-1")
    again.begin()
    again.send("payments", 1, 2, "successor")
    again.end(True)


def offsets(life: Life) -> None:
    """Offsets in transactions, of groups of both protocols and of one without members."""
    one = Transactional(life, "tx-offsets")
    for protocol in ("classic", "consumer"):
        name = f"tx-{protocol}"
        settings = {"group_protocol": "consumer"} if protocol == "consumer" else {}
        member = Member(life, f"{name}-1", name, ["orders"], **settings)
        member.wait_owned(3)
        life.wait_stable(name, 1)
        for i in range(9):
            one.begin()
            one.send("payments", i % 2, 1, f"{name}-{i}")
            commits: list[Commit] = [("orders", p, 10 * i + p, f"transaction {i}") for p in range(3)]
            one.send_offsets(member.metadata(), name, *commits)
            one.end(i % 4 != 2)
        member.commit(("orders", 0, 1000, "outside"))
        one.begin()
        one.send_offsets(member.metadata(), name, ("orders", 1, 2000, "aborted in the end"))
        one.end(False)
        life.describe(name)
        member.close()
    helper = Consumer({"bootstrap.servers": life.bootstrap, "group.id": "tx-simple", "log_level": 0})
    one.begin()
    one.send_offsets(helper.consumer_group_metadata(), "tx-simple", ("orders", 0, 1, "twice in one"))
    one.send_offsets(helper.consumer_group_metadata(), "tx-simple", ("orders", 0, 2, "twice in one"))
    one.end(True)


def timed_out(life: Life) -> None:
    """A producer that dies; the coordinator aborts its transaction after two seconds."""
    victim = Victim(life, "transaction", "tx-timed-out", "2000", "payments", "1", "tx-lost")
    did = victim.did
    commit = (did["topic"], did["partition"], did["offset"], did["metadata"])
    entry = life.note_commit(victim.name, did["group"], commit, "transaction", victim.name)
    victim.kill()
    reader = Consumer(
        {"bootstrap.servers": life.bootstrap, "group.id": "none", "isolation.level": "read_committed"}
    )
    high = reader.get_watermark_offsets(TopicPartition("payments", 1), timeout=10)[1]
    wait_until(
        "the abort", lambda: reader.get_watermark_offsets(TopicPartition("payments", 1), timeout=10)[1] > high
    )
    reader.close()
    entry["outcome"] = "aborted"
    life.note("broker", "end transaction", transaction=victim.name, outcome="aborted")


def left_open(life: Life) -> Victim:
    """The transaction that is open when the broker stops, on payments-0 and in group tx-open; to be killed."""
    victim = Victim(life, "transaction", "tx-open", "900000", "payments", "0", "tx-open")
    did = victim.did
    commit = (did["topic"], did["partition"], did["offset"], did["metadata"])
    life.note_commit(victim.name, did["group"], commit, "transaction", victim.name)
    return victim


def behind_open(life: Life) -> None:
    """A committed transaction and plain data behind the open one: no read_committed consumer may see them."""
    one = Transactional(life, "tx-behind")
    one.begin()
    one.send("payments", 0, 2, "behind")
    one.end(True)
    sender = producer(life)
    sender.produce("payments", b"plain and behind", b"plain", 0)
    sender.flush()


def create(life: Life) -> None:
    life.create("payments", 2, **SMALL)
