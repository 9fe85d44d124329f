"""A real broker's data directory becomes kcoord's, and kcoord's becomes a real broker's; clients just go on."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from click.testing import CliRunner

from kcoord.cli.main import main
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker
from tests.interop import tools

BROKER = {"offsets.topic.num.partitions": "5", "transaction.state.log.num.partitions": "3"}
WAIT = ["--timeout-ms", "60000"]
MARK_DEADLINE_S = 10.0


def log(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["log", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def at(bootstrap: str) -> list[str]:
    return ["--bootstrap-server", bootstrap]


def fill(bootstrap: str, first: int, end: int) -> None:
    lines = "".join(f"line {i}\n" for i in range(first, end))
    sent = tools.run(tools.CONSOLE_PRODUCER, *at(bootstrap), "--topic", "moved", stdin=lines)
    assert sent.code == 0, sent


def consume(bootstrap: str, group: str, count: int, *more: str) -> list[str]:
    arguments = ["--topic", "moved", "--group", group, "--max-messages", str(count), *WAIT, *more]
    return tools.run(tools.CONSOLE_CONSUMER, *at(bootstrap), *arguments).lines


def committed(bootstrap: str, group: str) -> dict[str, tuple[str, str]]:
    """(committed, end offset) by partition."""
    shown = tools.run(tools.GROUPS, *at(bootstrap), "--describe", "--group", group, "--offsets")
    assert shown.code == 0, shown
    return {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"]) for row in shown.table()}


def topic_id(bootstrap: str) -> str:
    described = tools.run(tools.TOPICS, *at(bootstrap), "--describe", "--topic", "moved")
    return described.out.split("TopicId:")[1].split()[0]


def test_clients_continue_after_an_import(tmp_path: Path) -> None:
    source = tmp_path / "broker"
    with RealBroker(BROKER, data=source) as broker:
        made = tools.run(tools.TOPICS, *at(broker.bootstrap), "--create", "--topic", "moved", "--partitions", "1")
        assert made.code == 0, made
        fill(broker.bootstrap, 0, 20)
        assert consume(broker.bootstrap, "slow", 7, "--from-beginning") == [f"line {i}" for i in range(7)]
        new_protocol = ["--from-beginning", "--command-property", "group.protocol=consumer"]
        assert consume(broker.bootstrap, "modern", 20, *new_protocol) == [f"line {i}" for i in range(20)]
        before = topic_id(broker.bootstrap)
    report = json.loads(log("import", str(source), "--data", str(tmp_path / "data"), "--topics", "--output", "json"))
    assert report["taken"]["classic groups"] == 1
    assert report["taken"]["committed offsets"] == 2
    assert report["taken"]["records of topics"] == 20
    assert report["kept"]["consumer groups (KIP-848)"] == 1
    assert not any("cannot be read" in what for what in report["left_out"])
    with KcoordServer(data=tmp_path / "data") as server:
        assert topic_id(server.bootstrap) == before
        assert committed(server.bootstrap, "slow") == {"0": ("7", "20")}
        fill(server.bootstrap, 20, 25)
        assert consume(server.bootstrap, "slow", 18) == [f"line {i}" for i in range(7, 25)]
        assert consume(server.bootstrap, "modern", 5) == [f"line {i}" for i in range(20, 25)]
        assert committed(server.bootstrap, "modern") == {"0": ("25", "25")}


def test_a_broker_starts_on_what_was_exported(tmp_path: Path) -> None:
    with KcoordServer(data=tmp_path / "data") as server:
        made = tools.run(tools.TOPICS, *at(server.bootstrap), "--create", "--topic", "moved", "--partitions", "1")
        assert made.code == 0, made
        fill(server.bootstrap, 0, 20)
        for group in ("one", "two"):
            assert consume(server.bootstrap, group, 7, "--from-beginning") == [f"line {i}" for i in range(7)]
        before = topic_id(server.bootstrap)
        plan = tmp_path / "plan.csv"
        end_s = time.monotonic() + MARK_DEADLINE_S
        found = ""
        while found != "one,moved,0,7\ntwo,moved,0,7\n":
            # Of a running server it has what is below the durable mark, which follows within about a second.
            assert time.monotonic() < end_s, found
            plan.unlink(missing_ok=True)
            CliRunner().invoke(main, ["log", "export", str(plan), "--csv", "--data", str(server.data)])
            found = plan.read_text() if plan.exists() else ""
        server.stop()
    target = tmp_path / "broker"
    report = json.loads(log("export", str(target), "--data", str(tmp_path / "data"), "--output", "json"))
    assert (report["written"]["topics"], report["left_out"]) == (2, {})
    with RealBroker(data=target) as broker:
        assert topic_id(broker.bootstrap) == before
        assert committed(broker.bootstrap, "one") == {"0": ("7", "20")}
        fill(broker.bootstrap, 20, 25)
        assert consume(broker.bootstrap, "one", 18) == [f"line {i}" for i in range(7, 25)]
        # The offsets as they were, for both groups at once and for one of them.
        for groups in (["--group", "one", "--group", "two"], ["--group", "one"]):
            arguments = ["--reset-offsets", *groups, "--from-file", str(plan), "--execute"]
            done = tools.run(tools.GROUPS, *at(broker.bootstrap), *arguments)
            assert done.code == 0 and "Error" not in done.out, done
            assert committed(broker.bootstrap, "one") == {"0": ("7", "25")}
            if len(groups) > 2:
                plan.write_text("one,moved,0,7\n")


PARTITION = TopicPartition("moved", 0)


async def transact(bootstrap: str) -> None:
    """One transaction that commits, one that aborts, one that commits, and one that stays open."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="mover")
    await producer.start()
    for value, offset, ends in (
        (b"a", 1, True),
        (b"aborted", 50, False),
        (b"b", 0, True),
        (b"open", 60, None),
    ):
        await producer.begin_transaction()
        await producer.send_and_wait("moved", value, partition=0)
        if offset:
            await producer.send_offsets_to_transaction({PARTITION: offset}, "moved-group")
        if ends is not None:
            await (producer.commit_transaction() if ends else producer.abort_transaction())
    # Not stop(): that would end the transaction.
    await producer.client.close()


async def abort_open(bootstrap: str) -> None:
    """A new producer with the same transactional id aborts the transaction of the old one."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id="mover")
    await producer.start()
    await producer.stop()


async def read_committed(bootstrap: str, count: int) -> tuple[int | None, list[tuple[int, bytes | None]]]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id="moved-group",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign([PARTITION])
        offset = await consumer.committed(PARTITION)
        await consumer.seek_to_beginning()
        found = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(count)]
    finally:
        await consumer.stop()
    return offset, [(one.offset, one.value) for one in found]


async def test_transactions_of_a_killed_broker(tmp_path: Path) -> None:
    source = tmp_path / "broker"
    with RealBroker(BROKER, data=source) as broker:
        made = tools.run(tools.TOPICS, *at(broker.bootstrap), "--create", "--topic", "moved", "--partitions", "1")
        assert made.code == 0, made
        await asyncio.wait_for(transact(broker.bootstrap), 60)
        broker.stop(kill=True)
    report = json.loads(log("import", str(source), "--data", str(tmp_path / "data"), "--topics", "--output", "json"))
    assert report["left_out"]["offset commits of aborted transactions"] == 1
    assert report["kept"]["offset commits of open transactions"] == 1
    with KcoordServer(data=tmp_path / "data") as server:
        await asyncio.wait_for(abort_open(server.bootstrap), 60)
        fill(server.bootstrap, 0, 1)
        found = await asyncio.wait_for(read_committed(server.bootstrap, 3), 60)
    # The open transaction has a record and a marker, and its offset is gone.
    assert found == (1, [(0, b"a"), (4, b"b"), (8, b"line 0")])
