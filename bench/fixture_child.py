"""One process that measures the calls of the fixture, and prints them as JSON; see fixture.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Final

from kcoord.testing.fixture import KcoordServer
from kcoord.wire import record_batch

ROUNDS: Final = 20
PARTITIONS: Final = 4
RECORDS: Final = 10_000
RECORD_BYTES: Final = 100


def ms(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def fill(server: KcoordServer) -> None:
    """What a restore brings back: RECORDS records in PARTITIONS partitions, and a group."""
    server.create_topic("orders", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        server.produce("orders", [bytes(RECORD_BYTES)] * (RECORDS // PARTITIONS), partition=partition)
    server.commit("billing", {("orders", partition): 1 for partition in range(PARTITIONS)})


def measure() -> dict[str, list[float]]:
    """The milliseconds of each round."""
    rounds: dict[str, list[float]] = {}

    def note(name: str, call: Callable[[], object]) -> None:
        rounds.setdefault(name, []).append(ms(call))

    for _ in range(ROUNDS):
        server = KcoordServer()
        note("start", server.start)
        server.produce("orders", b"order")
        note("reset", server.reset)
        fill(server)
        snapshot = server.snapshot()
        note("snapshot", server.snapshot)
        server.reset()
        note("restore", lambda server=server, snapshot=snapshot: server.restore(snapshot))  # type: ignore[misc]
        note("restart", server.restart)
        if len(server.records("orders", start=RECORDS // PARTITIONS - 1)) != PARTITIONS:
            raise RuntimeError("records are missing after the restart")
        server.stop()
    return rounds


def main() -> int:
    print(json.dumps({"compiled": not record_batch.__file__.endswith(".py"), "ms": measure()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
