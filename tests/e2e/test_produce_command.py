"""`kcoord produce` against a server, read again by librdkafka."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, TopicPartition

from kcoord.cli.main import main
from kcoord.client.producer.partitioner import partition_of_key
from kcoord.testing.fixture import KcoordServer
from tests.client.producing import PARTITIONS, create_topic, read_all
from tests.e2e.process import END_SECONDS, foreground_command

Found = list[tuple[bytes | None, bytes | None]]


@pytest.fixture
def bootstrap(kcoord: KcoordServer) -> str:
    """A server with the topic `orders`."""
    asyncio.run(create_topic(kcoord.bootstrap, "orders"))
    return kcoord.bootstrap


def run(bootstrap: str, *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["produce", "-b", bootstrap, "orders", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def keys_and_values(bootstrap: str, count: int, partition: int = 0) -> Found:
    return [(record.key(), record.value()) for record in read_all(bootstrap, "orders", count)[partition]]


def test_lines_with_keys(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a::1\nb::\n\nnone\xff\nlast::2::3")
    options = ("-k", "::", "-H", "source=test", "-H", "empty", "--null-value", "-z", "zstd")
    result = run(bootstrap, str(tmp_path / "lines"), *options, "-o", "json")
    records = [one for some in read_all(bootstrap, "orders", 5).values() for one in some]
    expected = {(b"a", b"1"), (b"b", None), (None, None), (None, b"none\xff"), (b"last", b"2::3")}
    assert {(one.key(), one.value()) for one in records} == expected
    assert all(one.headers() == [("source", b"test"), ("empty", None)] for one in records)
    for one in records:
        assert one.key() is None or one.partition() == partition_of_key(one.key() or b"", PARTITIONS)
    rows = json.loads(result.stdout)
    assert sum(row["records"] for row in rows) == 5
    assert all(row["first_offset"] == 0 and row["last_offset"] == row["records"] - 1 for row in rows)


def test_options_of_all_records(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1\n2\n")
    (tmp_path / "two").write_bytes(b"3;4;")
    run(bootstrap, str(tmp_path / "one"), "--key", "k", "-p", "2", "--acks", "1")
    run(bootstrap, str(tmp_path / "two"), "--delimiter", ";", "-p", "2")
    run(bootstrap, str(tmp_path / "one"), str(tmp_path / "two"), "--whole", "-p", "2")
    expected: Found = [(b"k", b"1"), (b"k", b"2"), (None, b"3"), (None, b"4"), (None, b"1\n2\n"), (None, b"3;4;")]
    assert keys_and_values(bootstrap, 6, 2) == expected


def test_json(bootstrap: str, tmp_path: Path) -> None:
    lines = [
        {"key": "a", "value": {"n": 1}, "headers": {"h": "1"}, "timestamp_ms": 1_700_000_000_000, "partition": 1},
        {"value": {"base64": "/w=="}, "topic": "other", "offset": 9, "partition": 1},
    ]
    (tmp_path / "lines").write_text("\n\n".join(map(json.dumps, lines)))
    run(bootstrap, str(tmp_path / "lines"), "--json", "-H", "all=2", "--key", "usual")
    first, second = read_all(bootstrap, "orders", 2)[1]
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"a", b'{"n":1}', 1_700_000_000_000)
    assert first.headers() == [("all", b"2"), ("h", b"1")]
    assert (second.key(), second.value()) == (b"usual", b"\xff")


def test_the_line_that_is_no_record(bootstrap: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"value": "1", "partition": 0}\n{"vlaue": "2"}\n{"value": "3"}\n')
    result = run(bootstrap, str(path), "--json", code=1)
    assert f"{path}, line 2: unknown field 'vlaue'; did you mean 'value'?; stopped there, 1 record" in result.stderr
    assert keys_and_values(bootstrap, 1) == [(None, b"1")]


def test_a_record_that_is_too_large(bootstrap: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"small\n" + b"x" * 2_000_000 + b"\nsmall\n")
    result = run(bootstrap, str(path), "-p", "0", code=1)
    assert f"{path}, line 2: a record of up to 2000027 bytes: MESSAGE_TOO_LARGE" in result.stderr
    # The broker refuses it.
    result = run(bootstrap, str(path), "-p", "0", "--max-request-size", "10000000", code=1)
    assert "not written" in result.stderr
    assert f"{path}, line 2: " in result.stderr
    assert "MESSAGE_TOO_LARGE" in result.stderr


def test_a_transaction_has_all_or_nothing(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "good").write_text('{"value": "1"}\n{"value": "2"}\n')
    (tmp_path / "bad").write_text('{"value": "3"}\n{"vlaue": "4"}\n')
    options = ("--json", "-p", "0", "--transactional-id", "importer", "-o", "csv")
    done = run(bootstrap, str(tmp_path / "good"), *options)
    assert done.stdout.splitlines()[1:] == ["orders,0,2,0,1"]
    refused = run(bootstrap, str(tmp_path / "bad"), *options, code=1)
    assert refused.stdout.splitlines()[1:] == []
    assert "the transaction was aborted" in refused.stderr
    assert f"{tmp_path / 'bad'}, line 2: unknown field 'vlaue'" in refused.stderr
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"})
    try:
        reader.assign([TopicPartition("orders", 0, 0)])
        found: list[bytes | None] = []
        run(bootstrap, str(tmp_path / "good"), *options)
        deadline_s = time.monotonic() + END_SECONDS
        while len(found) < 4 and time.monotonic() < deadline_s:
            found += [one.value() for one in reader.consume(10, 0.2) if one.error() is None]
    finally:
        reader.close()
    assert found == [b"1", b"2", b"1", b"2"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--transactional-id", "a", "--acks", "1"], 2, "needs --acks all"),
        (["-p", "7"], 1, "topic 'orders' has no partition 7, only 0 to 2"),
        (["nosuch"], 2, "File 'nosuch' does not exist"),
        (["--base64"], 2, "--base64 is for --json only"),
        (["--json", "-k", ":"], 2, "--json excludes"),
        (["-H", "=1"], 2, "give NAME=VALUE"),
        (["-k", "\\q"], 2, "is not one of"),
    ],
)
def test_mistakes(bootstrap: str, arguments: list[str], code: int, message: str) -> None:
    assert message in run(bootstrap, *arguments, code=code).stderr


def test_an_unknown_topic(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n")
    result = CliRunner().invoke(main, ["produce", "-b", bootstrap, "ordrs", str(tmp_path / "lines")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "kcoord: topic 'ordrs' does not exist; did you mean 'orders'?\n"


def test_no_server(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n")
    result = CliRunner().invoke(main, ["produce", "-b", "127.0.0.1:1", "t", str(tmp_path / "lines"), "--timeout", "1"])
    assert result.exit_code == 3
    assert result.stderr.startswith("kcoord: ")


def begin(bootstrap: str) -> subprocess.Popen[bytes]:
    command = foreground_command("produce", "-b", bootstrap, "orders", "-p", "0")
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def wait_for_records(bootstrap: str, count: int) -> None:
    deadline_s = time.monotonic() + END_SECONDS
    while True:
        result = CliRunner().invoke(main, ["topics", "describe", "-b", bootstrap, "orders", "-o", "json"])
        if json.loads(result.stdout)[0]["end_offset"] == count:
            return
        assert time.monotonic() < deadline_s, result.stdout
        time.sleep(0.05)


def test_lines_are_sent_as_they_come_and_ctrl_c_ends_the_input(bootstrap: str) -> None:
    with begin(bootstrap) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        wait_for_records(bootstrap, 1)
        process.stdin.write(b"o\nrest without an end")
        process.stdin.flush()
        wait_for_records(bootstrap, 2)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=END_SECONDS)
    assert process.returncode == 130
    assert error == b"kcoord: interrupted: 2 records written\n"
    assert out.splitlines()[1].split() == [b"orders", b"0", b"2", b"0", b"1"]
    assert keys_and_values(bootstrap, 2) == [(None, b"one"), (None, b"two")]


def test_nobody_reads_the_result(bootstrap: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = foreground_command("produce", "-b", bootstrap, "orders", "-p", "0")
    done = subprocess.run(command, input=b"1\n", stdout=writer, stderr=subprocess.PIPE, timeout=END_SECONDS)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert keys_and_values(bootstrap, 1) == [(None, b"1")]
