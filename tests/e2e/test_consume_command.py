"""`kcoord consume` against a server, with records that `kcoord produce` and the producer wrote."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kcoord.cli.main import main
from kcoord.client import Admin, Producer, TopicPartition
from kcoord.client.admin.spread import only
from kcoord.testing.fixture import KcoordServer
from tests.client.producing import create_topic
from tests.e2e.process import END_SECONDS, foreground_command

TIME_MS = 1_700_000_000_000


@pytest.fixture
def bootstrap(kcoord: KcoordServer) -> str:
    """A server with 30 records in `orders`: record i in partition i % 3, at TIME_MS + 1000 i."""

    async def fill() -> None:
        await create_topic(kcoord.bootstrap, "orders")
        async with Producer(bootstrap_servers=kcoord.bootstrap) as producer:
            for number in range(30):
                headers = [("n", b"%d" % number)] if number % 2 else None
                await producer.send_nowait(
                    "orders", b"value %d" % number, b"key %d" % number, partition=number % 3, headers=headers,
                    timestamp_ms=TIME_MS + 1000 * number,
                )  # fmt: skip

    asyncio.run(fill())
    return kcoord.bootstrap


def run(bootstrap: str, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["consume", "-b", bootstrap, "orders", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def numbers(result: Result) -> list[int]:
    return [int(line.rsplit(" ", 1)[1]) for line in result.stdout.splitlines()]


def test_everything(bootstrap: str) -> None:
    found = numbers(run(bootstrap))
    assert sorted(found) == list(range(30))
    for partition in range(3):
        assert [number for number in found if number % 3 == partition] == list(range(partition, 30, 3))


def test_where_it_begins_and_ends(bootstrap: str) -> None:
    assert numbers(run(bootstrap, "-p", "1", "--from", "7")) == [22, 25, 28]
    assert numbers(run(bootstrap, "-p", "1", "--from", "-2")) == [25, 28]
    assert numbers(run(bootstrap, "-p", "1", "--from", "99")) == []
    assert numbers(run(bootstrap, "--from", "end")) == []
    assert sorted(numbers(run(bootstrap, "--from", "-1"))) == [27, 28, 29]
    assert len(numbers(run(bootstrap, "-n", "7"))) == 7
    assert numbers(run(bootstrap, "-n", "0")) == []
    since, until = f"@{TIME_MS + 10_000}", f"@{TIME_MS + 15_000}"
    assert sorted(numbers(run(bootstrap, "--since", since, "--until", until))) == list(range(10, 15))
    assert sorted(numbers(run(bootstrap, "--until", until))) == list(range(15))
    assert sorted(numbers(run(bootstrap, "--since", f"@{TIME_MS + 28_000}"))) == [28, 29]


def test_forms(bootstrap: str, tmp_path: Path) -> None:
    assert run(bootstrap, "-p", "0", "-n", "2", "-k", ": ").stdout == "key 0: value 0\nkey 3: value 3\n"
    shown = run(bootstrap, "-p", "1", "-n", "1", "-f", r"%t %p %o %T %k %s %h\n").stdout
    assert shown == f"orders 1 0 {TIME_MS + 1000} key 1 value 1 n=1\n"
    assert run(bootstrap, "-p", "0", "-n", "2", "--delimiter", ";").stdout == "value 0;value 3;"
    text = run(bootstrap, "-p", "1", "--json").stdout
    documents = [json.loads(line) for line in text.splitlines()]
    assert documents[0] == {
        "topic": "orders", "partition": 1, "offset": 0, "timestamp": "2023-11-14T22:13:21.000Z",
        "timestamp_ms": TIME_MS + 1000, "key": "key 1", "value": "value 1", "headers": [{"key": "n", "value": "1"}],
    }  # fmt: skip
    # What is printed can be written again.
    (tmp_path / "records").write_text(text)
    asyncio.run(create_topic(bootstrap, "copies"))
    produced = CliRunner().invoke(main, ["produce", "-b", bootstrap, "copies", "--json", str(tmp_path / "records")])
    assert produced.exit_code == 0, produced.output
    again = CliRunner().invoke(main, ["consume", "-b", bootstrap, "copies", "--json"])
    assert [{**json.loads(line), "topic": "orders"} for line in again.stdout.splitlines()] == documents


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group(bootstrap: str, protocol: str) -> None:
    """A group's offsets are committed up to what was printed, not further."""
    group = ("-g", "billing", "--protocol", protocol)
    first = numbers(run(bootstrap, *group, "-n", "11"))
    assert len(first) == 11
    rest = numbers(run(bootstrap, *group))
    assert sorted(first + rest) == list(range(30))
    assert numbers(run(bootstrap, *group)) == []

    async def committed() -> dict[TopicPartition, object]:
        async with Admin(bootstrap) as admin:
            return dict(await admin.list_group_offsets("billing"))

    assert len(asyncio.run(committed())) == 3


def committed_of(bootstrap: str, group: str) -> dict[int, int]:
    async def find() -> dict[int, int]:
        async with Admin(bootstrap) as admin:
            found = await admin.list_group_offsets(group)
            return {one.partition: only(found, one).offset for one in found}

    return asyncio.run(find())


def commit(bootstrap: str, group: str, offsets: dict[int, int]) -> None:
    async def change() -> None:
        async with Admin(bootstrap) as admin:
            wanted = {TopicPartition("orders", partition): offset for partition, offset in offsets.items()}
            await admin.alter_group_offsets(group, wanted)

    asyncio.run(change())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_end_before_the_offset_of_the_group_moves_nothing_back(bootstrap: str, protocol: str) -> None:
    """Partition 0 is read by the group beyond --until, 1 is not, and 2 has no offset."""
    commit(bootstrap, "billing", {0: 9, 1: 2})
    found = run(bootstrap, "-g", "billing", "--protocol", protocol, "--until", f"@{TIME_MS + 15_000}")
    assert sorted(numbers(found)) == [2, 5, 7, 8, 10, 11, 13, 14]
    assert committed_of(bootstrap, "billing") == {0: 9, 1: 5, 2: 5}


def test_an_open_transaction_moves_no_group_back(bootstrap: str) -> None:
    """A group that reads uncommitted records is beyond the last stable offset."""

    async def read_beside_a_transaction() -> Result:
        async with Producer(bootstrap_servers=bootstrap, transactional_id="t") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            for _ in range(3):
                await producer.send("orders", b"open 99", partition=0)
            await asyncio.to_thread(commit, bootstrap, "billing", {0: 12, 1: 10, 2: 10})
            result = await asyncio.to_thread(run, bootstrap, "-g", "billing")
            await producer.abort_transaction()
            return result

    assert numbers(asyncio.run(read_beside_a_transaction())) == []
    assert committed_of(bootstrap, "billing") == {0: 12, 1: 10, 2: 10}


def test_a_group_that_begins_at_the_end_is_committed_there(bootstrap: str) -> None:
    """Otherwise it would miss what is written before its next start."""
    assert numbers(run(bootstrap, "-g", "late", "--from", "end")) == []
    assert committed_of(bootstrap, "late") == {0: 10, 1: 10, 2: 10}


def test_mistakes(bootstrap: str) -> None:
    assert "does not exist" in run(bootstrap, "other", code=1).stderr
    assert "only 0 to 2" in run(bootstrap, "-p", "3", code=1).stderr
    mistakes = "--json -f %s; --json -k :; -f %y; --from start; --from 3 --since 1h"
    mistakes += "; -g a -p 1; -g a --from 3; -n -1; --since soon"
    for mistake in mistakes.split("; "):
        run(bootstrap, *mistake.split(), code=2)
    run(bootstrap, "-g", "", code=2)
    assert "string of 40000 bytes" in run(bootstrap, "-g", "g" * 40_000, code=2).stderr
    assert "it is not UTF-8" in run(bootstrap, "g\udcff", code=2).stderr
    host = CliRunner().invoke(main, ["consume", "-b", "..:9092", "orders"])
    assert host.exit_code == 2 and "'..' is not the name of a host" in host.output
    closed = CliRunner().invoke(main, ["consume", "-b", "127.0.0.1:1", "--timeout", "0.5", "orders"])
    assert closed.exit_code == 3, closed.output


def test_follow_until_ctrl_c(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "late").write_text("late 30\n")
    command = foreground_command("consume", "-b", bootstrap, "orders", "--follow", "-g", "follower")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = [process.stdout.readline() for _ in range(30)]
            assert sorted(int(line.rsplit(" ", 1)[1]) for line in found) == list(range(30))
            written = CliRunner().invoke(main, ["produce", "-b", bootstrap, "orders", str(tmp_path / "late")])
            assert written.exit_code == 0
            assert process.stdout.readline() == "late 30\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(END_SECONDS) == 0
        finally:
            process.kill()
    assert numbers(run(bootstrap, "-g", "follower")) == []


def test_a_reader_that_stops(bootstrap: str, tmp_path: Path) -> None:
    """`| head` ends it with 0."""
    (tmp_path / "more").write_text("more 1\n")
    command = foreground_command("consume", "-b", bootstrap, "orders", "--follow")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            end_s = time.monotonic() + END_SECONDS
            while process.poll() is None:
                # It notices when it writes again.
                CliRunner().invoke(main, ["produce", "-b", bootstrap, "orders", str(tmp_path / "more")])
                assert time.monotonic() < end_s
            assert process.returncode == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_transactions(bootstrap: str) -> None:
    """Aborted and open records are shown with --uncommitted only."""

    async def write() -> None:
        async with Producer(bootstrap_servers=bootstrap, transactional_id="t") as producer:
            await producer.init_transactions()
            await producer.begin_transaction()
            await producer.send("orders", b"aborted 99", partition=0)
            await producer.abort_transaction()

    asyncio.run(write())
    assert 99 not in numbers(run(bootstrap))
    assert 99 in numbers(run(bootstrap, "--uncommitted"))
