"""kill -9 while the metadata log is shortened: topics that were made are there, those that were deleted are not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.process import ServerProcess

CYCLES = 5
WAIT_S = 110.0
SETTINGS = (
    "--set", "metadata.log.max.record.bytes.between.snapshots=1500",
    "--set", "metadata.log.max.snapshot.interval.ms=200",
    "--set", "metadata.max.retention.bytes=0",
)  # fmt: skip


class Owner:
    """Makes and deletes topics, and knows which of that was acknowledged."""

    def __init__(self) -> None:
        self.number = 0
        self.made: set[str] = set()
        self.deleted: set[str] = set()

    def work_for(self, bootstrap: str, seconds: float, is_enough: Callable[[], bool]) -> None:
        """For so long, and until it is enough."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        begin = time.monotonic()
        while time.monotonic() < begin + seconds or not is_enough():
            assert time.monotonic() < begin + WAIT_S, "the log was not shortened"
            name = f"topic-{self.number}"
            self.number += 1
            admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
            self.made.add(name)
            if self.number % 10:
                admin.delete_topics([name])[name].result(WAIT_S)
                self.deleted.add(name)

    def check(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        there = {name for name in admin.list_topics(timeout=WAIT_S).topics if not name.startswith("__")}
        assert there == self.made - self.deleted


def test_kills_while_the_metadata_log_is_shortened(tmp_path: Path) -> None:
    rng = random.Random(9)
    owner = Owner()
    shortened = 0
    for cycle in range(CYCLES):
        with ServerProcess(tmp_path / "data", *SETTINGS) as server:
            if cycle:
                owner.check(server.bootstrap)

            def is_enough(server: ServerProcess = server, before: int = shortened) -> bool:
                return before > 0 or bool(server.lines("metadata_log_shortened"))

            owner.work_for(server.bootstrap, rng.uniform(1.0, 2.5), is_enough)
            # Somewhere in a snapshot, or between two.
            time.sleep(rng.uniform(0, 0.3))
            server.kill()
            shortened += len(server.lines("metadata_log_shortened"))
            assert not server.lines("metadata_snapshot_damaged")
    with ServerProcess(tmp_path / "data", *SETTINGS) as server:
        owner.check(server.bootstrap)
        assert server.stop() == 0
    assert shortened > 0
    names = sorted(path.name for path in (tmp_path / "data" / "__cluster_metadata-0").iterdir())
    assert f"{0:020d}.log" not in names and sum(name.endswith(".checkpoint") for name in names) >= 1
    assert len(owner.made) > 10
