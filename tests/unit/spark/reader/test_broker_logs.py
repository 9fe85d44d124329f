"""The tables over the logs of a real broker, held against what its clients did and saw, and what its own tool says."""

from __future__ import annotations

import base64
from collections import defaultdict
from typing import Any

import pytest

from tests.data.known import LOGS, answers, dump, dumped_partitions, messages
from tests.unit.spark.log_rig import rows

OFFSETS = "__consumer_offsets"


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def as_seen(message: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(name, unpacked(value)) for name, value in message["headers"] or []]
    return (
        message["topic"], message["partition"], message["offset"], message["timestamp"], message["timestamp_type"],
        unpacked(message["key"]), unpacked(message["value"]), headers,
    )  # fmt: skip


def as_read(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(header["key"], header["value"]) for header in row["headers"] or []]
    at_ms = round(row["timestamp"].timestamp() * 1000)
    return (
        row["topic"], row["partition"], row["offset"], at_ms, row["timestampType"], row["key"], row["value"], headers,
    )  # fmt: skip


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_messages_are_what_consumers_saw(level: str) -> None:
    seen = [as_seen(one) for one in messages() if level == "read_uncommitted" or one["committed"]]
    topics = ",".join(sorted({str(one["topic"]) for one in messages()}))
    read = [as_read(row) for row in rows(LOGS, isolationLevel=level, subscribe=topics)]
    assert sorted(read, key=lambda row: row[:3]) == sorted(seen, key=lambda row: row[:3])
    assert len(read) > 1500


def test_a_split_makes_no_difference() -> None:
    whole = rows(LOGS, subscribe="payments")
    split = rows(LOGS, subscribe="payments", minPartitions="40", maxBytesPerPartition="65536")
    assert split == whole


def test_commits_are_what_clients_did() -> None:
    found: dict[tuple[str, str, int], list[tuple[int | None, str | None]]] = defaultdict(list)
    for row in rows(LOGS, "offset_commits"):
        found[(row["group_id"], row["topic"], row["partition"])].append((row["committed_offset"], row["metadata"]))
    done: dict[tuple[str, str, int], list[tuple[int | None, str | None]]] = defaultdict(list)
    for one in answers()["commits"]:
        if one.get("outcome", "committed") == "committed":
            metadata = one.get("metadata") if one["offset"] is not None else None
            done[(one["group"], one["topic"], one["partition"])].append((one["offset"], metadata))
    by_themselves = answers()["committing_by_themselves"]
    assert {key: value for key, value in found.items() if key[0] not in by_themselves} == dict(done)
    assert {key[0] for key in found} >= set(by_themselves)


def test_the_end_is_what_an_admin_client_saw() -> None:
    last: dict[tuple[str, str, int], tuple[int, str, int]] = {}
    for row in rows(LOGS, "offset_commits"):
        key = (row["group_id"], row["topic"], row["partition"])
        if row["is_tombstone"]:
            last.pop(key, None)
        else:
            epoch = -1 if row["leader_epoch"] is None else row["leader_epoch"]
            last[key] = (row["committed_offset"], row["metadata"], epoch)
    told = {
        (group, topic, partition): (offset, metadata, epoch)
        for group, offsets in answers()["committed"].items()
        for topic, partition, offset, metadata, epoch in offsets
    }
    assert last == told


@pytest.mark.parametrize("name", [name for name in dumped_partitions() if name.startswith(OFFSETS)])
def test_each_record_that_the_brokers_tool_shows(name: str) -> None:
    assign = f'{{"{OFFSETS}": [{int(name.rpartition("-")[2])}]}}'
    theirs = {line["record"]["offset"]: line["record"] for line in dump(name) if "record" in line}
    read = {row["log_offset"]: row for row in rows(LOGS, "records", assign=assign, isolationLevel="read_uncommitted")}
    assert sorted(read) == sorted(theirs)
    assert len(theirs) > 100
    for offset, record in theirs.items():
        if isinstance(record.get("key"), dict):
            assert read[offset]["record_type"] == int(record["key"]["type"])
            assert read[offset]["is_tombstone"] == (record["value"] is None)
    commits = rows(LOGS, "offset_commits", assign=assign, isolationLevel="read_uncommitted")
    assert {row["log_offset"] for row in commits} == {offset for offset, record in theirs.items() if is_commit(record)}
    for row in commits:
        key, value = theirs[row["log_offset"]]["key"]["data"], theirs[row["log_offset"]]["value"]
        assert (row["group_id"], row["topic"], row["partition"]) == (
            key["group"],
            key["topic"],
            key["partition"],
        )
        assert row["is_tombstone"] == (value is None)
        if value is not None:
            data = value["data"]
            assert (row["committed_offset"], row["metadata"]) == (data["offset"], data["metadata"])
            assert row["leader_epoch"] == (None if data.get("leaderEpoch", -1) == -1 else data["leaderEpoch"])
            assert row["commit_timestamp"].timestamp() * 1000 == pytest.approx(data["commitTimestamp"], abs=0.01)
            assert row["topic_id"] == data.get("topicId", row["topic_id"])
            expires = data.get("expireTimestamp", -1)
            assert (row["expire_timestamp"] is None) == (expires == -1)


def is_commit(record: dict[str, Any]) -> bool:
    return isinstance(record.get("key"), dict) and record["key"]["type"] in ("0", "1")


def test_groups_of_every_kind_are_there() -> None:
    kinds = defaultdict(set)
    for row in rows(LOGS, "group_metadata"):
        if not row["is_tombstone"]:
            kinds[row["group_id"]].add(row["kind"])
    assert kinds["next"] == {"consumer"}
    assert kinds["classic"] == {"classic"}
    assert kinds["migrated"] == {"classic", "consumer"}
    assert kinds["share-1"] == {"share"}
    for group, (kind, _) in answers()["groups"].items():
        if group in kinds:
            assert kind.lower() in kinds[group]


def test_assignments_have_the_names_of_topics() -> None:
    found = rows(LOGS, "assignments")
    named = {row["topic"] for row in found if row["group_id"] == "next" and row["partitions"]}
    assert "orders" in named and None not in named
    assert {row["role"] for row in found} == {"target", "current"}


def test_members_have_instance_ids_and_regexes() -> None:
    found = rows(LOGS, "members")
    instances = {row["instance_id"] for row in found if row["group_id"] in ("next", "classic-static")}
    assert len(instances - {None}) >= 2
    regexes = {row["subscribed_regex"] for row in found if row["group_id"] == "regex" and not row["is_tombstone"]}
    # As librdkafka sends it.
    assert regexes == {"(^region-.*)"}


def test_transactions_end_as_clients_ended_them() -> None:
    states = defaultdict(list)
    for row in rows(LOGS, "transactions"):
        states[row["transactional_id"]].append(row["status"])
    outcomes = {one["transaction"]: one["outcome"] for one in answers()["commits"] if "transaction" in one}
    assert outcomes
    for transactional_id, outcome in outcomes.items():
        wanted = {"committed": "CompleteCommit", "aborted": "CompleteAbort", "open": "Ongoing"}[outcome]
        assert wanted in states[transactional_id], (transactional_id, states[transactional_id])


def test_nothing_in_it_is_corrupt() -> None:
    assert rows(LOGS, "_corrupt") == []
