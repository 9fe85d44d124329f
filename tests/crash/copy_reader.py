"""Readers of committed records, and what a copy has to look like.

Every partition of the source has the numbers from 0 on. At any time its copy must be the first of them, in order: none
is there twice, none is missing, and no aborted record is there.
"""

from __future__ import annotations

import threading
import time

from confluent_kafka import Consumer, TopicPartition

from tests.crash.copy_client import PARTITIONS
from tests.harness.present import present

WAIT_S = 120.0
POLL_S = 0.2
AT_ONCE = 500


def committed_reader(bootstrap: str, topic: str, **settings: object) -> Consumer:
    """A consumer of all partitions, from the beginning."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed", "log_level": 0,
            "auto.offset.reset": "earliest", "enable.auto.commit": False, "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200, "error_cb": lambda error: None, **settings,
        }
    )  # fmt: skip
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    return reader


class Progress:
    """What somebody has read of a copy; each record is checked at once."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.counts = dict.fromkeys(range(PARTITIONS), 0)
        self.problems: list[str] = []

    def take(self, partition: int, value: bytes) -> None:
        expected = self.counts[partition]
        if value != b"%d" % expected:
            self.problems.append(f"{self.topic}-{partition}: a reader got {value.decode()} instead of {expected}")
        self.counts[partition] += 1


class LiveReader(Progress):
    """Reads a copy while it is made, on a thread of its own and through all kills."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(topic)
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        reader = committed_reader(self._bootstrap, self.topic)
        while not self._is_over.is_set():
            for message in reader.consume(AT_ONCE, POLL_S):
                if message.error() is None:
                    self.take(present(message.partition()), present(message.value()))
        reader.close()

    def wait(self, counts: dict[int, int]) -> bool:
        """Whether it gets so far within the deadline."""
        ends_at = time.monotonic() + WAIT_S
        while any(self.counts[partition] < count for partition, count in counts.items()):
            if time.monotonic() > ends_at:
                return False
            time.sleep(0.02)
        return True

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(WAIT_S)


def read_committed(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """Everything up to the last stable offsets."""
    reader = committed_reader(bootstrap, topic, **{"enable.partition.eof": True})
    values: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    ended: set[int] = set()
    ends_at = time.monotonic() + WAIT_S
    while len(ended) < PARTITIONS and time.monotonic() < ends_at:
        for message in reader.consume(AT_ONCE, POLL_S):
            if message.error() is None:
                values[present(message.partition())].append(present(message.value()))
            elif present(message.error()).name() == "_PARTITION_EOF":
                ended.add(present(message.partition()))
    reader.close()
    return values


def first_difference(found: list[bytes]) -> str:
    """Between what a partition of the copy has and a beginning of the numbers; empty if there is none."""
    for number, value in enumerate(found):
        if value != b"%d" % number:
            return f"record {number} is {value.decode()}"
    return ""
