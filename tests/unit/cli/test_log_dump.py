"""`kcoord log dump`: what is printed, and what the filters let through."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.cli.log.records import summary
from kcoord.log.record_plain import uuid_text
from kcoord.log.typed_records import TypedRecord
from kcoord.protocol.records.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from kcoord.wire.record_batch import Record
from tests.unit.cli.rig import METADATA, OFFSETS, START_MS, LogRig, run, stopped


def lines(*arguments: str | Path) -> list[dict[str, Any]]:
    result = run("dump", *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def offsets_of(*arguments: str | Path) -> list[int]:
    return [line["offset"] for line in lines(*arguments)]


def test_records_are_typed(tmp_path: Path) -> None:
    found = lines(stopped(tmp_path), OFFSETS)
    assert [line["type"] for line in found] == [
        "offset_commit", "group_metadata", "group_metadata", "offset_commit", "offset_commit", "offset_commit",
        "offset_commit", "group_metadata", "offset_commit", "group_metadata",
    ]  # fmt: skip
    commit = found[0]
    assert commit["log"] == OFFSETS and commit["timestamp"] == "2025-10-09T08:53:21.000Z"
    assert commit["timestamp_ms"] == START_MS + 1000
    assert commit["key"] == {"group": "report", "topic": "orders", "partition": 0}
    assert commit["value"]["offset"] == 10 and commit["value"]["metadata"] == "by hand"
    assert len(commit["value"]["topic_id"]) == 22
    [member] = found[2]["value"]["members"]
    assert member["client_id"] == "test" and member["session_timeout"] == 10000
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"]["assigned_partitions"] == [{"topic": "orders", "partitions": [0, 1]}]
    assert found[8]["tombstone"] and found[8]["value"] is None and not commit["tombstone"]


def test_by_default_the_coordinators_logs(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.produce("orders", b"\xff\x00", 8)
    rig.produce("orders", b"text", 9)
    rig.stop()
    assert {line["log"] for line in lines(tmp_path)} == {METADATA, OFFSETS}
    found = lines(tmp_path, "orders")
    assert [(line["log"], line["type"], line["key"], line["value"]) for line in found] == [
        ("orders-0", "record", "key", {"base64": "/wA="}),
        ("orders-0", "record", "key", "text"),
    ]
    assert offsets_of(tmp_path / OFFSETS) == list(range(10))


def test_filters(tmp_path: Path) -> None:
    stopped(tmp_path)
    member = lines(tmp_path, "--type", "group_metadata")[1]["value"]["members"][0]["member_id"]
    assert offsets_of(tmp_path, "-g", "report") == [0, 8, 9]
    assert offsets_of(tmp_path, "-g", "report", "-g", "workers") == list(range(10))
    assert offsets_of(tmp_path, OFFSETS, "-t", "orders") == [0, 3, 4, 5, 6, 8]
    assert offsets_of(tmp_path, OFFSETS, "-t", "orders", "-p", "1") == [4]
    assert offsets_of(tmp_path, "-m", member) == [2]
    assert offsets_of(tmp_path, OFFSETS, "--type", "group_metadata") == [1, 2, 7, 9]
    assert offsets_of(tmp_path, OFFSETS, "--offset", "3..5") == [3, 4, 5]
    assert offsets_of(tmp_path, OFFSETS, "--offset", "8..") == [8, 9]
    assert offsets_of(tmp_path, OFFSETS, "--offset", "..1") == [0, 1]
    assert offsets_of(tmp_path, OFFSETS, "--offset", "4") == [4]
    since = ("--since", f"@{START_MS + 4000}")
    assert offsets_of(tmp_path, OFFSETS, *since, "--until", "2025-10-09T08:53:26") == [5, 6, 7]
    assert offsets_of(tmp_path, OFFSETS, "--since", "2025-10-09 10:53:27+02:00") == [8, 9]
    assert offsets_of(tmp_path, OFFSETS, "-n", "2") == [0, 1]


def test_metadata_records_are_found_by_the_name_of_their_topic(tmp_path: Path) -> None:
    stopped(tmp_path)
    found = lines(tmp_path, METADATA, "-t", "orders")
    assert [line["type"] for line in found] == ["topic_record", "partition_record", "partition_record"]
    assert found[1]["value"]["topic_id"] == found[0]["value"]["topic_id"]
    [second] = lines(tmp_path, METADATA, "-t", "orders", "-p", "1", "--offset", f"{found[1]['offset']}..")
    assert second["value"]["partition_id"] == 1


def test_the_table_wraps(tmp_path: Path) -> None:
    result = run("dump", stopped(tmp_path), OFFSETS)
    assert result.exit_code == 0
    printed = result.stdout.splitlines()
    assert max(map(len, printed)) <= 80
    assert printed[0] == f"{OFFSETS}:" and printed[-1] == "10 records"
    assert "       6  2025-10-09T08:53:25.000Z  offset_commit workers orders-0 = 2" in printed
    assert "       9  2025-10-09T08:53:27.000Z  group_metadata report removed" in printed
    text = " ".join(" ".join(printed).split())
    assert "leads, assigned orders-0 orders-1" in text


def test_of_a_running_server_what_is_durable(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.marks()
    rig.commit("late", 8, orders_0=1)
    result = run("dump", tmp_path, OFFSETS, "-o", "json")
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == list(range(10))
    assert "durable mark" in result.stderr
    assert offsets_of(tmp_path, OFFSETS, "--unsynced") == list(range(11))
    # A write that is under way is nobody's damage.
    segment = tmp_path / OFFSETS / "00000000000000000000.log"
    with segment.open("ab") as file:
        file.write(bytes(10))
    assert offsets_of(tmp_path, OFFSETS, "--unsynced") == list(range(11))
    rig.kill()


def test_damage_is_shown_where_it_is(tmp_path: Path) -> None:
    stopped(tmp_path)
    segment = tmp_path / OFFSETS / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    at = data.index(b"workers")
    data[at] ^= 1
    segment.write_bytes(data)
    result = run("dump", tmp_path, OFFSETS, "-o", "json")
    assert result.exit_code == 7 and "1 part of the log cannot be read" in result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line.get("offset") for line in found[:3]] == [0, None, 2]
    assert found[1]["type"] == "damaged_bytes" and found[1]["next_offset"] == 1
    assert found[1]["reason"] == "wrong checksum" and found[1]["file"] == str(segment)
    assert data[found[1]["position"] :][:8] == (1).to_bytes(8, "big")
    table = run("dump", tmp_path, OFFSETS).stdout
    assert f"  !! {found[1]['size_bytes']} bytes at {found[1]['position']} of" in table


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    result = run("dump", stopped(tmp_path), "nothing-7")
    assert result.exit_code == 2 and "there is no log nothing-7" in result.stderr
    assert OFFSETS in result.stderr


@pytest.mark.parametrize("arguments", [("--since", "yesterday"), ("--offset", "a..b"), ("--offset", "..")])
def test_wrong_usage(tmp_path: Path, arguments: tuple[str, str]) -> None:
    result = run("dump", stopped(tmp_path), *arguments)
    assert result.exit_code == 2 and "is no" in result.stderr


def test_records_of_consumer_groups_read_like_text() -> None:
    topic_id = bytes(15) + b"1"
    key = ConsumerGroupCurrentMemberAssignmentKey("g", "m")
    value = ConsumerGroupCurrentMemberAssignmentValue(
        5, 4, 0, [TopicPartitions(topic_id, [0, 2], [5, 3])], [TopicPartitions(bytes(16), [1])]
    )
    typed = TypedRecord(Record(7, 0, b"k", b"v", []), "consumer_group_current_member_assignment")
    typed.key, typed.value = key, value
    text = summary(typed, {uuid_text(topic_id): "orders"})
    assert "member_epoch=5 previous_member_epoch=4" in text
    assert "assigned_partitions=orders-0@5 orders-2@3" in text
    assert f"partitions_pending_revocation={uuid_text(bytes(16))}-1" in text
    assert "{" not in text and "[" not in text
