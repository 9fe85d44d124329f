"""Commits while a log is compacted beside them: `make bench ARGS="--only compaction"`.

A compacted topic is filled with records of many keys, each written several times. Commits are measured once while
nothing else happens and once while the cleaner's process works on that topic; the cleaner is given as much as it takes
for that to last longer than the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench import servers, workload
from bench.load import Traffic, measure
from kcoord.protocol.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kcoord.protocol.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kcoord.protocol.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kcoord.wire.record_batch import BatchBuilder

TOPIC = "compacted"
SEGMENT_BYTES = 64 << 20
VALUE_BYTES = 400
RECORDS_PER_BATCH = 1000
KEYS = 100_000
RECORDS = 1_500_000
CONNECTIONS = 8
WAIT_SECONDS = 60.0
NEVER_MS = "9223372036854775807"


def create(client: workload.Client) -> None:
    settings = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.cleanable.dirty.ratio": "0",
        "min.compaction.lag.ms": NEVER_MS,
    }
    configs = [CreatableTopicConfig(name, value) for name, value in settings.items()]
    request = CreateTopicsRequest([CreatableTopic(TOPIC, 1, 1, [], configs)], 30_000, False)
    for topic in client.call(19, 5, request, CreateTopicsResponse).topics:
        workload.check(topic.error_code, "create")


def fill(client: workload.Client) -> None:
    now = int(time.time() * 1000)
    for first in range(0, RECORDS, RECORDS_PER_BATCH):
        builder = BatchBuilder()
        for number in range(first, first + RECORDS_PER_BATCH):
            builder.append(now, b"key %d" % (number * 7919 % KEYS), bytes(VALUE_BYTES))
        data = [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, builder.build(0, 0))])]
        request = ProduceRequest(None, -1, 30_000, data)
        answer = client.call(0, 9, request, ProduceResponse)
        workload.check(answer.responses[0].partition_responses[0].error_code, "produce")


def allow(client: workload.Client) -> None:
    """Let the cleaner begin."""
    setting = AlterableConfig("min.compaction.lag.ms", 0, "0")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(2, TOPIC, [setting])], False)
    for answer in client.call(44, 1, request, IncrementalAlterConfigsResponse).responses:
        workload.check(answer.error_code, "alter")


def log_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def is_cleaning(folder: Path) -> bool:
    return any(folder.glob("*.cleaned"))


def run(compiled: bool, sync: str, data: Path, seconds: float) -> dict[str, float]:
    """Latencies of commits without and with compaction, and how much of it there was."""
    settings = ("log.cleaner.backoff.ms=100",)
    with servers.kcoord(compiled, data, sync, *settings) as server:
        client = workload.Client(server.host, server.port)
        workload.create_topic(client, workload.TOPIC, workload.PARTITIONS)
        create(client)
        fill(client)
        lanes: list[Traffic] = []
        for number in range(CONNECTIONS):
            lanes.append(workload.Member(client, f"bench-{number:02}").commit(client))
        without = measure(server.host, server.port, lanes, 1, seconds)
        folder = data / f"{TOPIC}-0"
        before = log_bytes(folder)
        began = time.perf_counter()
        allow(client)
        wait_for(lambda: is_cleaning(folder))
        during = measure(server.host, server.port, lanes, 1, seconds)
        lasted = is_cleaning(folder)
        wait_for(lambda: log_bytes(folder) < before and not is_cleaning(folder))
        took = time.perf_counter() - began
        after = log_bytes(folder)
        client.close()
    if not lasted:
        raise RuntimeError(f"compaction ended within {took:.1f} s: give fewer --seconds")
    return {
        "without_p50_ms": without.p50_ms,
        "without_p99_ms": without.p99_ms,
        "during_p50_ms": during.p50_ms,
        "during_p99_ms": during.p99_ms,
        "p99_ratio": during.p99_ms / without.p99_ms,
        "log_mb": before / 1e6,
        "left_mb": after / 1e6,
        "compaction_s": took,
    }


def wait_for(is_true: Callable[[], bool]) -> None:
    end = time.perf_counter() + WAIT_SECONDS
    while not is_true():
        if time.perf_counter() > end:
            raise RuntimeError(f"no compaction within {WAIT_SECONDS:.0f} s")
        time.sleep(0.02)
