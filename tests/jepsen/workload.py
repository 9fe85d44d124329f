"""Records a history of real clients against a live server that is killed, and checks it.

    python -m tests.jepsen.workload [--seconds N] [--seed S] [--keep FILE] [--isolation read_uncommitted]

The server and the clients (clients.py) die by kill -9 at random moments. The server comes back with the same data and
port, and a client with the same transactional id. Some are only stopped for a while (SIGSTOP): a client that is stopped
for longer than its session is a zombie of its group, and requests that clients gave up meanwhile reach a stopped server
late. At the end all clients end, open transactions are aborted, and a reader reads everything: so what nobody read is
an error.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.process import ServerProcess, clean_environment
from tests.harness.ports import own_port
from tests.harness.present import present
from tests.jepsen.checker import check, describe, errors
from tests.jepsen.clients import KEYS, PARTITIONS, QUICK, READ_AT_ONCE, TIMEOUT_S, TOPICS, Steps, split
from tests.jepsen.history import History, encode, save
from tests.jepsen.recorder import Collector, Recorder

CLIENTS = ("member-0", "member-1", "owner-0", "plain-0", "reader-0", "watcher-0")
SERVER = "server"
TRANSACTIONAL = ("member-0", "member-1", "owner-0")
# Before a fault.
PAUSE_S = (0.5, 4.0)
SERVER_FAILS = 0.6
STOPS = 0.25
# The part of the transactions in which a member becomes a zombie.
ZOMBIES = 0.002
# How long something is stopped: longer than a member's session, and longer than the requests of aiokafka may take.
CLIENT_STOPS_S = 8.0
SERVER_STOPS_S = (0.5, 5.0)
END_S = 60.0
# Values of a life of a client: more than it can send.
LIFE_VALUES = 10**7
MAX_LIVES = 10**4


class Process:
    """A client that is started again when it ends."""

    def __init__(
        self, name: str, number: int, bootstrap: str, seed: int, isolation: str, zombies: float, collector: Collector
    ) -> None:  # fmt: skip
        self.name = name
        self.number = number
        self.bootstrap = bootstrap
        self.seed = seed
        self.isolation = isolation
        self.zombies = zombies
        self.collector = collector
        self.lives = 0
        self.errors = 0
        self.is_over = False
        self.child: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        while (child := self._start()) is not None:
            for line in present(child.stdout):
                self.collector.take(line)
            # A negative code is a signal: ours, or its own.
            self.errors += child.wait() > 0
            present(child.stdout).close()
            self.collector.end(self.process)
            self.lives += 1
            self.seed += 1

    @property
    def process(self) -> str:
        """The name of its present life."""
        return f"{self.name}.{self.lives}"

    def _start(self) -> subprocess.Popen[str] | None:
        """The next life, unless it shall have none."""
        first = (self.number * MAX_LIVES + self.lives) * LIFE_VALUES
        arguments = [self.process, self.bootstrap, str(first), str(self.seed), self.isolation, str(self.zombies)]
        with self._lock:
            if self.is_over or self.lives >= MAX_LIVES:
                return None
            if self.child is not None:
                present(self.child.stdin).close()
            self.child = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.jepsen.clients", *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=clean_environment(),
            )  # fmt: skip
            return self.child

    def strike(self, stops_s: float) -> None:
        """kill -9, or a stop; the process goes on by itself afterwards."""
        child = present(self.child)
        if not stops_s:
            child.kill()
            return
        child.send_signal(signal.SIGSTOP)
        timer = threading.Timer(stops_s, child.send_signal, (signal.SIGCONT,))
        timer.daemon = True
        timer.start()

    def resume(self) -> None:
        if self.child is not None:
            self.child.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        with self._lock:
            self.is_over = True
            if self.child is not None:
                present(self.child.stdin).close()

    def end(self, ends_at: float) -> None:
        """It has until then to finish what it is at."""
        self._thread.join(max(ends_at - time.monotonic(), 0))
        if self._thread.is_alive():
            present(self.child).kill()
            self._thread.join(END_S)


class Fault(NamedTuple):
    """Kills or stops a process, after a pause."""

    after_s: float
    victim: str
    stops_s: float = 0.0  # 0: a kill


def random_faults(seed: int, seconds: float) -> Iterator[Fault]:
    """Until the time is over."""
    rng = random.Random(seed)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        victim = SERVER if rng.random() < SERVER_FAILS else rng.choice(CLIENTS)
        stops_s = rng.uniform(*SERVER_STOPS_S) if victim == SERVER else CLIENT_STOPS_S
        yield Fault(rng.uniform(*PAUSE_S), victim, stops_s if rng.random() < STOPS else 0)


class Workload:
    """The server, the clients, and the kills."""

    def __init__(self, data: Path, seed: int, isolation: str = "read_committed", zombies: float = 0.0) -> None:
        self.data = data
        self.seed = seed
        self.isolation = isolation
        self.zombies = zombies
        self.listen = f"127.0.0.1:{own_port()}"
        self.collector = Collector()
        self.faults: Counter[str] = Counter()
        self.processes: list[Process] = []
        self.server = self.start_server()

    def start_server(self) -> ServerProcess:
        return ServerProcess(self.data, listen=self.listen)

    def run(self, faults: Iterable[Fault]) -> History:
        """One fault after the other."""
        try:
            admin = AdminClient({**QUICK, "bootstrap.servers": self.listen})
            for made in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in TOPICS]).values():
                made.result(TIMEOUT_S)
            self.processes = [
                Process(
                    name,
                    number,
                    self.listen,
                    self.seed * 1000 + number * 100,
                    self.isolation,
                    self.zombies,
                    self.collector,
                )
                for number, name in enumerate(CLIENTS, start=1)
            ]
            self.wait_all()
            for fault in faults:
                time.sleep(fault.after_s)
                self.strike(fault)
            self.resume_clients()
            self.wait_all()
            self.stop_clients()
            self.abort_open()
            self.read_everything()
            return self.collector.history()
        finally:
            self.stop_clients()
            self.server.__exit__(None)

    def wait_all(self) -> None:
        """Until each client has done more than it had."""
        before = {name: self.collector.count(name) for name in CLIENTS}
        ends_at = time.monotonic() + END_S
        for name in CLIENTS:
            while self.collector.count(name) <= before[name]:
                if time.monotonic() > ends_at:
                    raise AssertionError(f"{name} got nothing done in {END_S:.0f} s")
                time.sleep(0.05)

    def strike(self, fault: Fault) -> None:
        self.faults[f"{fault.victim.partition('-')[0]} {'stopped' if fault.stops_s else 'killed'}"] += 1
        if fault.victim != SERVER:
            self.processes[CLIENTS.index(fault.victim)].strike(fault.stops_s)
        elif fault.stops_s:
            self.server.process.send_signal(signal.SIGSTOP)
            time.sleep(fault.stops_s)
            self.server.process.send_signal(signal.SIGCONT)
        else:
            self.server.kill()
            self.server.__exit__(None)
            self.server = self.start_server()

    def resume_clients(self) -> None:
        for one in self.processes:
            one.resume()

    def stop_clients(self) -> None:
        self.resume_clients()
        for one in self.processes:
            one.ask_to_end()
        ends_at = time.monotonic() + END_S
        for one in self.processes:
            one.end(ends_at)

    def abort_open(self) -> None:
        for name in TRANSACTIONAL:
            Producer({**QUICK, "bootstrap.servers": self.listen, "transactional.id": name}).init_transactions(END_S)

    def read_everything(self) -> None:
        recorder = Recorder("last")
        consumer = Consumer(
            {
                **QUICK, "bootstrap.servers": self.listen, "group.id": "last", "isolation.level": "read_committed",
                "enable.partition.eof": True, "auto.offset.reset": "earliest", "enable.auto.commit": False,
            }
        )  # fmt: skip
        consumer.assign([TopicPartition(*split(key), 0) for key in KEYS])
        ended: set[str] = set()
        ends_at = time.monotonic() + END_S
        while len(ended) < len(KEYS) and time.monotonic() < ends_at:
            begun = recorder.operation("invoke", "poll")
            made = Steps([])
            messages = consumer.consume(READ_AT_ONCE, 0.1)
            made.add_poll(
                (f"{one.topic()}-{one.partition()}", one.offset() or 0, one.value() or b"")
                for one in messages
                if one.error() is None
            )
            ended |= {f"{one.topic()}-{one.partition()}" for one in messages if is_end(one.error())}
            self.collector.take(f"invoke {encode(begun)}\n")
            self.collector.take(f"done {encode(recorder.operation('ok', 'poll', made.steps))}\n")
        consumer.close()
        if len(ended) < len(KEYS):
            raise AssertionError(f"only {ended} were read to their end in {END_S:.0f} s")


def is_end(error: object) -> bool:
    return isinstance(error, KafkaError) and error.code() == KafkaError._PARTITION_EOF


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="kill -9 under transactional clients, and a check of their history")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--isolation", default="read_committed", help="of the readers; with read_uncommitted there must be errors"
    )
    parser.add_argument("--keep", type=Path, help="a file for the history")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload(Path(folder) / "data", options.seed, options.isolation, ZOMBIES)
        history = workload.run(random_faults(options.seed, options.seconds))
    if options.keep is not None:
        save(history, options.keep)
    results = Counter(f"{one.name} {one.kind}" for one in history if one.kind != "invoke")
    faults = ", ".join(f"{name} {count}" for name, count in sorted(workload.faults.items()))
    print(f"{len(history)} operations: {', '.join(f'{count} {name}' for name, count in sorted(results.items()))}")
    failed = sum(one.errors for one in workload.processes)
    print(f"{faults}; {failed} clients ended with an error; {time.monotonic() - began:.0f} s (seed {options.seed})")
    found = check(history)
    print(describe(found))
    print(f"{len(errors(found))} errors")
    return 1 if errors(found) else 0


if __name__ == "__main__":
    sys.exit(main())
