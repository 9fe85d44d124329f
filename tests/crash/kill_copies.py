"""kill -9 of the server and of its clients in a loop, under copies that are made exactly once with transactions.

    python -m tests.crash.kill_copies [--cycles N] [--messages N] [--library NAME]... [--batch N] [--pause S]
        [--seed S]

Consume, transform, produce with Java (transaction version 2), confluent-kafka and aiokafka (version 1). Without
`--cycles` it goes on until all messages are copied. A reader of committed records runs beside the clients. After each
start, every committed offset that a client was told is there, and the reader gets every copy up to the committed
offsets, in order, and nothing else. At the end the copy is read once more as a whole.
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

from confluent_kafka import Producer

from kcoord.protocol import apis
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from kcoord.server.probe import Probe
from tests.crash.copy_client import PARTITIONS, names
from tests.crash.copy_reader import WAIT_S, LiveReader, first_difference, read_committed
from tests.e2e.process import ServerProcess, clean_environment
from tests.harness import java
from tests.harness.ports import own_port

JAVA = "java"
LIBRARIES = ("confluent-kafka", "aiokafka", JAVA)
MESSAGES = 3000
BATCH = 10
SETTINGS = (f"--set=num.partitions={PARTITIONS}",)
# A client dies in every third cycle, beside the server.
CLIENT_DIES_EVERY = 3
# Between two kills: at least, and at most.
TRAFFIC_S = 0.2
PAUSE_S = 3.0
# A client that says nothing for so long is killed and started again.
STUCK_S = 35.0
# How long copies may take in all, for each message.
COPY_S_PER_MESSAGE = 0.1
PROBLEMS_SHOWN = 10


class Copier:
    """One client process, the offsets that it was told are committed, and a reader of what it wrote."""

    def __init__(self, library: str, bootstrap: str, batch: int) -> None:
        self.library = library
        self.bootstrap = bootstrap
        self.batch = batch
        self.source, self.target = names(library)
        self.copied = dict.fromkeys(range(PARTITIONS), 0)
        self.commits = 0
        self.failures = 0
        self.kills = 0
        self.stuck = 0
        self.done_after_s = 0.0
        self.restarts_at = 0.0
        self.start()
        self.reader = LiveReader(bootstrap, self.target)

    def command(self) -> list[str]:
        if self.library == JAVA:
            return java.command("Copier", self.bootstrap, self.source, self.target, str(self.batch))
        return [sys.executable, "-P", "-m", "tests.crash.copy_client", self.library, self.bootstrap, str(self.batch)]

    def start(self) -> None:
        self.restarts_at = time.monotonic() + STUCK_S
        self.process = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment()
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            # The last line of a killed process may be incomplete.
            if words[:1] == ["copied"] and line.endswith("\n"):
                self.copied = self.copied | {int(one.split(":")[0]): int(one.split(":")[1]) for one in words[1:]}
                self.commits += 1
                self.restarts_at = time.monotonic() + STUCK_S
            elif words[:1] == ["failed"]:
                self.failures += 1

    def stop(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self._thread.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def end(self) -> None:
        self.stop()
        self.reader.end()

    def committed(self) -> dict[int, int]:
        """The committed offsets of its group."""
        with Probe(self.bootstrap) as probe:
            topic = OffsetFetchRequestTopic(self.source, list(range(PARTITIONS)))
            answer = probe.ask(apis.OFFSET_FETCH, 7, OffsetFetchRequest(self.target, [topic]), OffsetFetchResponse)
        return {one.partition_index: max(one.committed_offset, 0) for one in answer.topics[0].partitions}

    def __str__(self) -> str:
        return (
            f"{self.library}: {sum(self.reader.counts.values())} messages in {self.commits} acknowledged transactions, "
            f"{self.done_after_s:.0f} s; killed {self.kills} times, {self.failures} errors, stuck {self.stuck} times"
        )


def fill(bootstrap: str, source: str, messages: int) -> None:
    """Numbers from 0 on in every partition."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(messages // PARTITIONS):
        for partition in range(PARTITIONS):
            producer.produce(source, b"%d" % number, partition=partition)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


class Copies:
    """The server, its clients, and what went wrong."""

    def __init__(
        self, data: Path, seed: int, messages: int = MESSAGES, libraries: tuple[str, ...] = LIBRARIES,
        batch: int = BATCH, pause_s: float = PAUSE_S,
    ) -> None:  # fmt: skip
        self.data = data
        self.messages = messages
        self.libraries = libraries
        self.batch = batch
        self.pause_s = pause_s
        self.rng = random.Random(seed)
        self.listen = f"127.0.0.1:{own_port()}"
        self.copiers: list[Copier] = []
        self.problems: list[str] = []
        self.cycles = 0

    @property
    def everything(self) -> dict[int, int]:
        return dict.fromkeys(range(PARTITIONS), self.messages // PARTITIONS)

    def run(self, cycles: int | None = None) -> None:
        server = ServerProcess(self.data, *SETTINGS, listen=self.listen)
        try:
            for library in self.libraries:
                fill(self.listen, names(library)[0], self.messages)
            began = time.monotonic()
            deadline_s = WAIT_S + COPY_S_PER_MESSAGE * self.messages
            self.copiers = [Copier(library, self.listen, self.batch) for library in self.libraries]
            self.wait(lambda one: one.commits > 0, WAIT_S)
            while self.cycles < cycles if cycles is not None else self.is_copying(began, deadline_s):
                self.cycles += 1
                self.traffic()
                told = [one.copied for one in self.copiers]
                server.kill()
                server.__exit__(None)
                server = ServerProcess(self.data, *SETTINGS, listen=self.listen)
                self.check(told, f"cycle {self.cycles}")
            self.wait(lambda one: one.committed() == self.everything, deadline_s)
            self.check([one.copied for one in self.copiers], "at the end")
            self.check_whole()
        finally:
            for one in self.copiers:
                one.end()
            server.__exit__(None)

    def is_copying(self, began: float, deadline_s: float) -> bool:
        """Whether there is something left to do; notes who has come to its end."""
        passed_s = time.monotonic() - began
        for one in self.copiers:
            if not one.done_after_s and one.copied == self.everything:
                one.done_after_s = passed_s
        return passed_s < deadline_s and not all(one.done_after_s for one in self.copiers)

    def traffic(self) -> None:
        """Some time with clients at work; in some cycles one of them dies in it."""
        time.sleep(self.rng.uniform(TRAFFIC_S, self.pause_s) / 2)
        if self.cycles % CLIENT_DIES_EVERY == 0:
            busy = [one for one in self.copiers if one.copied != self.everything] or self.copiers
            victim = self.rng.choice(busy)
            victim.stop()
            victim.start()
            victim.kills += 1
        time.sleep(self.rng.uniform(TRAFFIC_S, self.pause_s) / 2)
        self.restart_stuck()

    def restart_stuck(self) -> None:
        for one in self.copiers:
            if time.monotonic() > one.restarts_at and one.copied != self.everything:
                # A library may wait for an answer that it does not expect any more.
                one.stop()
                one.start()
                one.stuck += 1

    def wait(self, is_done: Callable[[Copier], bool], seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        for one in self.copiers:
            while not is_done(one):
                if time.monotonic() > ends_at:
                    self.problems.append(f"{one.library} got nothing done in {seconds:.0f} s")
                    break
                self.restart_stuck()
                time.sleep(0.05)

    def check(self, told: list[dict[int, int]], when: str) -> None:
        """What a client was told is there, and the reader beside it sees just what is committed."""
        for one, copied in zip(self.copiers, told, strict=True):
            before = one.committed()
            if any(before[partition] < offset for partition, offset in copied.items()):
                self.problems.append(f"{when}: {one.target}: told {copied}, committed {before}")
            if not one.reader.wait(before):
                self.problems.append(f"{when}: {one.target}: committed {before}, only {one.reader.counts} read")
            counts = dict(one.reader.counts)
            after = one.committed()
            if any(after[partition] < count for partition, count in counts.items()):
                self.problems.append(f"{when}: {one.target}: {counts} read, only {after} committed")
            self.problems += one.reader.problems
            one.reader.problems = []

    def check_whole(self) -> None:
        for one in self.copiers:
            for partition, values in read_committed(self.listen, one.target).items():
                difference = first_difference(values) or ("" if len(values) == self.everything[partition] else "a gap")
                if difference:
                    self.problems.append(f"{one.target}-{partition} of {len(values)} records is no copy: {difference}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="kill -9 a server under copies that are made exactly once")
    parser.add_argument("--cycles", type=int, help="kills of the server; without it, as many as the copies take")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages of each library")
    parser.add_argument("--library", action="append", choices=LIBRARIES, help="only these; may be repeated")
    parser.add_argument("--batch", type=int, default=BATCH, help="messages of a transaction at most")
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="seconds between two kills at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        libraries = tuple(options.library or LIBRARIES)
        data = Path(folder) / "data"
        copies = Copies(data, options.seed, options.messages, libraries, options.batch, options.pause)
        copies.run(options.cycles)
    print(f"{copies.cycles} kills and starts of the server, {time.monotonic() - began:.0f} s (seed {options.seed})")
    for one in copies.copiers:
        print(f"  {one}")
    for text in copies.problems[:PROBLEMS_SHOWN]:
        print(f"  {text}")
    print(f"{len(copies.problems)} broken promises")
    return 1 if copies.problems else 0


if __name__ == "__main__":
    sys.exit(main())
