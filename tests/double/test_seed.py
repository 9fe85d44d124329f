"""Seeds on servers: in a fixture, and of `kcoord serve --seed`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from kcoord.testing.fixture import KcoordServer
from kcoord.testing.state.seed import SeedError
from tests.e2e.process import ServerProcess, kcoord_command, run_to_end
from tests.harness.present import present

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "seed.yaml"
WAIT_S = 30.0


def read(bootstrap: str, topic: str, count: int, group: str = "reader") -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = []
    for _ in range(count):
        message = present(consumer.poll(WAIT_S))
        assert message.error() is None
        found.append((message.key(), message.value()))
    consumer.close()
    return found


def test_the_example_in_a_test(kcoord: KcoordServer) -> None:
    kcoord.seed(EXAMPLE)
    assert kcoord.topics() == {"customers": 1, "invoices": 2, "orders": 3}
    assert kcoord.committed("billing") == {("orders", 0): 1, ("orders", 1): 0, ("orders", 2): 0}
    # One record of partition 0 counts as read.
    values = [value for _, value in read(kcoord.bootstrap, "orders", 3, "billing")]
    assert b"first order" not in values and b"\xff\xff\xff\xff" in values
    assert read(kcoord.bootstrap, "customers", 2)[1] == (b"customer-8", None)
    (with_time,) = [record for record in kcoord.records("orders") if record.key == b"customer-7"]
    assert with_time.timestamp_ms == 1_769_860_800_000 and with_time.headers == [("source", b"seed")]


def test_a_topic_that_exists(kcoord: KcoordServer) -> None:
    kcoord.create_topic("orders")
    kcoord.commit("known", {("orders", 0): 7})
    document = {
        "topics": {"other": {"records": ["1"]}, "orders": {"partitions": 3, "records": ["2"]}},
        "groups": {"known": {"orders": {"0": 1}}, "new": {"other": {"0": 1}}},
    }
    with pytest.raises(SeedError, match="seed: topics.orders: TOPIC_ALREADY_EXISTS"):
        kcoord.seed(document)
    assert kcoord.topics() == {"orders": 1}
    kcoord.seed(document, missing_only=True)
    assert kcoord.topics() == {"orders": 1, "other": 1}
    assert [record.text for record in kcoord.records("other")] == ["1"]
    assert kcoord.records("orders") == []
    assert kcoord.committed("known") == {("orders", 0): 7} and kcoord.committed("new") == {("other", 0): 1}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"topics": {"t": {"configs": {"retention.ms": "long"}}}}, "topics.t: topic 't': INVALID_CONFIG"),
        ({"topics": {"no name": 1}}, "topics.no name: topic 'no name': INVALID_TOPIC_EXCEPTION"),
        ({"groups": {"g": {"t": {0: 1}}}}, "groups.g: group 'g', partition t-0: UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_what_the_server_refuses_has_a_place(kcoord: KcoordServer, document: dict[str, object], problem: str) -> None:
    with pytest.raises(SeedError) as caught:
        kcoord.seed(document)
    assert problem in str(caught.value)


def test_a_server_that_starts_with_a_seed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data, "--seed", str(EXAMPLE)) as server:
        assert len(read(server.bootstrap, "orders", 4)) == 4
        producer = Producer({"bootstrap.servers": server.bootstrap})
        producer.produce("invoices", b"1")
        assert producer.flush(WAIT_S) == 0
        server.stop()
        (line,) = server.lines("seeded")
        assert (line["topics"], line["records"], line["groups"]) == (
            ["orders", "customers", "invoices"],
            6,
            ["billing"],
        )
        assert line["left_alone"] == []
    # What exists is left alone, with what clients have done to it.
    with ServerProcess(data, "--seed", str(EXAMPLE)) as server:
        assert read(server.bootstrap, "invoices", 1, "second") == [(None, b"1")]
        assert len(read(server.bootstrap, "orders", 4, "second")) == 4
        server.stop()
        (line,) = server.lines("seeded")
        assert (line["topics"], line["records"], line["groups"]) == ([], 0, [])
        assert line["left_alone"] == ["topic orders", "topic customers", "topic invoices", "group billing"]


def test_a_seed_with_a_mistake_ends_the_start(tmp_path: Path) -> None:
    seed = tmp_path / "seed.json"
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--seed", str(seed)]
    seed.write_text('{"topics": {"t": {"records": [{"vlaue": 1}]}}}')
    done = run_to_end(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"kcoord: {seed}: topics.t.records[0]: unknown field 'vlaue'; did you mean 'value'?\n"
    assert not (tmp_path / "data").exists()
    # One that only the server sees.
    seed.write_text('{"topics": {"t": {"configs": {"cleanup.policy": "compress"}}}}')
    done = run_to_end(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    last = json.loads(done.stderr.splitlines()[-1])
    assert last["event"] == "failed" and str(last["message"]).startswith(f"{seed}: topics.t: topic 't': INVALID_CONFIG")
    assert "Traceback" not in done.stderr


def test_a_server_with_controls_begins_with_it_too() -> None:
    process = subprocess.Popen(
        kcoord_command(
            "serve", "--profile", "test", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--seed", str(EXAMPLE)
        ),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline().split() for _ in range(2)]
        assert [line[1] for line in lines] == ["control", "ready"]
        assert len(read(lines[1][2], "orders", 4)) == 4
    finally:
        process.terminate()
        assert process.wait(WAIT_S) == 0
        process.stdout.close()
