"""What requests cost in the engine alone: whole frames in, bytes of answers out, without sockets and files.

    python -m bench.in_process [--only NAME] [--rounds N] [--in-flight N]

The figures are microseconds of CPU per request, the best round, for requests that arrive 32 at a time. With one at a
time, the cost of a turn is part of each. The log is in memory and forgets nothing, so the number of commits is bounded.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

from bench import workload
from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.engine.session import Session
from kcoord.log.directory import open_directory
from kcoord.log.journal import Journal
from kcoord.log.storage import MemoryStorage
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from kcoord.protocol.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from kcoord.server.listen.limits import frame_limits
from kcoord.server.settings.load import load as load_settings

CLUSTER_ID = "YmVuY2gtYmVuY2gtYmVuY2g"
IN_FLIGHT = 32
REQUESTS = 20_000
ROUNDS = 5


class InProcess:
    """A client of an engine in this process: `exchange` is that of `workload.Client`.

    It opens what is in `storage`, which is empty by default. `entropy` makes the ids of members.
    """

    def __init__(
        self,
        storage: MemoryStorage | None = None,
        entropy: Callable[[int], bytes] = lambda n: b"\x07" * n,
        config: CoreConfig | None = None,
    ) -> None:
        directory = open_directory(storage or MemoryStorage(), 1, CLUSTER_ID, CLUSTER_ID)
        config = config or CoreConfig()
        config.cluster_id = CLUSTER_ID
        limits = frame_limits(load_settings().server)
        self.engine = Engine(config, directory, Journal(directory, "memory"), entropy, limits)
        self.mono_ms = 1
        self.engine.load(self.now())
        self.session: Session = self.engine.open_session("127.0.0.1", "127.0.0.1", 9092)

    def now(self) -> Now:
        return Now(self.mono_ms, 1_800_000_000_000 + self.mono_ms)

    def send(self, data: bytes) -> bytes:
        now = self.now()
        engine = self.engine
        engine.receive(self.session, data, now)
        engine.end_turn(now)
        while engine.has_more():
            engine.end_turn(now)
        return b"".join([session.take_bytes() for session in engine.take_ready()])

    def exchange(self, frame: bytes) -> bytes:
        answer = self.send(frame)
        while not answer:
            self.mono_ms += 100
            self.engine.fire_timers(self.now())
            for job in self.engine.take_jobs():
                self.engine.job_done(job, job.run(), None, self.now())
            answer = self.send(b"")
        return answer

    call: Any = workload.Client.call

    def close(self) -> None:
        pass


def frames() -> dict[str, Callable[[InProcess], bytes]]:
    def member(client: InProcess) -> workload.Member:
        workload.create_topic(client, workload.TOPIC, 100)  # type: ignore[arg-type]
        return workload.Member(client, "bench")  # type: ignore[arg-type]

    def commit(partitions: int) -> Callable[[InProcess], bytes]:
        return lambda client: member(client).commit(client, partitions).request  # type: ignore[arg-type]

    def heartbeat(client: InProcess) -> bytes:
        return member(client).heartbeat(client).request  # type: ignore[arg-type]

    def fetch(client: InProcess) -> bytes:
        one = member(client)
        one.commit(client)  # type: ignore[arg-type]
        return one.fetch_offsets(client).request  # type: ignore[arg-type]

    def consumer(client: InProcess) -> bytes:
        workload.create_topic(client, workload.TOPIC, 5)  # type: ignore[arg-type]
        member_id = "bench-member-0000000000"
        join = ConsumerGroupHeartbeatRequest("new", member_id, 0, None, None, 300_000, [workload.TOPIC], None, None, [])
        joined = client.call(68, 1, join, ConsumerGroupHeartbeatResponse)
        workload.check(joined.error_code, "join")
        owned = [] if joined.assignment is None else joined.assignment.topic_partitions
        owned = [OwnedTopicPartitions(each.topic_id, each.partitions) for each in owned]
        epoch = joined.member_epoch
        beat = ConsumerGroupHeartbeatRequest("new", member_id, epoch, topic_partitions=owned)
        workload.check(client.call(68, 1, beat, ConsumerGroupHeartbeatResponse).error_code, "heartbeat")
        return workload.request_frame(68, 1, ConsumerGroupHeartbeatRequest("new", member_id, epoch))

    def transactional_commit(client: InProcess) -> bytes:
        """A commit of a transaction that stays open, and has the partition of the group."""
        workload.create_topic(client, workload.TOPIC, 100)  # type: ignore[arg-type]
        client.call(10, 4, FindCoordinatorRequest("", 1, ["bench"]), FindCoordinatorResponse)
        producer = client.call(22, 5, InitProducerIdRequest("bench", 60_000, -1, -1), InitProducerIdResponse)
        workload.check(producer.error_code, "InitProducerId")
        partitions = [TxnOffsetCommitRequestPartition(each, 1000 + each) for each in range(workload.PARTITIONS)]
        request = TxnOffsetCommitRequest(
            "bench", "bench", producer.producer_id, producer.producer_epoch,
            topics=[TxnOffsetCommitRequestTopic(workload.TOPIC, partitions)],
        )  # fmt: skip
        answer = client.call(28, 5, request, TxnOffsetCommitResponse)
        workload.check(answer.topics[0].partitions[0].error_code, "TxnOffsetCommit")
        return workload.request_frame(28, 5, request)

    return {
        "OffsetCommit, 1 partition": commit(1),
        "OffsetCommit, 5 partitions": commit(5),
        "OffsetCommit, 100 partitions": commit(100),
        "OffsetFetch, 5 partitions": fetch,
        "Heartbeat": heartbeat,
        "ConsumerGroupHeartbeat": consumer,
        "TxnOffsetCommit, 5 partitions": transactional_commit,
    }


def measure(prepare: Callable[[InProcess], bytes], rounds: int, requests: int, in_flight: int = IN_FLIGHT) -> float:
    """Microseconds per request."""
    best = float("inf")
    for _ in range(rounds):
        client = InProcess()
        data = prepare(client) * in_flight
        turns = requests // in_flight
        gc.collect()
        gc.freeze()
        started = time.process_time()
        for _ in range(turns):
            client.send(data)
        best = min(best, (time.process_time() - started) / (turns * in_flight) * 1e6)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="measure the requests whose names contain this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help="requests that arrive at a time")
    arguments = parser.parse_args()
    for name, prepare in frames().items():
        if arguments.only in name:
            requests = REQUESTS // 10 if "100" in name else REQUESTS
            print(f"{name:32} {measure(prepare, arguments.rounds, requests, arguments.in_flight):8.2f} us", flush=True)


if __name__ == "__main__":
    main()
