"""What the polite clients read: numbers from 0 on in every partition of some topics, at a steady rate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Producer

from tests.strangers.members import QUICK

EVERY_S: Final = 0.1
FLUSH_S: Final = 60.0


class Feed:
    """An idempotent producer on a thread of its own. The value of a record is its number in its partition."""

    def __init__(self, bootstrap: str, topics: dict[str, int], failed: Callable[[str], None]) -> None:
        self.counts = {(topic, partition): 0 for topic, count in topics.items() for partition in range(count)}
        self._failed = failed
        self._producer = Producer(
            {**QUICK, "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0, "acks": "all"}
        )
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed(f"a record of {message.topic()}-{message.partition()} was not written: {error}")

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_S):
            for (topic, partition), count in self.counts.items():
                self._producer.produce(topic, b"%d" % count, partition=partition, on_delivery=self._delivered)
                self.counts[topic, partition] = count + 1
            self._producer.poll(0)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join(FLUSH_S)
        if self._producer.flush(FLUSH_S):
            self._failed(f"records were not written within {FLUSH_S:.0f} s after the last one")
        # With it go its connections.
        del self._producer
