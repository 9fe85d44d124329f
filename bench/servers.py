"""The processes that are measured: kcoord, interpreted and compiled, a Kafka broker, and a bare echo."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 30.0
STOP_SECONDS = 15.0

# The JVM options of Kafka's own start script, and all compiler tiers. The tests' harness, which starts the broker, sets
# a small collector and one tier; of the ways to pass options, only this variable overrides them.
KAFKA_JVM_VARIABLE = "_JAVA_OPTIONS"
KAFKA_JVM = (
    "-XX:TieredStopAtLevel=4 -XX:-UseSerialGC -XX:+UseG1GC -XX:MaxGCPauseMillis=20"
    " -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent -Xms1g -Xmx1g"
)
# The harness sets fewer partitions and shorter delays; here the broker has its defaults. With one exception: it removes
# the files of a deleted topic as soon as kcoord does, and not a minute later. In a virtual machine new memory costs
# more than memory that was used before. What kcoord freed after its turn served the broker's next turn, and kcoord had
# to take new memory for its own.
KAFKA_DEFAULTS = {
    "offsets.topic.num.partitions": "50",
    "log.initial.task.delay.ms": "30000",
    "log.segment.delete.delay.ms": "500",
}


class Address(NamedTuple):
    host: str
    port: int
    # The process that serves, for its CPU time.
    pid: int = 0


class Server:
    """A child process that prints `... ready HOST:PORT`; used in a with statement."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.started = time.perf_counter()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
            cwd=tempfile.gettempdir(),
        )
        self.host, self.port = self.wait_ready()
        self.ready_ms = (time.perf_counter() - self.started) * 1000

    def wait_ready(self) -> tuple[str, int]:
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], READY_SECONDS)
        line = self.process.stdout.readline().strip() if readable else ""
        if " ready " not in line:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"the server did not start: {line!r}\n{self.tail()}")
        host, _, port = line.rpartition(" ")[2].rpartition(":")
        return host, int(port)

    def tail(self) -> str:
        self.log.seek(0)
        return "".join(self.log.readlines()[-20:])

    def rss_mb(self) -> float:
        """Resident memory in MB, from /proc; not-a-number on systems without /proc."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return float("nan")
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
        return float("nan")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if error is not None:
            print(self.tail(), file=sys.stderr)
        self.log.close()


def environment(compiled: bool) -> dict[str, str]:
    """The environment variables of a process that runs one of the two trees."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KCOORD_")}
    # An installed kcoord has its bytecode cached, so this one caches it as well, from its second start on.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPATH"] = str(ROOT / "build" / "compiled" if compiled else ROOT)
    return environment


def run_module(
    compiled: bool, module: str, arguments: Sequence[str], deadline_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a module of `bench` to its end, with the compiled or the interpreted kcoord. Raises TimeoutExpired."""
    variables = environment(compiled)
    variables["PYTHONPATH"] += f":{ROOT}"
    variables["PYTHONSAFEPATH"] = "1"
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=variables, cwd=tempfile.gettempdir(), capture_output=True, text=True, timeout=deadline_s,
    )  # fmt: skip


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder on the project's disk, which is removed afterwards."""
    scratch = ROOT / "build" / "bench"
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def kcoord(compiled: bool, data: Path, sync: str, *settings: str) -> Server:
    """Start `kcoord serve` on a free port with its own data directory."""
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "serve", "--listen", "127.0.0.1:0"]
    for setting in (f"log.sync={sync}", *settings):
        command += ["--set", setting]
    return Server([*command, "--data", str(data)], environment(compiled))


@contextmanager
def kafka(data: Path, settings: Mapping[str, str]) -> Iterator[Address]:
    """Start a Kafka broker of one node. Raises `java.ToolchainMissing` without Java or Maven."""
    # The tests are not part of the package; the benchmarks run in the checkout, which has them.
    from tests.harness.real_broker import RealBroker

    before = os.environ.get(KAFKA_JVM_VARIABLE)
    os.environ[KAFKA_JVM_VARIABLE] = KAFKA_JVM
    try:
        with RealBroker({**KAFKA_DEFAULTS, **settings}, data=data) as broker:
            yield Address("127.0.0.1", broker.port, broker.pid)
    finally:
        if before is None:
            del os.environ[KAFKA_JVM_VARIABLE]
        else:
            os.environ[KAFKA_JVM_VARIABLE] = before


def echo() -> Server:
    """Write back every read: the cost of the event loop and the kernel alone."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Server([sys.executable, "-P", "-m", "bench.servers"], environment)


def synced_echo(file: Path) -> Server:
    """Append every read to `file` and sync it before it is written back."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Server([sys.executable, "-P", "-m", "bench.synced_echo", str(file)], environment)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve_echo() -> None:
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(f"echo ready 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def run_echo(serving: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)


if __name__ == "__main__":
    run_echo(serve_echo())
