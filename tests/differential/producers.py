"""Random histories of idempotent producers that have several connections, and requests in flight on each.

A broker handles the requests of one connection in their order, so a burst on one connection has one outcome. The same
batches on two connections have one as well: whichever comes first, the other one is a repetition. Topics are deleted
and created again meanwhile, records are deleted, and segments retire. A producer bumps its epoch itself, as clients do.
"""

from __future__ import annotations

import random
from typing import Any

from tests.differential.data import FOREVER, PARTITIONS, Data
from tests.differential.sequence import Kind, Step, steps_after, weighted
from tests.differential.transactions import LARGE
from tests.harness.batches import BASE_TIME_MS, GZIP, batch_text
from tests.harness.broker_scripts_data import produce_request
from tests.harness.script_steps import create_topic
from tests.harness.session import Pending

SEQUENCE_END = 1 << 31
CONNECTIONS = ("a", "b", "c")
# A partition knows so many batches of a producer.
KEPT = 5
SEQUENCES = {"next": 62, "again": 18, "gap": 5, "zero": 3, "inside": 4, "both": 4, "edge": 4}
EPOCHS = {0: 88, -1: 8, 1: 4}
VERSIONS = (7, 9, 11, 12, 13)


def sequence(rng: random.Random) -> list[Step]:
    first = [Step("renew", {"who": who, "version": 4, "ids": "none"}) for who in (0, 1)]
    return steps_after(rng, first, 8, 30, one_step)


def one_step(rng: random.Random) -> Step:
    action = weighted(rng, {
        "burst": 52, "race": 8, "bump": 7, "renew": 3, "hang_up": 4, "delete_records": 6, "retire": 3, "replace": 3,
        "producers_of": 5, "several": 5,
    })  # fmt: skip
    who, partition = rng.randrange(2), rng.choice((0, 0, 0, 1))
    if action == "burst":
        batches = [one_batch(rng) for _ in range(rng.choice((1, 1, 2, 3, 5, 7)))]
        args: dict[str, Any] = {"on": rng.choice(CONNECTIONS), "batches": batches}
        return Step(action, {"who": who, "partition": partition, "version": rng.choice(VERSIONS), **args})
    if action == "race":
        args = {"counts": [rng.choice((1, 2, 3, 0)) for _ in range(rng.randint(1, KEPT))]}
        return Step(action, {"who": who, "partition": partition, "version": rng.choice(VERSIONS), **args})
    if action == "several":
        return Step(action, {"who": who, "version": rng.choice(VERSIONS), "batches": [one_batch(rng), one_batch(rng)]})
    if action == "renew":
        return Step(action, {"who": who, "version": 4, "ids": "none"})
    if action == "delete_records":
        return Step(action, {"partition": partition, "offset": rng.choice((-1, -1, 1, 2, 5))})
    if action == "hang_up":
        return Step(action, {"on": rng.choice(CONNECTIONS)})
    return Step(action, {"who": who} if action == "bump" else {})


def one_batch(rng: random.Random) -> dict[str, Any]:
    """No records stand for a large one; `back` is how many batches before the newest is meant, if that matters."""
    return {
        "sequence": weighted(rng, SEQUENCES), "epoch": weighted(rng, EPOCHS), "count": rng.choice((1, 1, 2, 3, 0)),
        "back": rng.choice((0, 0, 1, 2, 3, 4, 5, 6)),
    }  # fmt: skip


class Producers(Data):
    """`producers[who].sent` has the batches of the current epoch in their order, as first sequence and count."""

    # ---- actions

    def bump(self, who: int) -> None:
        """The next epoch of the same producer id, without asking anybody."""
        producer = self.producers[who]
        producer_id, epoch = producer.known[-1] if producer.known else (-1, -1)
        producer.known.append((producer_id, epoch + 1))
        producer.sent.clear()
        self.talk.note("a new epoch")

    def hang_up(self, on: str) -> None:
        self.talk.hang_up(on)
        self.talk.note("closed")

    def burst(self, who: int, partition: int, version: int, on: str, batches: list[dict[str, Any]]) -> None:
        """Requests that are sent without waiting for each other's answers."""
        sent = [self.post_batch(version, partition, self.made(who, partition, **one), on) for one in batches]
        for pending in sent:
            pending.answer()

    def race(self, who: int, partition: int, version: int, counts: list[int]) -> None:
        """The next batches, on two connections at the same time."""
        pending: list[Pending] = []
        for count in counts:
            made = self.made(who, partition, "next", 0, count, 0)
            for on in ("a", "b"):
                pending.append(self.post_batch(version, partition, made, on))
        answers = [one.answer() for one in pending]
        for pair in zip(answers[::2], answers[1::2], strict=True):
            parts = [answer["responses"][0]["partitionResponses"][0] for answer in pair]
            # The repetition is answered with the batch's timestamp.
            times = sorted(part["logAppendTimeMs"] for part in parts)
            for part, time_ms in zip(parts, times, strict=True):
                part["logAppendTimeMs"] = time_ms

    def several(self, who: int, version: int, batches: list[dict[str, Any]]) -> None:
        """One request for several partitions."""
        made = [self.made(who, partition, **one) for partition, one in enumerate(batches)]
        request = produce_request(self.talk, self.topic, made[0][0])
        data = [{"index": partition, "records": records} for partition, (records, _) in enumerate(made)]
        request["topicData"][0]["partitionData"] = data
        pending = self.talk.send(self.talk.step, "Produce", version, request)
        for part, (_, text) in zip(pending.record["request"]["topicData"][0]["partitionData"], made, strict=True):
            part["records"] = text
        pending.answer()

    def replace(self) -> None:
        """Another topic of the same name: it knows no producer."""
        self.talk.ask("DeleteTopics", 5, {"topicNames": [self.topic], "timeoutMs": 5000})
        self.talk.published()
        with self.talk.unrecorded():
            create_topic(self.talk, self.topic, PARTITIONS, FOREVER)
        self.talk.published()

    def retire(self) -> None:
        """All segments are older than their retention, and go; the producers stay known."""
        self.configure("retention.ms", "1")
        times = [{"partitionIndex": one, "timestamp": -2} for one in range(PARTITIONS)]
        request = {"replicaId": -1, "topics": [{"name": self.topic, "partitions": times}]}
        latest = {
            **request,
            "topics": [{"name": self.topic, "partitions": [{**one, "timestamp": -1} for one in times]}],
        }
        with self.talk.unrecorded():
            ends = offsets(self.talk.ask("ListOffsets", 7, latest))
        if not self.talk.until("ListOffsets", 7, request, lambda answer: offsets(answer) == ends):
            self.talk.note("the segments never go")
        self.configure("retention.ms", "-1")

    # ---- what requests are made of

    def asking(self, timestamp: int) -> dict[str, Any]:
        parts = [{"partitionIndex": one, "timestamp": timestamp} for one in range(PARTITIONS)]
        return {"replicaId": -1, "topics": [{"name": self.topic, "partitions": parts}]}

    def made(self, who: int, partition: int, sequence: str, epoch: int, count: int, back: int) -> tuple[str, str]:
        """A batch, and what the record of the request says about it."""
        producer = self.producers[who]
        is_large, count = count == 0, count or 1
        batches = producer.sent.setdefault(partition, [])
        following = sum(batches[-1]) % SEQUENCE_END if batches else 0
        first = {"next": following, "gap": (following + 1 + back) % SEQUENCE_END, "zero": 0}.get(sequence, following)
        if sequence == "edge" and not batches:
            first = SEQUENCE_END - 1 - back % 3
        if sequence == "again" and batches:
            first, count = batches[-1 - min(back, len(batches) - 1)]
        elif sequence == "both" and len(batches) > 1:
            first, count = batches[-2][0], batches[-2][1] + batches[-1][1]
        elif sequence == "inside" and batches:
            first, count = sum(batches[-1]) - 1, 1
        producer_id, known = producer.known[-1] if producer.known else (-1, -1)
        told = max(known + epoch, 0) if producer_id >= 0 else -1
        if sequence in ("next", "edge") and epoch == 0:
            batches.append((first, count))
        values, codec = ([LARGE], GZIP) if is_large and count == 1 else ([b"v"] * count, 0)
        records = batch_text(
            values, attributes=codec, producer_id=producer_id, producer_epoch=told, base_time_ms=BASE_TIME_MS,
            base_sequence=first % SEQUENCE_END if producer_id >= 0 else -1,
        )  # fmt: skip
        return records, f"<{count} records, sequence {first}, epoch {told}>"

    def post_batch(self, version: int, partition: int, made: tuple[str, str], on: str) -> Pending:
        request = produce_request(self.talk, self.topic, made[0], partition)
        pending = self.talk.send(self.talk.step, "Produce", version, request, on)
        pending.record["request"]["topicData"][0]["partitionData"][0]["records"] = made[1]
        return pending


def offsets(answer: dict[str, Any]) -> list[int]:
    return [part["offset"] for part in answer["topics"][0]["partitions"]]


KIND = Kind("producers", sequence, Producers)
