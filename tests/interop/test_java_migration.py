"""A group changes its protocol by rolling restarts under load, with the Java consumer among its members (KIP-848)."""

from __future__ import annotations

import json
import subprocess
import threading
import time

from tests.e2e.movers import Worker
from tests.e2e.ownership import Ownership
from tests.e2e.rolling import Load, Member, Rolling
from tests.harness import java
from tests.interop.conftest import Target

END_S = 60.0
PACKAGE = "org.apache.kafka.clients.consumer."
CLASSIC = {"heartbeat.interval.ms": "100", "session.timeout.ms": "30000"}
KINDS = {
    "java-eager": {**CLASSIC, "partition.assignment.strategy": PACKAGE + "RangeAssignor"},
    # As the documentation of a move from eager to cooperative has it: both for a while.
    "java-cooperative": {
        **CLASSIC, "partition.assignment.strategy": PACKAGE + "CooperativeStickyAssignor," + PACKAGE + "RangeAssignor",
    },
    "java-cooperative-only": {**CLASSIC, "partition.assignment.strategy": PACKAGE + "CooperativeStickyAssignor"},
    "java-consumer": {"group.protocol": "consumer"},
}  # fmt: skip


class JavaWorker:
    """A Java consumer in a process of its own."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str, notes: Ownership) -> None:
        self.name = f"{kind}-{time.monotonic():.3f}"
        self.failure: BaseException | None = None
        self.notes = notes
        settings = [word for pair in KINDS[kind].items() for word in pair]
        self.process = subprocess.Popen(
            java.command("GroupMember", bootstrap, group, topic, *settings, heap_mb=128),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line = json.loads(text)
            if line["event"] == "assigned":
                self.notes.assigned(self.name, line["partitions"], at=line["at"])
            elif line["event"] == "given up":
                self.notes.given_up(self.name, line["partitions"], at=line["at"])
            elif not self.notes.process(self.name, line["partition"], line["offset"], line["value"]):
                self.failure = AssertionError(f"{self.name} processed what it does not own: {line}")
        self.notes.given_up(self.name, self.owned())

    def owned(self) -> list[int]:
        return self.notes.owned(self.name)

    def stop(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            code = self.process.wait(END_S)
        finally:
            self.process.kill()
            self.process.wait()
        self.reader.join(END_S)
        self.process.stdout.close()
        assert (code, self.failure) == (0, None)


def begin(kind: str, bootstrap: str, group: str, topic: str, notes: Ownership) -> Member:
    return (JavaWorker if kind in KINDS else Worker)(kind, bootstrap, group, topic, notes)


def test_upgrade_and_downgrade_under_load(quick_target: Target) -> None:
    rolling = Rolling(quick_target.bootstrap, begin)
    rolling.create_topic()
    load = Load(quick_target.bootstrap)
    types: list[str] = []
    try:
        for kind in ("aiokafka", "java-cooperative", "confluent"):
            rolling.start(kind)
        types.append(rolling.type_of_group())
        for kind in ("java-consumer", "consumer", "java-consumer"):
            rolling.replace(kind)
            types.append(rolling.type_of_group())
        for kind in ("kafka-python", "java-eager", "confluent"):
            rolling.replace(kind)
            types.append(rolling.type_of_group())
        rolling.check(load)
    finally:
        load.stop()
        for one in rolling.members:
            if isinstance(one, JavaWorker):
                one.process.kill()
    assert types == ["CLASSIC", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CLASSIC"]
    assert len({interval.member for interval in rolling.notes.intervals if interval.processed}) == 9
