"""kill -9 while logs are compacted: no acknowledged value of a key is lost, and none comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.process import ServerProcess
from tests.harness.present import present

CYCLES = 4
KEYS = 5
SETTINGS = ("--set", "log.cleaner.backoff.ms=1", "--set", "log.sync=os")
WAIT_S = 110.0


class Writer:
    """Numbers written to keys, and the last one of each that was acknowledged."""

    def __init__(self) -> None:
        self.number = 0
        self.acknowledged: dict[bytes, int] = {}

    def write_for(self, bootstrap: str, seconds: float, is_enough: Callable[[], bool]) -> None:
        """For so long, and until it is enough."""
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "message.timeout.ms": 60_000})
        begin = time.monotonic()
        while time.monotonic() < begin + seconds or not is_enough():
            assert time.monotonic() < begin + WAIT_S, "nothing was compacted"
            for key in range(KEYS):
                self.number += 1
                value = b"%d " % self.number + bytes(60_000)
                producer.produce("c", key=b"%d" % key, value=value, on_delivery=self.delivered)
            assert producer.flush(WAIT_S) == 0

    def delivered(self, error: object, message: object) -> None:
        if error is None:
            key, value = message.key(), message.value()  # type: ignore[attr-defined]
            self.acknowledged[key] = int(value.split()[0])


def read_newest(bootstrap: str) -> dict[bytes, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    tp = TopicPartition("c", 0, 0)
    end = consumer.get_watermark_offsets(tp, timeout=WAIT_S)[1]
    consumer.assign([tp])
    found: dict[bytes, int] = {}
    deadline = time.monotonic() + WAIT_S
    while consumer.position([tp])[0].offset < end:
        assert time.monotonic() < deadline, "the log cannot be read to its end"
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            found[present(message.key())] = int(present(message.value()).split()[0])
    consumer.close()
    return found


def test_kills_while_logs_are_compacted(tmp_path: Path) -> None:
    rng = random.Random(4)
    writer = Writer()
    compactions = 0
    for cycle in range(CYCLES):
        with ServerProcess(tmp_path / "data", *SETTINGS) as server:
            if cycle == 0:
                configs = {
                    "cleanup.policy": "compact",
                    "segment.bytes": "1048576",
                    "min.cleanable.dirty.ratio": "0",
                }
                admin = AdminClient({"bootstrap.servers": server.bootstrap})
                topic = NewTopic("c", 1, 1, config=configs)
                admin.create_topics([topic])["c"].result(WAIT_S)
            else:
                found = read_newest(server.bootstrap)
                for key, number in writer.acknowledged.items():
                    assert found[key] >= number

            def is_enough(server: ServerProcess = server, before: int = compactions) -> bool:
                return before > 0 or bool(server.lines("compacted"))

            writer.write_for(server.bootstrap, rng.uniform(0.8, 1.6), is_enough)
            # Somewhere in a compaction, or between two.
            time.sleep(rng.uniform(0, 0.3))
            server.kill()
            compactions += len(server.lines("compacted"))
            assert not server.lines("log_damaged")
    with ServerProcess(tmp_path / "data", *SETTINGS) as server:
        assert {key: read_newest(server.bootstrap)[key] for key in writer.acknowledged} == writer.acknowledged
        assert server.stop() == 0
    assert compactions > 0
