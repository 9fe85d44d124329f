"""`make bench-partitions`: a server with many partitions and few open files.

The benchmark creates topics, writes and reads every partition, stops and starts the server, and kills and starts it.
After each start every partition must be readable and writable. The server gets a hard limit on open files, which it
cannot raise. Each step prints the server's CPU time, the elapsed time, and the memory and open files of the process
(Linux).
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.servers import environment
from bench.workload import Client, check, create_topic
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.record_batches import parse_batches

PER_TOPIC: Final = 500
PER_REQUEST: Final = 250
DEADLINE_S: Final = 900.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Step:
    """The times of one step, and the memory and open files after it."""

    def __init__(self, name: str, cpu_s: float, wall_s: float, rss_mb: float, files: int) -> None:
        self.name = name
        self.cpu_s = cpu_s
        self.wall_s = wall_s
        self.rss_mb = rss_mb
        self.files = files

    def __str__(self) -> str:
        return (
            f"{self.name:<14} {self.cpu_s:7.2f} s CPU {self.wall_s:7.2f} s {self.rss_mb:7.1f} MB {self.files:6d} files"
        )


class Trial:
    """One data directory and the servers on it. `rounds` batches are in each partition."""

    def __init__(self, data: Path, partitions: int, descriptors: int, sync: str, compiled: bool = False) -> None:
        self.data = data
        self.partitions = partitions
        self.descriptors = descriptors
        self.sync = sync
        self.compiled = compiled
        self.rounds = 0
        self.steps: list[Step] = []
        self.process: subprocess.Popen[str] | None = None
        self.client: Client
        self._cpu_s = 0.0
        self._began = 0.0

    # --- steps

    def run(self, stops: bool = True) -> list[Step]:
        """Run all steps in order. Raises RuntimeError or OSError if a step fails."""
        try:
            self.start("first start")
            self._step("create", self.create)
            self._step("write", self.write)
            self._step("read", self.read)
            if stops:
                self._step("clean stop", self.stop)
                self.start("clean start")
                self._step("read", self.read)
            self._step("write", self.write)
            self.kill()
            self.start("crash start")
            self._step("read", self.read)
            self._step("write", self.write)
            self._step("clean stop", self.stop)
            return self.steps
        finally:
            self.kill()

    def _step(self, name: str, work: object) -> None:
        assert callable(work)
        cpu_s, began = self._cpu(), time.perf_counter()
        work()
        self._note(name, cpu_s, began)

    def _note(self, name: str, cpu_s: float, began: float) -> None:
        step = Step(name, self._cpu() - cpu_s, time.perf_counter() - began, self._rss_mb(), self._files())
        self.steps.append(step)

    def _topics(self) -> list[tuple[str, int]]:
        return [
            (f"t{first // PER_TOPIC}", min(PER_TOPIC, self.partitions - first))
            for first in range(0, self.partitions, PER_TOPIC)
        ]

    def create(self) -> None:
        for name, count in self._topics():
            create_topic(self.client, name, count)

    def _requests(self) -> list[tuple[str, range]]:
        return [
            (name, range(first, min(first + PER_REQUEST, count)))
            for name, count in self._topics()
            for first in range(0, count, PER_REQUEST)
        ]

    def write(self) -> None:
        """Write one batch to every partition."""
        builder = BatchBuilder()
        builder.append(int(time.time() * 1000), b"key", b"value %d" % self.rounds)
        batch = builder.build(0, 0)
        for name, indexes in self._requests():
            data = [PartitionProduceData(index, batch) for index in indexes]
            request = ProduceRequest(None, -1, 60_000, [TopicProduceData(name, partition_data=data)])
            answer = self.client.call(0, 8, request, ProduceResponse)
            for found in answer.responses[0].partition_responses:
                check(found.error_code, f"produce to {name}-{found.index}")
                if found.base_offset != self.rounds:
                    raise RuntimeError(f"{name}-{found.index} wrote at {found.base_offset}, not {self.rounds}")
        self.rounds += 1

    def read(self) -> None:
        """Read every partition from its beginning."""
        for name, indexes in self._requests():
            wanted = [FetchPartition(index, -1, 0, partition_max_bytes=1 << 20) for index in indexes]
            request = FetchRequest(
                replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, session_id=0, session_epoch=-1,
                topics=[FetchTopic(name, partitions=wanted)],
            )  # fmt: skip
            answer = self.client.call(1, 11, request, FetchResponse)
            check(answer.error_code, "fetch")
            for found in answer.responses[0].partitions:
                check(found.error_code, f"fetch from {name}-{found.partition_index}")
                count = len(parse_batches(found.records or b""))
                if count != self.rounds:
                    raise RuntimeError(f"{name}-{found.partition_index} has {count} batches, not {self.rounds}")

    # --- the process

    def start(self, name: str) -> None:
        began = time.perf_counter()
        command = [sys.executable, "-P", "-m", "kcoord.cli.main", "serve", "--listen", "127.0.0.1:0"]
        for setting in (f"log.sync={self.sync}", f"request.partitions.max={self.partitions}"):
            command += ["--set", setting]
        variables = environment(self.compiled)
        if not self.compiled and os.environ.get("PYTHONPATH"):
            variables["PYTHONPATH"] = os.environ["PYTHONPATH"]
        with open(self.data.with_suffix(".log"), "ab") as log:
            self.process = subprocess.Popen(
                [*command, "--data", str(self.data)], stdout=subprocess.PIPE, stderr=log, text=True,
                env=variables, cwd=tempfile.gettempdir(), preexec_fn=self._limit,  # noqa: PLW1509 - no thread runs here, and it is one system call
            )  # fmt: skip
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        line = self.process.stdout.readline().strip() if readable else ""
        if " ready " not in line:
            raise RuntimeError(f"the server did not start: {line!r}\n{self.tail()}")
        self._note(name, 0.0, began)
        host, _, port = line.rpartition(" ")[2].rpartition(":")
        self.client = Client(host, int(port))
        self.client.socket.settimeout(DEADLINE_S)

    def _limit(self) -> None:
        if self.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.descriptors, self.descriptors))

    def tail(self) -> str:
        return "\n".join(self.data.with_suffix(".log").read_text().splitlines()[-20:])

    def lines(self, event: str) -> list[str]:
        """The log lines of the servers with one event."""
        return [line for line in self.data.with_suffix(".log").read_text().splitlines() if f'"{event}"' in line]

    def stop(self) -> None:
        assert self.process is not None
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(DEADLINE_S):
            raise RuntimeError(f"exit code {self.process.returncode}\n{self.tail()}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None

    def _cpu(self) -> float:
        """The CPU time of the process; if it has ended, the last value that was read."""
        try:
            stat = Path(f"/proc/{self._pid()}/stat").read_text()
        except OSError:
            return self._cpu_s
        self._cpu_s = sum(map(int, stat[stat.rindex(")") + 2 :].split()[11:13])) / TICKS
        return self._cpu_s

    def _pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    def _rss_mb(self) -> float:
        try:
            lines = Path(f"/proc/{self._pid()}/status").read_text().splitlines()
        except OSError:
            return 0.0
        return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS:"))

    def _files(self) -> int:
        try:
            return len(os.listdir(f"/proc/{self._pid()}/fd"))
        except OSError:
            return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument(
        "--descriptors", type=int, default=1024, help="the limit on open files; 0: that of this process"
    )
    parser.add_argument("--sync", choices=["always", "os"], default="always")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="kcoord-partitions-", ignore_cleanup_errors=True) as scratch:
        trial = Trial(Path(scratch) / "data", options.partitions, options.descriptors, options.sync, options.compiled)
        print(f"{options.partitions} partitions, {options.descriptors} open files, log.sync={options.sync}")
        try:
            trial.run()
        except (OSError, RuntimeError):
            print(trial.tail(), file=sys.stderr)
            raise
        finally:
            for step in trial.steps:
                print(step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
