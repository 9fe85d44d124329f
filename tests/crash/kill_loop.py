"""kill -9 in a loop, with clients of three libraries at work, and a look after each start at what they were told.

    python -m tests.crash.kill_loop [--cycles N] [--seed S]

The clients live on while the server dies and comes back on the same port and data. A kill leaves the page cache, so
this proves the process's part of the promise with real files, sockets and clients; loss of power is what
`make crash-states` is about. One client is a member of a consumer group (KIP-848): it must go on with the epochs that
it had, without joining again.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from kcoord.protocol import apis
from kcoord.protocol.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from kcoord.server.probe import Probe
from kcoord.wire.record_batch import decode_records
from tests.e2e.process import ServerProcess, clean_environment
from tests.harness.ports import own_port
from tests.harness.record_batches import parse_batches

LIBRARIES = ("aiokafka", "confluent-kafka", "kafka-python", "consumer-protocol")
# The one that is a member of its group.
MEMBER = "consumer-protocol"
# A client whose request was under way when the server died may wait for half a minute before it tries again.
FIRST_TRAFFIC_S = 180.0
TRAFFIC_S = (0.2, 1.5)
FETCH_BYTES = 1 << 22
READ_S = 60.0
# librdkafka may send no heartbeat for a minute after several quick kills: while one of its heartbeats waits to be sent
# again, each new coordinator fails it and is forgotten for that. A member that says nothing for so long has to go, so
# sessions last longer than that here, and whatever the group does is the server's doing.
SESSION_MS = 600_000
SETTINGS = [f"--set=group.consumer.{name}session.timeout.ms={SESSION_MS}" for name in ("", "max.")]
PROBLEMS_SHOWN = 10


class ClientProcess:
    """One library at work, and what it was told: offset -> value, and the last commit."""

    def __init__(self, library: str, bootstrap: str) -> None:
        self.library = library
        self.topic = f"kill-{library}"
        self.records: dict[int, str] = {}
        self.committed = -1
        self.asked = -1
        self.problems: list[str] = []
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.crash.kill_client", library, bootstrap],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment(),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            with self.lock:
                if words[0] == "record" and len(words) == 3:
                    known = self.records.setdefault(int(words[1]), words[2])
                    if known != words[2]:
                        self.problems.append(f"{self.topic}: offset {words[1]} given to {known} and {words[2]}")
                elif words[0] == "commit" and len(words) == 2:
                    self.committed = int(words[1])
                elif words[0] == "asked" and len(words) == 2:
                    self.asked = int(words[1])

    def acknowledged(self) -> tuple[dict[int, str], int]:
        with self.lock:
            return dict(self.records), self.committed

    def has_asked(self, number: int) -> bool:
        """Whether it sent a commit of `number`; it said so before, but we may still have to read that."""
        ends_at = time.monotonic() + READ_S
        while self.asked < number and time.monotonic() < ends_at:
            time.sleep(0.01)
        return self.asked >= number

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(READ_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def read_topic(probe: Probe, topic: str, offset: int) -> dict[int, str]:
    """Everything from `offset` to the high watermark."""
    found: dict[int, str] = {}
    while True:
        ask = FetchTopic(topic, partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, topics=[ask])
        part = probe.ask(apis.FETCH, 11, request, FetchResponse).responses[0].partitions[0]
        if part.error_code or not part.records:
            return found
        for header in parse_batches(part.records):
            for record in decode_records(part.records, header.pos, header, 1 << 20):
                found[record.offset] = (record.value or b"").decode()
            offset = header.last_offset + 1


def committed_offset(probe: Probe, topic: str, group: str = "") -> int:
    """The offset of a group, by default the one with the name of the topic."""
    request = OffsetFetchRequest(group or topic, [OffsetFetchRequestTopic(topic, [0])])
    answer = probe.ask(apis.OFFSET_FETCH, 7, request, OffsetFetchResponse)
    return answer.topics[0].partitions[0].committed_offset


def epochs_of(probe: Probe, group: str) -> list[tuple[str, int]]:
    """The epoch of a consumer group, and those of its members by their ids."""
    request = ConsumerGroupDescribeRequest([group], False)
    answer = probe.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, request, ConsumerGroupDescribeResponse)
    found = answer.groups[0]
    members = sorted((one.member_id, one.member_epoch) for one in found.members)
    return [(f"{found.group_state} {found.error_message or ''}".strip(), found.group_epoch), *members]


class Loop:
    """The server, its clients, and what was lost."""

    def __init__(self, data: Path, seed: int) -> None:
        self.data = data
        self.rng = random.Random(seed)
        self.listen = f"127.0.0.1:{own_port()}"
        self.clients: list[ClientProcess] = []
        self.checked_to: dict[str, int] = {}
        self.checks = 0
        self.epochs: list[tuple[str, int]] = []
        self.problems: list[str] = []

    def run(self, cycles: int) -> None:
        server = ServerProcess(self.data, *SETTINGS, listen=self.listen)
        try:
            self.clients = [ClientProcess(library, self.listen) for library in LIBRARIES]
            self.wait_traffic({client.topic: (0, -1) for client in self.clients})
            with Probe(self.listen) as probe:
                self.epochs = epochs_of(probe, f"kill-{MEMBER}")
            if len(self.epochs) != 2:
                self.problems.append(f"the consumer group has no single member: {self.epochs}")
            for cycle in range(cycles):
                time.sleep(self.rng.uniform(*TRAFFIC_S))
                acknowledged = {client.topic: client.acknowledged() for client in self.clients}
                server.kill()
                server.__exit__(None)
                # Every other one writes zeros behind the ends of its logs.
                preallocates = f"--set=log.preallocate={str(cycle % 2 == 0).lower()}"
                server = ServerProcess(self.data, *SETTINGS, preallocates, listen=self.listen)
                self.check(acknowledged, f"cycle {cycle + 1}")
                if cycle % 10 == 9 or cycle == cycles - 1:
                    # Clients come back at their own pace; each has to get on now and then.
                    self.wait_traffic({topic: (len(records), last) for topic, (records, last) in acknowledged.items()})
            self.checked_to = {}
            self.check({client.topic: client.acknowledged() for client in self.clients}, "at the end")
        finally:
            for client in self.clients:
                client.end()
            server.__exit__(None)

    def wait_traffic(self, beyond: dict[str, tuple[int, int]]) -> None:
        """Until every client was told of more records and a later commit than these."""
        ends_at = time.monotonic() + FIRST_TRAFFIC_S
        for client in self.clients:
            count, last = beyond[client.topic]
            while True:
                records, committed = client.acknowledged()
                if len(records) > count and committed > last:
                    break
                if time.monotonic() > ends_at:
                    self.problems.append(f"{client.library} got nothing done in {FIRST_TRAFFIC_S:.0f} s")
                    break
                time.sleep(0.05)

    def check(self, acknowledged: dict[str, tuple[dict[int, str], int]], when: str) -> None:
        with Probe(self.listen) as probe:
            epochs = epochs_of(probe, f"kill-{MEMBER}")
            if epochs != self.epochs:
                self.problems.append(f"{when}: the consumer group was {self.epochs} and is {epochs}")
                self.epochs = epochs
            for client in self.clients:
                records, committed = acknowledged[client.topic]
                # The last stretch is looked at twice, as acknowledgements may have come in out of order.
                start = self.checked_to.get(client.topic, 0)
                found = read_topic(probe, client.topic, start)
                for offset, value in records.items():
                    if offset < start:
                        continue
                    self.checks += 1
                    if found.get(offset) != value:
                        self.problems.append(f"{when}: {client.topic} {offset}: {value} lost ({found.get(offset)})")
                stored = committed_offset(probe, client.topic)
                if not (committed <= stored and client.has_asked(stored)):
                    self.problems.append(f"{when}: {client.topic}: {committed} committed, {stored} found")
                self.checked_to[client.topic] = max(max(records, default=0) - 1000, 0)
                with client.lock:
                    self.problems += client.problems
                    client.problems = []


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="kill -9 a server under three client libraries, again and again")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder) / "data", options.seed)
        loop.run(options.cycles)
    counts = ", ".join(f"{client.library} {len(client.acknowledged()[0])}" for client in loop.clients)
    print(
        f"{options.cycles} kills and starts; acknowledged records: {counts}; {loop.checks} looked up, "
        f"{time.monotonic() - began:.0f} s (seed {options.seed})"
    )
    for text in loop.problems[:PROBLEMS_SHOWN]:
        print(f"  {text}")
    print(f"{len(loop.problems)} losses")
    return 1 if loop.problems else 0


if __name__ == "__main__":
    sys.exit(main())
