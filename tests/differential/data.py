"""Random histories of records: sequences of idempotent producers, odd times, deleted records and deleted topics."""

from __future__ import annotations

import base64
import random
from typing import Any

from kcoord.wire.record_batch import HEADER_BYTES, parse_header
from tests.differential.sequence import Kind, Step, steps_after, weighted
from tests.differential.talk import Talk
from tests.harness.batches import BASE_TIME_MS, batch_text
from tests.harness.broker_scripts_data import fetch_request, list_request, produce_request, wait_for_producer_ids
from tests.harness.broker_scripts_transactions import batches_text
from tests.harness.script_steps import create_topic, wait_for_coordinator

FOREVER = {"retention.ms": "-1", "segment.ms": "100000000000000"}
PARTITIONS = 2
PLACES = (0, 0, 0, 1, 5)
TIMES = (0, 0, 0, 5000, -3000, 1000)
ODD_TIMES = (
    -1,
    -2,
    -3,
    -3,
    -4,
    -5,
    -6,
    -9,
    0,
    1,
    BASE_TIME_MS,
    BASE_TIME_MS + 1,
    BASE_TIME_MS + 5500,
    BASE_TIME_MS - 10**6,
)
SEQUENCES = {"next": 70, "again": 12, "older": 5, "gap": 6, "zero": 5, "overlap": 2}
CONFIGS = (
    ("message.timestamp.type", "LogAppendTime"), ("message.timestamp.type", "CreateTime"), ("max.message.bytes", "100"),
    ("max.message.bytes", "100000"), ("cleanup.policy", "compact"), ("cleanup.policy", "delete"),
    ("message.timestamp.after.max.ms", "1000"), ("message.timestamp.before.max.ms", "1000"),
)  # fmt: skip


def sequence(rng: random.Random) -> list[Step]:
    return steps_after(rng, [Step("renew", {"who": 0, "version": 4, "ids": "none"})], 10, 45, one_step)


def one_step(rng: random.Random) -> Step:
    action = weighted(rng, {
        "produce": 20, "send": 28, "renew": 6, "times": 12, "delete_records": 8, "fetch": 14, "epochs": 3,
        "producers_of": 4, "configure": 3, "replace_topic": 2, "commit": 4, "committed": 4, "again_after": 3,
        "session": 14,
    })  # fmt: skip
    place = rng.choice(PLACES)
    if action == "produce":
        args = {"count": rng.choice((1, 1, 2, 3)), "later_ms": rng.choice(TIMES), "key": rng.random() < 0.5}
        return Step(action, {"partition": place, "version": rng.choice((3, 9, 12, 13)), **args})
    if action == "send":
        args = {"count": rng.choice((1, 1, 2)), "sequence": weighted(rng, SEQUENCES)}
        args["epoch"] = weighted(rng, {0: 86, -1: 6, 1: 8})
        version = rng.choice((7, 9, 11, 12, 13))
        return Step(action, {"who": rng.randrange(2), "partition": rng.randrange(2), "version": version, **args})
    if action == "renew":
        ids = weighted(rng, {"none": 40, "now": 45, "before": 15})
        return Step(action, {"who": rng.randrange(2), "version": rng.choice((2, 3, 4, 5)), "ids": ids})
    if action == "times":
        args = {
            "timestamp": rng.choice(ODD_TIMES),
            "isolation": rng.choice((0, 1)),
            "epoch": weighted(rng, {-1: 9, 0: 2, 4: 1}),
        }
        return Step(action, {"partition": place, "version": rng.choice((1, 4, 7, 8, 10)), **args})
    if action == "delete_records":
        return Step(action, {"partition": place, "offset": rng.choice((0, 1, 2, 3, 5, 8, -1, -1, -2, 1000))})
    if action == "fetch":
        args = {"offset": rng.choice((0, 0, 1, 2, 3, 6, -1, 500)), "isolation": rng.choice((0, 1))}
        args["size"] = rng.choice((1 << 20, 1 << 20, 100, 1, 0))
        return Step(action, {"partition": place, "version": rng.choice((4, 7, 11, 12, 13, 16)), **args})
    if action == "epochs":
        args = {"epoch": rng.choice((-1, 0, 0, 1, 7)), "current": rng.choice((-1, 0, 3))}
        return Step(action, {"partition": place, "version": rng.choice((2, 3, 4)), **args})
    if action == "configure":
        return Step(action, dict(zip(("name", "value"), rng.choice(CONFIGS), strict=True)))
    if action == "commit":
        return Step(action, {"partition": place, "version": rng.choice((2, 6, 9, 10)), "offset": rng.randrange(50)})
    if action == "committed":
        return Step(action, {"version": rng.choice((1, 5, 7, 8, 9, 10)), "everything": rng.random() < 0.5})
    if action == "session":
        partitions = rng.choice(([], [], [0], [1], [0, 1], [5]))
        forget = rng.choice((None, None, None, 0, 1))
        fields = {"version": rng.choice((7, 11, 12, 13, 16)), "offset": rng.choice((0, 0, 1, 2, 4, 99))}
        fields["mode"] = weighted(rng, {"new": 20, "next": 62, "before": 6, "ahead": 4, "end": 4, "other": 4})
        return Step(action, {"partitions": partitions, "forget": forget, **fields})
    if action == "again_after":
        return Step(action, {"who": rng.randrange(2), "partition": rng.randrange(2), "version": rng.choice((9, 13))})
    return Step(action, {})


def records_text(records: bytes) -> str:
    """Whole batches as text. A broker may add a part of the next one, which clients drop; kcoord does not."""
    whole = 0
    while len(records) - whole > HEADER_BYTES and whole + parse_header(records, whole).size <= len(records):
        whole += parse_header(records, whole).size
    return batches_text(records[:whole])


class Producer:
    """Ids that an idempotent producer got, newest last, and the batches that were taken from it, by partition."""

    def __init__(self) -> None:
        self.known: list[tuple[int, int]] = []
        self.sent: dict[int, list[tuple[int, int]]] = {}


class Data:
    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.topic, self.group = f"{talk.prefix}-d", f"{talk.prefix}-g"
        self.producers = [Producer(), Producer()]
        # Id and next epoch of the fetch session.
        self.session_now = (0, 0)

    def prepare(self) -> None:
        with self.talk.unrecorded():
            wait_for_coordinator(self.talk)
            wait_for_producer_ids(self.talk)
            create_topic(self.talk, f"{self.talk.prefix}-t", 1)
            create_topic(self.talk, self.topic, PARTITIONS, FOREVER)

    def finish(self) -> None:
        self.producers_of()
        for partition in range(PARTITIONS):
            self.fetch(partition, 12, 0, 0, 1 << 20)
            self.times(partition, 7, -2, 0, -1)
            self.times(partition, 7, -1, 1, -1)
        self.committed(9, True)
        with self.talk.unrecorded():
            names = [self.topic, f"{self.talk.prefix}-t"]
            self.talk.ask("DeleteTopics", 5, {"topicNames": names, "timeoutMs": 5000})

    # ---- producing

    def append(self, partition: int, version: int, records: str, text: str) -> bool:
        answer = self.talk.ask("Produce", version, produce_request(self.talk, self.topic, records, partition))
        self.talk.last_step()["request"]["topicData"][0]["partitionData"][0]["records"] = f"<{text}>"
        return bool(answer) and answer["responses"][0]["partitionResponses"][0]["errorCode"] == 0

    def produce(self, partition: int, version: int, count: int, later_ms: int, key: bool) -> None:
        records = batch_text([b"v"] * count, key=b"k" if key else None, base_time_ms=BASE_TIME_MS + later_ms)  # type: ignore[arg-type]
        self.append(partition, version, records, f"{count} records {later_ms} ms later, key {key}")

    def ids(self, who: int, which: str) -> tuple[int, int]:
        known = self.producers[who].known
        if which == "none" or not known:
            return -1, -1
        return known[-2] if which == "before" and len(known) > 1 else known[-1]

    def renew(self, who: int, version: int, ids: str) -> None:
        producer_id, epoch = self.ids(who, ids) if version >= 3 else (-1, -1)
        request = {
            "transactionalId": None,
            "transactionTimeoutMs": 60000,
            "producerId": producer_id,
            "producerEpoch": epoch,
        }
        answer = self.talk.ask("InitProducerId", version, request)
        if answer["errorCode"] == 0:
            self.producers[who].known.append((answer["producerId"], answer["producerEpoch"]))
            self.producers[who].sent.clear()

    def send(self, who: int, partition: int, version: int, count: int, sequence: str, epoch: int) -> None:
        sent = self.producers[who].sent.get(partition, [])
        following = sent[-1][0] + sent[-1][1] if sent else 0
        first = {"next": following, "gap": following + 2, "zero": 0, "overlap": max(following - 1, 0)}.get(sequence, 0)
        if sent and sequence in ("again", "older"):
            first, count = sent[-1] if sequence == "again" else sent[-min(len(sent), 6)]
        self.sent(who, partition, version, first, count, epoch)

    def again_after(self, who: int, partition: int, version: int) -> None:
        """All its newest batches again, in their order."""
        for first, count in self.producers[who].sent.get(partition, [])[-7:]:
            self.sent(who, partition, version, first, count, 0)
        self.talk.note("that was all")

    def sent(self, who: int, partition: int, version: int, first: int, count: int, epoch: int) -> None:
        producer_id, known = self.ids(who, "now")
        told = max(known + epoch, 0) if producer_id >= 0 else -1
        records = batch_text(
            [b"v"] * count, producer_id=producer_id, producer_epoch=told,
            base_sequence=first if producer_id >= 0 else -1,
        )  # fmt: skip
        good = self.append(partition, version, records, f"{count} records, sequence {first}, epoch {told}")
        batches = self.producers[who].sent.setdefault(partition, [])
        if good and not epoch and (first, count) not in batches:
            batches.append((first, count))

    # ---- reading

    def times(self, partition: int, version: int, timestamp: int, isolation: int, epoch: int) -> None:
        request = list_request(self.talk, self.topic, timestamp, partition, currentLeaderEpoch=epoch)
        self.talk.ask("ListOffsets", version, {**request, "isolationLevel": isolation if version >= 2 else 0})

    def fetch(self, partition: int, version: int, offset: int, isolation: int, size: int) -> None:
        fields = {"isolationLevel": isolation, "partitionMaxBytes": size}
        self.fetched(version, fetch_request(self.talk, self.topic, offset, partition, **fields))

    def fetched(self, version: int, request: dict[str, Any]) -> Any:
        answer = self.talk.ask("Fetch", version, request)
        for one in answer["responses"]:
            for part in one["partitions"]:
                if part["records"]:
                    part["records"] = records_text(base64.b64decode(part["records"]))
        return answer

    def session(self, mode: str, partitions: list[int], forget: int | None, offset: int, version: int) -> None:
        """A Fetch of a session (KIP-227): it names the partitions that are new or that go."""
        number, epoch = self.session_now
        told = {"new": (0, 0), "before": (number, max(epoch - 1, 1)), "ahead": (number, epoch + 1), "end": (number, -1)}
        number, epoch = (number + 1, 1) if mode == "other" else told.get(mode, (number, epoch))
        named = {"topic": self.topic, "topicId": self.talk.topic_ids[self.topic]}
        parts = [{"partition": one, "fetchOffset": offset, "partitionMaxBytes": 1 << 20} for one in partitions]
        gone = [] if forget is None else [{**named, "partitions": [forget]}]
        answer = self.fetched(version, {
            "maxWaitMs": 0, "minBytes": 0, "maxBytes": 1 << 20, "sessionId": number, "sessionEpoch": epoch,
            "topics": [{**named, "partitions": parts}] if parts else [], "forgottenTopicsData": gone,
        })  # fmt: skip
        if answer["errorCode"] == 0:
            self.session_now = (answer["sessionId"], epoch + 1) if answer["sessionId"] else (0, 0)

    def epochs(self, partition: int, version: int, epoch: int, current: int) -> None:
        part = {"partition": partition, "currentLeaderEpoch": current, "leaderEpoch": epoch}
        self.talk.ask("OffsetForLeaderEpoch", version, {
            "replicaId": -2, "topics": [{"topic": self.topic, "partitions": [part]}]
        })  # fmt: skip

    def producers_of(self) -> None:
        topics = [{"name": self.topic, "partitionIndexes": list(range(PARTITIONS))}]
        self.talk.ask("DescribeProducers", 0, {"topics": topics})

    # ---- changing

    def delete_records(self, partition: int, offset: int) -> None:
        part = {"partitionIndex": partition, "offset": offset}
        request = {"topics": [{"name": self.topic, "partitions": [part]}], "timeoutMs": 5000}
        self.talk.ask("DeleteRecords", 2, request)

    def configure(self, name: str, value: str) -> None:
        config = {"name": name, "configOperation": 0, "value": value}
        resource = {"resourceType": 2, "resourceName": self.topic, "configs": [config]}
        self.talk.ask("IncrementalAlterConfigs", 1, {"resources": [resource]})
        self.talk.published()

    def replace_topic(self) -> None:
        """The topic is deleted, and there again under the same name; the next requests name the old id."""
        old = self.talk.topic_ids[self.topic]
        self.talk.ask("DeleteTopics", 5, {"topicNames": [self.topic], "timeoutMs": 5000})
        self.talk.published()
        self.produce(0, 13, 1, 0, False)
        self.times(0, 7, -1, 0, -1)
        self.committed(9, False)
        self.commit(0, 9, 3)
        with self.talk.unrecorded():
            create_topic(self.talk, self.topic, PARTITIONS, FOREVER)
        self.talk.published()
        new, self.talk.topic_ids[self.topic] = self.talk.topic_ids[self.topic], old
        self.produce(0, 13, 1, 0, False)
        self.fetch(0, 13, 0, 0, 1 << 20)
        self.commit(0, 10, 5)
        self.talk.topic_ids[self.topic] = new

    # ---- committed offsets

    def commit(self, partition: int, version: int, offset: int) -> None:
        part = {"partitionIndex": partition, "committedOffset": offset, "committedMetadata": "m"}
        topic = {"name": self.topic, "topicId": self.talk.topic_ids[self.topic], "partitions": [part]}
        request = {"groupId": self.group, "generationIdOrMemberEpoch": -1, "memberId": "", "topics": [topic]}
        self.talk.ask("OffsetCommit", version, request)

    def committed(self, version: int, everything: bool) -> None:
        one: dict[str, Any] = {"name": self.topic, "partitionIndexes": [0, 1, 5]}
        if version >= 8:
            one["topicId"] = self.talk.topic_ids[self.topic]
        topics = None if everything and version >= 2 else [one]
        if version < 8:
            request: dict[str, Any] = {"groupId": self.group, "topics": topics}
        else:
            request = {"groups": [{"groupId": self.group, "topics": topics}]}
        self.talk.ask("OffsetFetch", version, request)


KIND = Kind("data", sequence, Data)
