"""A log with `preallocate`, which ends in zeros while its server runs, before Kafka's own code."""

from __future__ import annotations

import shutil
from pathlib import Path

from confluent_kafka import Producer

from kcoord.log.reader import StoredBatch, read_batches
from tests.data import broker_crashes
from tests.harness.kcoord_server import KcoordServer
from tests.interop import tools

RECORDS = 300
FIRST = f"{0:020d}.log"


def produce(bootstrap: str) -> None:
    """One batch for each record."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 0, "acks": "all"})
    for _ in range(RECORDS):
        producer.produce("small", bytes(400), partition=0)
        assert producer.flush(30) == 0


def offsets_in(path: Path) -> list[int]:
    return [item.header.base_offset for item in read_batches(str(path)) if isinstance(item, StoredBatch)]


def test_kafka_ends_where_the_zeros_begin_and_loses_no_record(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with KcoordServer({"log.preallocate": "true"}, data=data) as server:
        produce(server.bootstrap)
        live = data / "small-0" / FIRST
        contents = live.read_bytes()
        assert len(contents) - len(contents.rstrip(b"\0")) > 10_000
        # The dumper prints all batches, and complains of what comes then.
        shown = tools.run(tools.DUMP_LOG, "--files", str(live))
        assert shown.out.count("isvalid: true") == RECORDS and "isvalid: false" not in shown.out
        assert "Found record size 0 smaller than minimum record overhead" in shown.out + shown.err
        server.stop(kill=True)
        killed = tmp_path / "killed" / "small-0"
        shutil.copytree(data / "small-0", killed)
        assert (killed / FIRST).stat().st_size == len(contents)
        # A start of Kafka on it, as after its own crash.
        (state,) = broker_crashes.ask_kafka(tmp_path, [killed])
        assert state.end == RECORDS
        server.start()
        assert len(live.read_bytes()) == state.segments[0][1]
        server.stop()
        assert len(live.read_bytes()) == state.segments[0][1]
        assert offsets_in(data / "small-0") == list(range(RECORDS))
        shown = tools.run(tools.DUMP_LOG, "--files", str(live))
        assert shown.code == 0 and "Exception" not in shown.out and shown.out.count("isvalid: true") == RECORDS
