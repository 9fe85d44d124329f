"""Kafka's Java client as a client of tests/harness/retries.py: all consumers and producers of a test in one JVM.

It runs tests/interop/java/ClientSteps.java, and talks to it in lines of JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, final

from tests.harness import java
from tests.harness.retries import Raised
from tests.harness.retry_clients import BACKOFF_MS, REQUEST_MS

COMMON: Final[dict[str, Any]] = {
    "retry.backoff.ms": BACKOFF_MS,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "request.timeout.ms": REQUEST_MS,
}
API_MS: Final = 20_000
# After these a producer cannot go on.
FATAL: Final = ("ProducerFencedException", "InvalidProducerEpochException", "InvalidPidMappingException")
STOP_S: Final = 30.0


@final
class JavaSteps:
    """The JVM. Lines may be sent from any thread or task."""

    def __init__(self) -> None:
        command = java.command("ClientSteps", heap_mb=512)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._ids = itertools.count()
        self._asked: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, client: str, step: str, **fields: Any) -> Future[Any]:
        """The result of a step, or Raised."""
        future: Future[Any] = Future()
        # Whoever waits may be cancelled; the step goes on.
        future.set_running_or_notify_cancel()
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._ids)
            self._asked[number] = future
            line = {"id": number, "client": client, "do": step, **fields}
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        return future

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            future = self._asked.pop(answer["id"])
            if "error" in answer:
                future.set_exception(Raised(answer["error"], is_over=answer["error"] in FATAL))
            else:
                future.set_result(answer["result"])
        for future in self._asked.values():
            future.set_exception(RuntimeError("the JVM has ended"))


@final
class JavaConsumer:
    """It reads the topic with its group's name. `settings` replace those that the retries need."""

    _numbers = itertools.count()

    def __init__(self, steps: JavaSteps, bootstrap: str, name: str, protocol: str, **settings: Any) -> None:
        self._steps = steps
        self._name = f"consumer {next(self._numbers)}"
        self._topic = name
        self._settings: dict[str, Any] = {
            **COMMON,
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "group.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "default.api.timeout.ms": API_MS,
            "fetch.max.wait.ms": 100,
            "max.poll.records": 1,
        }
        if protocol == "classic":
            self._settings["heartbeat.interval.ms"] = 100
        self._settings.update(settings)

    async def start(self) -> None:
        await self._ask("consumer", settings=self._settings, topic=self._topic)

    async def poll(self, seconds: float) -> Sequence[int]:
        return [offset for _, offset, _ in await self.poll_records(seconds)]

    async def poll_records(self, seconds: float) -> list[tuple[int, int, str]]:
        """Partition, offset and value of each record."""
        return [(one[0], one[1], one[2]) for one in await self._ask("poll", ms=round(seconds * 1000))]

    async def commit(self) -> None:
        await self._ask("commit")

    async def close(self) -> None:
        await self._ask("close")

    async def _ask(self, step: str, **fields: Any) -> Any:
        return await asyncio.wrap_future(self._steps.ask(self._name, step, **fields))


@final
class JavaProducer:
    """Idempotent, and transactional unless `is_transactional` is off."""

    _numbers = itertools.count()

    def __init__(self, steps: JavaSteps, bootstrap: str, name: str, is_transactional: bool = True) -> None:
        self._steps = steps
        self._name = f"producer {next(self._numbers)}"
        self._settings = {
            **COMMON,
            **({"transactional.id": name} if is_transactional else {}),
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "linger.ms": 0,
            "delivery.timeout.ms": API_MS,
            "max.block.ms": API_MS,
        }

    async def start(self) -> None:
        await self._ask("producer", settings=self._settings)

    async def init(self) -> None:
        await self._ask("init")

    async def begin(self) -> None:
        await self._ask("begin")

    async def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        await self._ask("send", topic=topic, partition=partition, value=value.decode())

    async def offsets(self, topic: str, offset: int, group: str) -> None:
        await self._ask("offsets", topic=topic, offset=offset, group=group)

    async def commit(self) -> None:
        await self._ask("end")

    async def abort(self) -> None:
        await self._ask("abort")

    async def close(self) -> None:
        await self._ask("close")

    async def _ask(self, step: str, **fields: Any) -> Any:
        return await asyncio.wrap_future(self._steps.ask(self._name, step, **fields))


@final
class Java:
    def __init__(self, steps: JavaSteps) -> None:
        self._steps = steps

    def consumer(self, bootstrap: str, name: str, protocol: str) -> JavaConsumer:
        return JavaConsumer(self._steps, bootstrap, name, protocol)

    def producer(self, bootstrap: str, name: str) -> JavaProducer:
        return JavaProducer(self._steps, bootstrap, name)
