"""Random histories of transactional and idempotent producers, of transaction version 2 and of older clients."""

from __future__ import annotations

import base64
import random
from typing import Any

from tests.differential.sequence import Kind, Step, weighted
from tests.differential.talk import Talk
from tests.harness.batches import GZIP, batch_text
from tests.harness.broker_scripts_data import fetch_request, produce_request
from tests.harness.broker_scripts_transactions import ENDING, batches_text, sort_results, wait_for_transactions
from tests.harness.script_steps import create_topic, join_request
from tests.harness.session import Pending

FOREVER = {"retention.ms": "-1", "segment.ms": "100000000000000"}
PARTITIONS = 2
TIMEOUT_MS = 70_000
WHO = (0, 0, 0, 1, 1)
# Which producer id and epoch a request has: the newest known, those before, a later epoch, another producer's id, none.
IDS = {"now": 80, "before": 10, "ahead": 3, "stranger": 3, "none": 2}
SEQUENCES = {"next": 82, "again": 8, "gap": 5, "zero": 5}
CLIENTS = {
    2: {"produce": (12, 13), "end": (5,), "commit": (5,), "add": (3,)},
    1: {"produce": (9, 11), "end": (1, 3, 4), "commit": (2, 3, 4), "add": (0, 3)},
}
GROUPS = ("g", "h")
# A value that takes a while to check when it is decompressed. A batch of no records stands for one with it.
LARGE = bytes(2_000_000)


def sequence(rng: random.Random) -> list[Step]:
    """Steps of producers whose clients have one version, mostly."""
    length = rng.randint(8, 45)
    client = weighted(rng, {2: 45, 1: 40, 0: 15})
    steps = [Step("init", {"who": who, "version": 4, "ids": "none"}) for who in (0, 1)]
    while len(steps) < length:
        steps.append(one_step(rng, client or rng.choice((1, 2))))
    return steps


def one_step(rng: random.Random, client: int) -> Step:
    action = weighted(rng, {
        "init": 10, "add_partitions": 12, "add_offsets": 8, "commit_offsets": 12, "produce": 24, "end": 20,
        "describe": 3, "look": 4, "offsets": 4, "batched": 4, "flow": 4, "mark": 3,
        "enter": 3, "plain_commit": 5, "delete_group": 2, "delete_offsets": 2, "delete_records": 3, "replace_topic": 1,
    })  # fmt: skip
    who, versions = rng.choice(WHO), CLIENTS[client]
    ids = weighted(rng, IDS)
    if action == "init":
        ids = weighted(rng, {"none": 55, "now": 28, "before": 10, "ahead": 4, "stranger": 3})
        return Step("init", {"who": who, "version": rng.choice((2, 4, 5)), "ids": ids})
    if action == "add_partitions":
        partitions = rng.choice(([0], [0], [1], [0, 1], [0, 9]))
        return Step(action, {"who": who, "version": rng.choice(versions["add"]), "ids": ids, "partitions": partitions})
    if action == "batched":
        args = {"partitions": rng.choice(([0], [0, 1])), "verify": rng.random() < 0.5}
        return Step(action, {"who": who, "version": rng.choice((4, 5)), "ids": ids, **args})
    if action == "add_offsets":
        return Step(action, {"who": who, "version": rng.choice((1, 3, 4)), "ids": ids, "group": rng.choice(GROUPS)})
    if action == "commit_offsets":
        args = {"group": rng.choice(GROUPS), "partition": rng.randrange(PARTITIONS), "offset": rng.randrange(100)}
        args["member"] = weighted(rng, {"": 70, "it": 20, "late": 5, "who": 5})
        return Step(action, {"who": who, "version": rng.choice(versions["commit"]), "ids": ids, **args})
    if action == "produce":
        args = {
            "partition": rng.randrange(PARTITIONS),
            "sequence": weighted(rng, SEQUENCES),
            "count": rng.choice((1, 1, 2)),
        }
        args["flag"] = weighted(rng, {0x10: 95, 0: 5})
        return Step(action, {"who": who, "version": rng.choice(versions["produce"]), "ids": ids, **args})
    if action == "mark":
        # Later epochs than the coordinator's would keep a broker's transaction from its end (docs/gaps.md).
        args = {"ids": weighted(rng, {"now": 7, "before": 3}), "commit": rng.random() < 0.5}
        args |= {"version": rng.choice((1, 2)), "tv": rng.choice((0, 1, 2)), "coordinator": rng.choice((-1, 0))}
        return Step(action, {"who": who, "partitions": rng.choice(([0], [0, 1], [9])), **args})
    if action == "flow":
        counts = [rng.choice((0, 1, 1, 2, 2)) for _ in range(rng.randint(1, 5))]
        args = {"client": client, "counts": counts, "commit": rng.random() < 0.6}
        return Step(action, {"who": who, "partition": rng.randrange(PARTITIONS), **args})
    if action == "end":
        return Step(action, {
            "who": who, "version": rng.choice(versions["end"]), "ids": ids, "commit": rng.random() < 0.6
        })  # fmt: skip
    if action in ("enter", "delete_group", "delete_offsets"):
        return Step(action, {"group": rng.choice(GROUPS)})
    if action == "plain_commit":
        args = {"partition": rng.randrange(PARTITIONS), "member": rng.random() < 0.5}
        return Step(action, {"group": rng.choice(GROUPS), **args})
    if action == "delete_records":
        # Inside a batch of an open transaction, a broker's last stable offset is the deleted start of that batch.
        return Step(action, {"partition": rng.randrange(PARTITIONS), "offset": -1})
    if action == "replace_topic":
        return Step(action)
    if action == "offsets":
        args = {"group": rng.choice(GROUPS), "stable": rng.random() < 0.6}
        return Step(action, {"version": rng.choice((7, 8, 9)), **args})
    return Step(action, {"who": who} if action == "describe" else {"isolation": rng.choice((0, 1))})


class Producer:
    """What one producer knows: its ids, newest last, and what it sent to each partition."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.known: list[tuple[int, int]] = []
        self.next: dict[int, int] = {}
        self.last: dict[int, tuple[int, int]] = {}

    def learn(self, producer_id: int, epoch: int) -> None:
        if not self.known or self.known[-1] != (producer_id, epoch):
            self.known.append((producer_id, epoch))
            self.next.clear()
            self.last.clear()

    def sent(self, partition: int, first: int, count: int) -> None:
        self.next[partition] = first + count
        self.last[partition] = (first, count)


class Transactions:
    def __init__(self, talk: Talk, racing: bool = False) -> None:
        self.talk = talk
        self.racing = racing
        # Of each producer.
        self.timeouts_ms = [TIMEOUT_MS, TIMEOUT_MS]
        self.topic = f"{talk.prefix}-d"
        # Of each group one member, with its generation.
        self.members: dict[str, tuple[str, int]] = {}
        self.producers = [Producer(f"{talk.prefix}-{number}") for number in range(2)]

    def prepare(self) -> None:
        with self.talk.unrecorded():
            wait_for_transactions(self.talk)
            create_topic(self.talk, f"{self.talk.prefix}-t", 1)
            create_topic(self.talk, self.topic, PARTITIONS, FOREVER)

    def finish(self) -> None:
        for who in range(len(self.producers)):
            self.settle(who)
            self.describe(who)
        for isolation in (0, 1):
            self.look(isolation)
        for group in GROUPS:
            self.offsets(9, group, True)
        with self.talk.unrecorded():
            names = [self.topic, f"{self.talk.prefix}-t"]
            self.talk.ask("DeleteTopics", 5, {"topicNames": names, "timeoutMs": 5000})

    # ---- what requests are made of

    def ids(self, who: int, which: str) -> tuple[int, int]:
        known = self.producers[who].known
        if which == "none" or not known:
            return -1, -1
        producer_id, epoch = known[-1]
        if which == "before":
            return known[-2] if len(known) > 1 else (producer_id, max(epoch - 1, 0))
        if which == "stranger":
            other = self.producers[1 - who].known
            return (other[-1][0] if other else producer_id + 100_000), epoch
        return producer_id, epoch + (which == "ahead")

    def named(self, who: int, which: str, **fields: Any) -> dict[str, Any]:
        producer_id, epoch = self.ids(who, which)
        name = self.producers[who].transactional_id
        return {"transactionalId": name, "producerId": producer_id, "producerEpoch": epoch, **fields}

    def settle(self, who: int) -> None:
        """Waits until no end of the transaction is under way."""
        request = {"transactionalIds": [self.producers[who].transactional_id]}

        def done(answer: Any) -> bool:
            return answer["transactionStates"][0]["transactionState"] not in ENDING

        if not self.talk.until("DescribeTransactions", 0, request, done):
            self.talk.note("the transaction never ends")

    def maybe_settle(self, who: int) -> None:
        if not self.racing:
            self.settle(who)

    # ---- actions

    def init(self, who: int, version: int, ids: str) -> None:
        request = self.named(who, ids, transactionTimeoutMs=self.timeouts_ms[who])
        if version < 3:
            request["producerId"] = request["producerEpoch"] = -1
        answer = self.talk.ask("InitProducerId", version, request)
        if answer["errorCode"] == 0:
            self.producers[who].learn(answer["producerId"], answer["producerEpoch"])
        self.maybe_settle(who)

    def add_partitions(self, who: int, version: int, ids: str, partitions: list[int]) -> None:
        producer_id, epoch = self.ids(who, ids)
        request = {
            "v3AndBelowTransactionalId": self.producers[who].transactional_id,
            "v3AndBelowProducerId": producer_id,
            "v3AndBelowProducerEpoch": epoch,
            "v3AndBelowTopics": [{"name": self.topic, "partitions": partitions}],
        }
        sort_results(self.talk.ask("AddPartitionsToTxn", version, request)["resultsByTopicV3AndBelow"])

    def batched(self, who: int, version: int, ids: str, partitions: list[int], verify: bool) -> None:
        """AddPartitionsToTxn in the form of brokers."""
        topics = [{"name": self.topic, "partitions": partitions}]
        one = self.named(who, ids, topics=topics, verifyOnly=verify)
        for result in self.talk.ask("AddPartitionsToTxn", version, {"transactions": [one]})["resultsByTransaction"]:
            sort_results(result["topicResults"])

    def add_offsets(self, who: int, version: int, ids: str, group: str) -> None:
        self.talk.ask("AddOffsetsToTxn", version, self.named(who, ids, groupId=f"{self.talk.prefix}-{group}"))

    def commit_offsets(
        self, who: int, version: int, ids: str, group: str, partition: int, offset: int, member: str
    ) -> None:
        part = {"partitionIndex": partition, "committedOffset": offset, "committedMetadata": ""}
        known, generation = self.members.get(group, ("nobody", 1))
        late = generation - (member == "late")
        told = {"": ("", -1), "it": (known, late), "late": (known, late), "who": ("who", 1)}[member]
        request = self.named(
            who, ids, groupId=f"{self.talk.prefix}-{group}", memberId=told[0], generationId=told[1],
            groupInstanceId=None, topics=[{"name": self.topic, "partitions": [part]}],
        )  # fmt: skip
        if version < 3:
            request |= {"memberId": "", "generationId": -1}
        self.talk.ask("TxnOffsetCommit", version, request)

    def produce(self, who: int, version: int, ids: str, partition: int, sequence: str, count: int, flag: int) -> None:
        sent, first, count = self.send_batch(who, version, ids, partition, sequence, count, flag)
        answer = sent.answer()
        good = answer and answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0
        if good and ids == "now" and sequence != "again":
            self.producers[who].sent(partition, first, count)

    def send_batch(
        self, who: int, version: int, ids: str, partition: int, sequence: str, count: int, flag: int
    ) -> tuple[Pending, int, int]:
        """Sends a batch; the pending answer, and the batch's first sequence and count."""
        producer = self.producers[who]
        producer_id, epoch = self.ids(who, ids)
        if producer_id < 0:
            flag = 0  # a broker stores a transactional batch without a producer (docs/gaps.md)
        following = producer.next.get(partition, 0)
        first = {"next": following, "gap": following + 3, "zero": 0}.get(sequence, 0)
        if sequence == "again":
            first, count = producer.last.get(partition, (0, count))
        count, values, codec = (count, [b"x"] * count, 0) if count else (1, [LARGE], GZIP)
        records = batch_text(
            values, producer_id=producer_id, producer_epoch=epoch, attributes=flag | codec,
            base_sequence=first if producer_id >= 0 else -1,
        )  # fmt: skip
        request = {**produce_request(self.talk, self.topic, records, partition)}
        request["transactionalId"] = producer.transactional_id if flag else None
        sent = self.talk.send(self.talk.step, "Produce", version, request)
        part = sent.record["request"]["topicData"][0]["partitionData"][0]
        part["records"] = f"<{count} records, sequence {first}, epoch {epoch}, flags {flag}>"
        return sent, first, count

    def flow(self, who: int, client: int, partition: int, counts: list[int], commit: bool) -> None:
        """A whole transaction, whose requests do not wait for answers: they are handled in their order."""
        producer_id, epoch = self.ids(who, "now")
        name, versions, step = self.producers[who].transactional_id, CLIENTS[client], self.talk.step
        pending: list[Pending] = []
        if client == 1:
            pending.append(self.talk.send(step, "AddPartitionsToTxn", 3, {
                "v3AndBelowTransactionalId": name, "v3AndBelowProducerId": producer_id,
                "v3AndBelowProducerEpoch": epoch,
                "v3AndBelowTopics": [{"name": self.topic, "partitions": [partition]}],
            }))  # fmt: skip
        for wanted in counts:
            version = versions["produce"][-1]
            sent, first, count = self.send_batch(who, version, "now", partition, "next", wanted, 0x10)
            self.producers[who].sent(partition, first, count)
            pending.append(sent)
        end = self.named(who, "now", committed=commit)
        pending.append(self.talk.send(step, "EndTxn", versions["end"][-1], end))
        answer = [one.answer() for one in pending][-1]
        if client == 2 and answer["errorCode"] == 0:
            self.producers[who].learn(answer["producerId"], answer["producerEpoch"])
        self.maybe_settle(who)

    def end(self, who: int, version: int, ids: str, commit: bool) -> None:
        answer = self.talk.ask("EndTxn", version, self.named(who, ids, committed=commit))
        if version >= 5 and answer["errorCode"] == 0:
            self.producers[who].learn(answer["producerId"], answer["producerEpoch"])
        self.maybe_settle(who)

    def mark(
        self, who: int, version: int, ids: str, partitions: list[int], commit: bool, tv: int, coordinator: int
    ) -> None:
        """A tool ends a transaction in some partitions, without its coordinator."""
        producer_id, epoch = self.ids(who, ids)
        topics = [{"name": self.topic, "partitionIndexes": partitions}]
        marker = {
            "producerId": max(producer_id, 0), "producerEpoch": max(epoch, 0), "transactionResult": commit,
            "topics": topics, "coordinatorEpoch": coordinator, "transactionVersion": tv,
        }  # fmt: skip
        self.talk.ask("WriteTxnMarkers", version, {"markers": [marker]})

    # ---- others

    def enter(self, group: str) -> None:
        """A member of its own joins the group, or joins again, and syncs."""
        name = f"{self.talk.prefix}-{group}"
        member = self.members.get(group, ("", 0))[0]
        for _ in range(2):
            request = join_request(name, member, sessionTimeoutMs=60000)
            joined = self.talk.ask("JoinGroup", 5, request, on=group)
            member = joined["memberId"] or member
        self.members[group] = (member, joined["generationId"])
        given = [{"memberId": member, "assignment": ""}]
        request = {"groupId": name, "generationId": joined["generationId"], "memberId": member, "assignments": given}
        self.talk.ask("SyncGroup", 3, request, on=group)

    def plain_commit(self, group: str, partition: int, member: bool) -> None:
        """An offset outside of transactions."""
        known, generation = self.members.get(group, ("", -1)) if member else ("", -1)
        part = {"partitionIndex": partition, "committedOffset": 1, "committedMetadata": ""}
        request = {
            "groupId": f"{self.talk.prefix}-{group}", "generationIdOrMemberEpoch": generation, "memberId": known,
            "topics": [{"name": self.topic, "partitions": [part]}],
        }  # fmt: skip
        self.talk.ask("OffsetCommit", 7, request)

    def delete_group(self, group: str) -> None:
        self.talk.ask("DeleteGroups", 2, {"groupsNames": [f"{self.talk.prefix}-{group}"]})

    def delete_offsets(self, group: str) -> None:
        topics = [{"name": self.topic, "partitions": [{"partitionIndex": 0}]}]
        self.talk.ask("OffsetDelete", 0, {"groupId": f"{self.talk.prefix}-{group}", "topics": topics})

    def delete_records(self, partition: int, offset: int) -> None:
        part = {"partitionIndex": partition, "offset": offset}
        request = {"topics": [{"name": self.topic, "partitions": [part]}], "timeoutMs": 5000}
        self.talk.ask("DeleteRecords", 2, request)

    def replace_topic(self) -> None:
        """Another topic of the same name, maybe within a transaction."""
        self.talk.ask("DeleteTopics", 5, {"topicNames": [self.topic], "timeoutMs": 5000})
        self.talk.published()
        with self.talk.unrecorded():
            create_topic(self.talk, self.topic, PARTITIONS, FOREVER)
        self.talk.published()

    # ---- looking

    def describe(self, who: int) -> None:
        request = {"transactionalIds": [self.producers[who].transactional_id]}
        answer = self.talk.ask("DescribeTransactions", 0, request)
        for state in answer["transactionStates"]:
            for topic in state["topics"]:
                topic["partitions"].sort()
            state["topics"].sort(key=lambda topic: str(topic["topic"]))

    def look(self, isolation: int) -> None:
        """What readers see, and which producers a partition knows."""
        parts = list(range(PARTITIONS))
        times = [{"partitionIndex": number, "timestamp": -1} for number in parts]
        request = {"replicaId": -1, "isolationLevel": isolation, "topics": [{"name": self.topic, "partitions": times}]}
        self.talk.ask("ListOffsets", 7, request)
        self.talk.ask("DescribeProducers", 0, {"topics": [{"name": self.topic, "partitionIndexes": parts}]})
        for number in parts:
            asked = fetch_request(self.talk, self.topic, 0, number, isolationLevel=isolation)
            answer = self.talk.ask("Fetch", 12, asked)
            for one in answer["responses"]:
                for part in one["partitions"]:
                    if part["records"]:
                        part["records"] = batches_text(base64.b64decode(part["records"]))

    def offsets(self, version: int, group: str, stable: bool) -> None:
        topics = [{"name": self.topic, "partitionIndexes": list(range(PARTITIONS))}]
        name = f"{self.talk.prefix}-{group}"
        if version < 8:
            request: dict[str, Any] = {"groupId": name, "topics": topics, "requireStable": stable}
        else:
            request = {"groups": [{"groupId": name, "topics": topics}], "requireStable": stable}
        self.talk.ask("OffsetFetch", version, request)


KIND = Kind("transactions", sequence, Transactions)
RACING = Kind("racing", sequence, lambda talk: Transactions(talk, racing=True))
