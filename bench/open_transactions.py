"""`make bench-open ARGS="--transactional-ids 10000"`: how long opening a log with many transactional ids takes.

A compiled server creates the log: each id has had TRANSACTIONS transactions with one partition, and every tenth id has
one more, which is open. `kcoord serve` then opens the directory, interpreted and compiled, after a clean stop and as
after a kill (without the mark of a clean stop). Nothing was compacted in between, so the log has all records. `ready`
is the time from the start of the command until the listener accepts connections, `answer` the time until the first
response about a transactional id.
"""

from __future__ import annotations

import statistics
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bench import servers, workload
from kcoord.protocol import apis, errors
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.wire.message import Message

TRANSACTIONS: Final = 3
OPEN_SHARE: Final = 10
IN_FLIGHT: Final = 500
TIMEOUT_MS: Final = 900_000


def name(number: int) -> str:
    return f"producer-{number:06}"


def exchange_all(client: workload.Client, api_key: int, version: int, requests: Iterable[Message]) -> list[Any]:
    """Send requests at once, and read their responses."""
    frames = [workload.request_frame(api_key, version, request) for request in requests]
    client.socket.sendall(b"".join(frames))
    answers: list[Any] = []
    for _ in frames:
        prefix = client.read(4)
        answers.append(workload.decode(api_key, version, prefix + client.read(struct.unpack(">i", prefix)[0])))
    return answers


def begin(client: workload.Client, producers: list[tuple[str, int, int]]) -> None:
    topics = [AddPartitionsToTxnTopic(workload.TOPIC, [0])]
    bodies = [AddPartitionsToTxnRequest([], *producer, topics) for producer in producers]
    for answer in exchange_all(client, apis.ADD_PARTITIONS_TO_TXN, 3, bodies):
        result = answer.results_by_topic_v3_and_below[0].results_by_partition[0]
        workload.check(result.partition_error_code, "AddPartitionsToTxn")


def fill(client: workload.Client, ids: int) -> None:
    """Make the transactional ids and their transactions."""
    workload.create_topic(client, workload.TOPIC, 1)
    asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[name(0)])
    for _ in range(2):
        # The first one creates the topic.
        client.call(apis.FIND_COORDINATOR, 4, asked, FindCoordinatorResponse)
    for first in range(0, ids, IN_FLIGHT):
        numbers = range(first, min(first + IN_FLIGHT, ids))
        inits = [InitProducerIdRequest(name(number), TIMEOUT_MS) for number in numbers]
        producers: list[tuple[str, int, int]] = []
        for number, answer in zip(numbers, exchange_all(client, apis.INIT_PRODUCER_ID, 4, inits), strict=True):
            workload.check(answer.error_code, "InitProducerId")
            producers.append((name(number), answer.producer_id, answer.producer_epoch))
        for _ in range(TRANSACTIONS):
            begin(client, producers)
            ends = [EndTxnRequest(*producer, True) for producer in producers]
            for answer in exchange_all(client, apis.END_TXN, 4, ends):
                workload.check(answer.error_code, "EndTxn")
        begin(client, producers[::OPEN_SHARE])


def open_once(compiled: bool, data: Path, ids: int) -> dict[str, float]:
    """Start a server on the directory, ask it for the last transactional id, and stop it cleanly."""
    with servers.kcoord(compiled, data, "os") as server:
        client = workload.Client(server.host, server.port)
        request = DescribeTransactionsRequest([name(ids - 1)])
        answer = client.call(apis.DESCRIBE_TRANSACTIONS, 0, request, DescribeTransactionsResponse)
        answer_ms = (time.perf_counter() - server.started) * 1000
        memory = server.rss_mb()
        client.close()
    if answer.transaction_states[0].error_code != errors.NONE:
        raise RuntimeError("the transactional id is missing")
    return {"ready_ms": server.ready_ms, "answer_ms": answer_ms, "rss_mb": memory}


def measure(compiled: bool, data: Path, clean: bool, ids: int, repeat: int) -> dict[str, float]:
    runs = []
    for _ in range(repeat):
        if not clean:
            (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
        runs.append(open_once(compiled, data, ids))
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def run(ids: int, repeat: int, compiled_only: bool) -> dict[str, Any]:
    results: dict[str, Any] = {"transactional_ids": ids, "servers": {}}
    with servers.scratch_folder() as folder:
        data = folder / "data"
        print("... the log", file=sys.stderr, flush=True)
        with servers.kcoord(True, data, "os") as server:
            client = workload.Client(server.host, server.port)
            fill(client, ids)
            client.close()
        results["log_mb"] = sum(path.stat().st_size for path in data.glob("__transaction_state-0/*.log")) / 1e6
        for compiled in [True] if compiled_only else [True, False]:
            tree = "compiled" if compiled else "interpreted"
            with servers.kcoord(compiled, folder / f"empty-{tree}", "os") as server:
                time.sleep(0.1)
                empty_mb = server.rss_mb()
            for clean in (False, True):
                label = f"{tree}, {'clean' if clean else 'killed'}"
                print(f"... {label}", file=sys.stderr, flush=True)
                figures = measure(compiled, data, clean, ids, repeat)
                figures["bytes_per_id"] = (figures["rss_mb"] - empty_mb) * 1e6 / ids
                results["servers"][label] = figures
    return results


def print_table(results: dict[str, Any]) -> None:
    print(f"{results['transactional_ids']} transactional ids; {results['log_mb']:.1f} MB")
    print(f"\n{'open':<34}{'ready, s':>10}{'answer, s':>11}{'RSS, MB':>10}{'bytes per id':>14}")
    for label, figures in results["servers"].items():
        times = f"{figures['ready_ms'] / 1000:>10.2f}{figures['answer_ms'] / 1000:>11.2f}"
        print(f"{label:<34}{times}{figures['rss_mb']:>10.0f}{figures['bytes_per_id']:>14.0f}")
