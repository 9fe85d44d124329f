"""Random histories of changed configs: what may be written then, how it is kept, and when members of groups go.

Beside old timestamps, batches have those of now, of an hour ago and of later today, for the limits of timestamps.
"""

from __future__ import annotations

import base64
import random
import time
from typing import Any

from kcoord.wire.record_batch import LOG_APPEND_TIME_FLAG, decode_records, parse_header
from tests.differential.admin import BROKER, GROUP, TOPIC
from tests.differential.data import Data
from tests.differential.sequence import Kind, Step, steps_after, weighted
from tests.differential.talk import Talk
from tests.harness.batches import BASE_TIME_MS, batch

DELETE = 1
HOUR_MS = 3_600_000
# What a batch has for a time: in milliseconds from now, or old, or none.
TIMES = {"old": 30, "none": 10, 0: 30, -HOUR_MS: 10, HOUR_MS // 2: 5, 2 * HOUR_MS: 5, -5000: 5, 5000: 5}
CODECS = {0: 60, 1: 40}
# Attributes that a batch has, beside those that clients set: LogAppendTime, control records, a time of deletion.
ODD = {0: 80, LOG_APPEND_TIME_FLAG: 8, 0x20: 4, 0x40: 4}
SIZES = {1: 50, 60: 20, 400: 20, 3000: 10}
TOPIC_CONFIGS: dict[str, tuple[str, ...]] = {
    "cleanup.policy": ("compact", "delete", "compact,delete", "delete,compact", ""),
    "max.message.bytes": ("0", "69", "100", "150", "500", "1048588"),
    "message.timestamp.type": ("LogAppendTime", "CreateTime"),
    "message.timestamp.before.max.ms": ("500", "1000", "4000000", "9223372036854775807", "-1"),
    "message.timestamp.after.max.ms": ("0", "1000", "4000000", "9223372036854775807"),
    "compression.type": ("gzip", "uncompressed", "producer", "zstd", "lz4", "snappy", "none"),
    "compression.gzip.level": ("1", "-1", "0", "9"),
    "segment.bytes": ("1048576", "1073741824", "100"),
    "message.format.version": ("3.0",),
}
GROUP_CONFIGS: dict[str, tuple[str, ...]] = {
    "consumer.session.timeout.ms": ("1000", "1500", "45000", "999", "60001", "60000", "5"),
    "consumer.heartbeat.interval.ms": ("100", "900", "5000", "15001", "99", "1000", "60000"),
    "consumer.assignment.interval.ms": ("0", "1000", "15000", "-1"),
    "consumer.assignor.offload.enable": ("true",),
}
# Defaults of topics, for every broker or for this one. They hold for a broker's own topics as well, whose records have
# some hundred bytes.
BROKER_CONFIGS: dict[str, tuple[str, ...]] = {
    "message.max.bytes": ("2000", "1048588", "-1"),
    "compression.type": ("gzip", "producer", "uncompressed", "nonsense"),
    "log.message.timestamp.type": ("LogAppendTime", "CreateTime"),
    "log.message.timestamp.before.max.ms": ("1000", "4000000"),
    "log.message.timestamp.after.max.ms": ("1000", "4000000", "x"),
    "log.cleanup.policy": ("compact", "delete", "compact,delete"),
    "log.segment.bytes": ("1048576", "1073741824"),
}
BROKERS = ("", "1")
CONFIGS_OF = {TOPIC: TOPIC_CONFIGS, GROUP: GROUP_CONFIGS, BROKER: BROKER_CONFIGS}
EPOCHS = {0: 80, -1: 10, 1: 10}


def sequence(rng: random.Random) -> list[Step]:
    return steps_after(rng, [Step("renew", {"who": 0, "version": 4, "ids": "none"})], 8, 30, one_step)


def one_step(rng: random.Random) -> Step:
    action = weighted(rng, {
        "change": 30, "write": 34, "configs": 6, "read": 8, "times": 5, "join": 4, "beat": 8, "idle": 1, "send": 4,
    })  # fmt: skip
    kind = weighted(rng, {TOPIC: 60, GROUP: 25, BROKER: 15})
    broker = rng.choice(BROKERS)
    if action == "change":
        known = CONFIGS_OF[kind]
        names = rng.sample(list(known), rng.choice((1, 1, 1, 2)))
        made = [(name, None if rng.random() < 0.25 else rng.choice(known[name])) for name in names]
        return Step(action, {"kind": kind, "made": made, "broker": broker})
    if action == "write":
        args = {"at": weighted(rng, TIMES), "codec": weighted(rng, CODECS), "size": weighted(rng, SIZES)}
        args |= {"count": rng.choice((1, 1, 2, 3)), "key": rng.random() < 0.5, "odd": weighted(rng, ODD)}
        if args["odd"] == LOG_APPEND_TIME_FLAG:
            # A broker that changes the codec of such a batch also changes the timestamps of its records.
            args["count"] = 1
        args |= {"twice": rng.random() < 0.04, "torn": rng.random() < 0.04, "crc": rng.random() < 0.03}
        return Step(action, {"partition": rng.randrange(2), "version": rng.choice((3, 6, 7, 9, 12, 13)), **args})
    if action == "send":
        args = {"count": 1, "sequence": rng.choice(("next", "again")), "epoch": 0}
        return Step(action, {"who": 0, "partition": rng.randrange(2), "version": rng.choice((9, 13)), **args})
    if action == "configs":
        args = {"synonyms": rng.random() < 0.5, "version": rng.choice((1, 3, 4)), "broker": broker}
        return Step(action, {"kind": kind, **args})
    if action == "read":
        return Step(action, {"partition": rng.randrange(2)})
    if action == "times":
        args = {"timestamp": rng.choice((-1, -2, -3, -3, BASE_TIME_MS, BASE_TIME_MS + 1500)), "isolation": 0}
        return Step(action, {"partition": rng.randrange(2), "version": 8, **args, "epoch": -1})
    if action == "beat":
        return Step(action, {"epoch": weighted(rng, EPOCHS)})
    return Step(action, {})


class Configs(Data):
    def __init__(self, talk: Talk) -> None:
        super().__init__(talk)
        self.member_epoch = 0

    def finish(self) -> None:
        for partition in range(2):
            self.read(partition)
            self.times(partition, 8, -3, 0, -1)
        for kind in (TOPIC, GROUP, BROKER):
            self.configs(kind, True, 4, "1")
        for broker in BROKERS:
            self.change(BROKER, [(name, None) for name in BROKER_CONFIGS], broker)
        super().finish()

    # ---- configs

    def resource(self, kind: int, broker: str) -> dict[str, Any]:
        return {"resourceType": kind, "resourceName": {TOPIC: self.topic, GROUP: self.group, BROKER: broker}[kind]}

    def change(self, kind: int, made: list[tuple[str, str | None]], broker: str) -> None:
        """Sets values, or removes them."""
        given = [{"name": name, "configOperation": 0 if value else DELETE, "value": value} for name, value in made]
        self.talk.ask("IncrementalAlterConfigs", 1, {"resources": [{**self.resource(kind, broker), "configs": given}]})
        self.talk.published()

    def configs(self, kind: int, synonyms: bool, version: int, broker: str) -> None:
        resource = {**self.resource(kind, broker), "configurationKeys": list(CONFIGS_OF[kind])}
        self.talk.ask("DescribeConfigs", version, {"resources": [resource], "includeSynonyms": synonyms})

    # ---- records

    def write(
        self, partition: int, version: int, at: str | int, codec: int, size: int, count: int, key: bool, odd: int,
        twice: bool, torn: bool, crc: bool,
    ) -> None:  # fmt: skip
        now_ms = int(time.time() * 1000)
        time_ms = {"old": BASE_TIME_MS, "none": -1}.get(str(at), now_ms + at if isinstance(at, int) else 0)
        records = batch(
            [b"v" * size] * count, key=b"k" if key else None, base_time_ms=time_ms, attributes=codec | odd,
            break_crc=crc,
        )  # fmt: skip
        whole = records * (2 if twice else 1)
        text = f"{count} records of {size} bytes at {at}, codec {codec}, key {key}, {odd:#x} {twice} {torn} {crc}"
        self.append(partition, version, base64.b64encode(whole[: -1 if torn else None]).decode(), text)
        # No two batches have the same LogAppendTime, of which the first would be the largest timestamp.
        time.sleep(0.002)

    def read(self, partition: int) -> None:
        """All that is kept, with timestamps and codecs."""
        part = {"partition": partition, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}
        request = {
            "maxWaitMs": 0,
            "minBytes": 0,
            "maxBytes": 1 << 20,
            "topics": [{"topic": self.topic, "partitions": [part]}],
        }
        answer = self.talk.ask("Fetch", 12, request)
        for found in answer["responses"]:
            for one in found["partitions"]:
                if one["records"]:
                    one["records"] = described(base64.b64decode(one["records"]))

    # ---- members

    def join(self) -> None:
        self.heartbeat(0, rebalanceTimeoutMs=60000, topicPartitions=[], subscribedTopicNames=[self.topic])

    def beat(self, epoch: int) -> None:
        self.heartbeat(max(self.member_epoch + epoch, 1))

    def idle(self) -> None:
        """Longer than the shortest session timeouts, and shorter than the others."""
        time.sleep(1.8 * self.talk.patience)
        self.beat(0)

    def heartbeat(self, epoch: int, **fields: Any) -> None:
        request = {"groupId": self.group, "memberId": "A", "memberEpoch": epoch, **fields}
        answer = self.talk.ask("ConsumerGroupHeartbeat", 1, request)
        if answer["errorCode"] == 0:
            self.member_epoch = answer["memberEpoch"]


def described(records: bytes) -> str:
    """Batches with their timestamps; the values are as long as they say."""
    found, position = [], 0
    while position < len(records):
        header = parse_header(records, position)
        times = [one.timestamp for one in decode_records(records, position, header, 1 << 20)]
        found.append(f"{header.base_offset}: {header.attributes:#x} up to {header.max_timestamp}: {times}")
        position += header.size
    return "; ".join(found)


KIND = Kind("configs", sequence, Configs)
