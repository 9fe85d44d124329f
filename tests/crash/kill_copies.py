"""kill -9 of the server and of its clients in a loop, under copies that are made exactly once with transactions.

    python -m tests.crash.kill_copies [--cycles N] [--seed S]

After each start, and at the end, the committed part of the copy must be the source up to the committed offset of the
group: nothing twice, nothing lost, nothing aborted, in order.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from kcoord.server.probe import Probe
from tests.crash import kill_loop
from tests.crash.copy_client import names
from tests.e2e.process import ServerProcess, clean_environment
from tests.harness.ports import own_port
from tests.harness.present import present

LIBRARIES = ("confluent-kafka", "aiokafka")
RECORDS = 3000
WAIT_S = 120.0
# A client that says nothing for so long is killed and started again.
STUCK_S = 35.0
PROBLEMS_SHOWN = 10


class Copier:
    """One client process, and the last offset that it was told is committed."""

    def __init__(self, library: str, bootstrap: str) -> None:
        self.library = library
        self.bootstrap = bootstrap
        self.source, self.target = names(library)
        self.copied = 0
        self.commits = 0
        self.failures = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.crash.copy_client", self.library, self.bootstrap],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment(),
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if words[0] == "copied" and len(words) == 2:
                self.copied = int(words[1])
                self.commits += 1
            elif words[0] == "failed":
                self.failures += 1

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def fill(bootstrap: str, source: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        producer.produce(source, b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def read_committed(bootstrap: str, topic: str) -> list[bytes]:
    """Everything up to the last stable offset."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
            "enable.partition.eof": True, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        }
    )  # fmt: skip
    reader.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    ends_at = time.monotonic() + WAIT_S
    while time.monotonic() < ends_at:
        message = reader.poll(0.5)
        if message is None:
            continue
        if message.error() is not None:
            break
        values.append(present(message.value()))
    reader.close()
    return values


def committed_offset(bootstrap: str, one: Copier) -> int:
    with Probe(bootstrap) as probe:
        return max(kill_loop.committed_offset(probe, one.source, one.target), 0)


class Copies:
    """The server, its clients, and what went wrong."""

    def __init__(self, data: Path, seed: int, records: int = RECORDS) -> None:
        self.data = data
        self.records = records
        self.rng = random.Random(seed)
        self.listen = f"127.0.0.1:{own_port()}"
        self.copiers: list[Copier] = []
        self.problems: list[str] = []
        self.checks = 0
        self.restarts = 0

    def run(self, cycles: int) -> None:
        server = ServerProcess(self.data, listen=self.listen)
        try:
            for library in LIBRARIES:
                fill(self.listen, names(library)[0], self.records)
            self.copiers = [Copier(library, self.listen) for library in LIBRARIES]
            self.wait(lambda one: one.commits > 0)
            for cycle in range(cycles):
                time.sleep(self.rng.uniform(*kill_loop.TRAFFIC_S))
                if cycle % 3 == 2:
                    victim = self.rng.choice(self.copiers)
                    victim.end()
                    victim.start()
                told = [one.copied for one in self.copiers]
                server.kill()
                server.__exit__(None)
                server = ServerProcess(self.data, listen=self.listen)
                self.check(told, f"cycle {cycle + 1}")
            self.wait(lambda one: committed_offset(self.listen, one) == self.records)
            self.check([one.copied for one in self.copiers], "at the end")
        finally:
            for one in self.copiers:
                one.end()
            server.__exit__(None)

    def wait(self, is_done: Callable[[Copier], bool]) -> None:
        ends_at = time.monotonic() + WAIT_S
        for one in self.copiers:
            restarts_at = time.monotonic() + STUCK_S
            while not is_done(one):
                if time.monotonic() > restarts_at:
                    # librdkafka may wait for an answer that it does not expect any more.
                    one.end()
                    one.start()
                    self.restarts += 1
                    restarts_at = time.monotonic() + STUCK_S
                if time.monotonic() > ends_at:
                    self.problems.append(f"{one.library} got nothing done in {WAIT_S:.0f} s")
                    break
                time.sleep(0.05)

    def check(self, told: list[int], when: str) -> None:
        for one, copied in zip(self.copiers, told, strict=True):
            before = committed_offset(self.listen, one)
            found = read_committed(self.listen, one.target)
            after = committed_offset(self.listen, one)
            self.checks += len(found)
            if found != [b"%d" % number for number in range(len(found))]:
                self.problems.append(f"{when}: {one.target} is no copy: {first_difference(found)}")
            if not copied <= before <= len(found) <= after:
                self.problems.append(
                    f"{when}: {one.target}: told {copied}, committed {before} to {after}, {len(found)} records"
                )


def first_difference(found: list[bytes]) -> str:
    for number, value in enumerate(found):
        if value != b"%d" % number:
            return f"record {number} is {value.decode()}"
    return "none"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="kill -9 a server under copies that are made exactly once")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(Path(folder) / "data", options.seed)
        copies.run(options.cycles)
    counts = ", ".join(f"{one.library} {one.commits} ({one.failures} errors)" for one in copies.copiers)
    print(
        f"{options.cycles} kills and starts; acknowledged transactions: {counts}; {copies.checks} copies looked at, "
        f"{copies.restarts} clients stuck, "
        f"{time.monotonic() - began:.0f} s (seed {options.seed})"
    )
    for text in copies.problems[:PROBLEMS_SHOWN]:
        print(f"  {text}")
    print(f"{len(copies.problems)} broken promises")
    return 1 if copies.problems else 0


if __name__ == "__main__":
    sys.exit(main())
