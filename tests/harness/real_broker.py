"""A real Apache Kafka broker, one KRaft node in a temporary directory, for settling questions of behaviour.

    with RealBroker() as broker:
        broker.bootstrap   # "127.0.0.1:PORT"

Also a program: `python -m tests.harness.real_broker` keeps one running until it is interrupted.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness import java
from tests.harness.ports import own_port

START_DEADLINE_S = 120.0
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.initial.task.delay.ms": "500",
}


class RealBroker:
    """Starts on entering, stops and removes its directory on leaving.

    `properties` are added to, or replace, the server properties. `data` is the log directory: a new one, unless one
    is given, which is then not formatted if it is already. With `port` it takes the place of another server.
    `release` is another release of Kafka than the one in the pom, such as 3.9.2.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        keep: bool = False,
        data: Path | None = None,
        port: int | None = None,
        release: str = "",
    ) -> None:
        self.release = release
        self._extra = dict(properties or {})
        self._keep = keep
        self.home = Path(tempfile.mkdtemp(prefix="kcoord-real-broker-"))
        self.data = data or self.home / "data"
        self.port = own_port() if port is None else port
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        controller = own_port()
        settings = dict(PROPERTIES)
        settings["controller.quorum.voters"] = f"1@127.0.0.1:{controller}"
        settings["listeners"] = f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}"
        settings["advertised.listeners"] = f"PLAINTEXT://127.0.0.1:{self.port}"
        settings["log.dirs"] = str(self.data)
        settings.update(self._extra)
        config = self.home / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        if not (self.data / "meta.properties").exists():
            self._format(config)
        with open(self.home / "broker.log", "wb") as log:
            command = java.command("kafka.Kafka", str(config), heap_mb=1024, release=self.release)
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self._wait_until_up()

    def _format(self, config: Path) -> None:
        args = ["format", "-t", CLUSTER_ID, "-c", str(config)]
        command = java.command("kafka.tools.StorageTool", *args, release=self.release)
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_DEADLINE_S)
        if done.returncode != 0:
            raise RuntimeError(f"formatting the broker's directory failed:\n{done.stdout}{done.stderr}")

    def _wait_until_up(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the broker ended at start:\n{self.log_tail()}")
            if self._answers():
                return
            time.sleep(0.1)
        raise RuntimeError(f"the broker was not up within {START_DEADLINE_S:g} s:\n{self.log_tail()}")

    def _answers(self) -> bool:
        """True when a Metadata v0 request is answered with this broker in it, which needs a finished start."""
        request = bytes.fromhex("0003000000000001ffff00000000")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as link:
                link.sendall(len(request).to_bytes(4, "big") + request)
                answer = link.recv(4096)
        except OSError:
            return False
        return len(answer) >= 12 and int.from_bytes(answer[8:12], "big") >= 1

    @property
    def pid(self) -> int:
        """The process of the broker; 0 if it does not run."""
        return 0 if self._process is None else self._process.pid

    def log_tail(self, lines: int = 40) -> str:
        log = self.home / "broker.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"

    def stop(self, kill: bool = False) -> None:
        """Stops the process; kill leaves the data directory as a crash would."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self._process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if not self._keep:
            shutil.rmtree(self.home, ignore_errors=True)


def main() -> None:
    with RealBroker() as broker:
        print(f"kafka ready {broker.bootstrap} {broker.data}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
