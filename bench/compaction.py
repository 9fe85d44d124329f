"""Commits during the compaction of another log: `make bench ARGS="--only compaction"`.

The benchmark fills a compacted topic with records of many keys, each written several times, and starts the cleaner's
process. Until the old segments are removed, it measures commits in short slices, alternately while the process works
("beside") and while a signal has stopped it ("alone"). So other work on the machine, and writes that the disk still has
to do, affect both figures in the same way; two measurements in a row would differ in this. The whole compaction is
measured, because its phases differ: reading and mapping keys takes CPU time, and only the last segments, which have the
newest records, are written. When the process has ended, the server renames and removes segments; this counts as
"beside". On a machine with other load the figures still mean little.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench import servers, workload
from bench.load import Result, Traffic, measure
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
SLICE_SECONDS = 0.4
WAIT_SECONDS = 300.0
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
    """Allow the cleaner to compact the topic."""
    setting = AlterableConfig("min.compaction.lag.ms", 0, "0")
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(2, TOPIC, [setting])], False)
    for answer in client.call(44, 1, request, IncrementalAlterConfigsResponse).responses:
        workload.check(answer.error_code, "alter")


def log_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def is_cleaning(folder: Path) -> bool:
    """Whether the directory has temporary files of a compaction."""
    return any(path.suffix in (".cleaned", ".swap", ".deleted") for path in folder.iterdir())


def worker_of(server: servers.Server) -> int:
    """The process id of the server's cleaner, 0 if there is none."""
    for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                if b"clean_worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        except OSError:
            continue
    return 0


def send(worker: int, number: int) -> None:
    try:
        os.kill(worker, number)
    except ProcessLookupError:
        return


class Slices:
    """The samples of all slices of one kind."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self.seconds = 0.0

    def add(self, result: Result) -> None:
        self.samples += result.samples
        self.seconds += SLICE_SECONDS

    def result(self) -> Result:
        return Result(self.samples, self.seconds)


def run(compiled: bool, sync: str, data: Path) -> dict[str, float]:
    """Return the latencies of commits without and with compaction, and the size and time of the compaction."""
    settings = ("log.cleaner.backoff.ms=100",)
    alone, beside = Slices(), Slices()
    with servers.kcoord(compiled, data, sync, *settings) as server:
        client = workload.Client(server.host, server.port)
        workload.create_topic(client, workload.TOPIC, workload.PARTITIONS)
        create(client)
        fill(client)
        lanes: list[Traffic] = []
        for number in range(CONNECTIONS):
            lanes.append(workload.Member(client, f"bench-{number:02}").commit(client))
        folder = data / f"{TOPIC}-0"
        before = log_bytes(folder)
        stopped = 0.0
        allow(client)
        wait_for(lambda: worker_of(server) > 0)
        began = time.perf_counter()
        while time.perf_counter() - began < WAIT_SECONDS:
            worker = worker_of(server)
            if not worker and log_bytes(folder) < before and not is_cleaning(folder):
                break
            beside.add(measure(server.host, server.port, lanes, 1, SLICE_SECONDS))
            worker = worker_of(server)
            if worker:
                paused = time.perf_counter()
                send(worker, signal.SIGSTOP)
                try:
                    alone.add(measure(server.host, server.port, lanes, 1, SLICE_SECONDS))
                finally:
                    send(worker, signal.SIGCONT)
                stopped += time.perf_counter() - paused
        else:
            raise RuntimeError(f"the compaction did not end within {WAIT_SECONDS:.0f} s")
        took = time.perf_counter() - began - stopped
        after = log_bytes(folder)
        client.close()
    if not alone.samples:
        raise RuntimeError(f"compaction ended within {took:.1f} s, too soon to be measured")
    without, during = alone.result(), beside.result()
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
