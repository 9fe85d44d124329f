"""The small data sets in tests/data/broker: our readers find in them what Kafka's tools and its own broker find.

Logs of other releases, of a broker that compacts all the time, copied while it ran, killed, torn and stopped.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.reader import DamagedBytes, StoredBatch, read_batches
from kcoord.log.serde import decode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_describe import ConsumerGroupDescribeRequest
from kcoord.protocol.describe_groups import DescribeGroupsRequest
from kcoord.protocol.records.group_metadata import GroupMetadataValue
from kcoord.wire.message import Message
from kcoord.wire.primitives import Reader
from kcoord.wire.record_batch import Record
from tests.data import known
from tests.harness import schema_json
from tests.harness.engine import Client, open_engine
from tests.unit.cli.rig import at, run, run_json
from tests.unit.spark.log_rig import rows

DECOMPRESSED_MAX = 1 << 20
OFFSETS = "__consumer_offsets"
# The schema's name for a key's type, and for the values of the newest version.
NAMES = {
    schema_json.module_of(name).RECORD_TYPE: name.removesuffix("Key")
    for name in schema_json.schemas()
    if name.endswith("Key") and name not in ("TransactionLogKey", "LegacyOffsetCommitKey")
}
# Both are decoded in Kafka's dump; the embedded schemas of a consumer.
EMBEDDED = {"subscription": "ConsumerProtocolSubscription", "assignment": "ConsumerProtocolAssignment"}
# Where a group never had a member, 3.9's old coordinator deletes it with tombstones of its offsets alone. A broker that
# loads them lists the group, with nothing in it, until it looks for expired offsets.
LEFT_OVER = {("release-3.9", "deleted")}
MARKERS = ("commit_marker", "abort_marker")
COMPACTED = ("copied", "killed", "torn", "compacted")


@pytest.fixture(scope="module", params=known.SMALL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def logs(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return known.unpack_small(name, tmp_path_factory.mktemp(name) / "logs")


@pytest.fixture(scope="module")
def state(logs: Path) -> dict[str, Any]:
    found: dict[str, Any] = run_json("state", logs)
    return found


@pytest.fixture(scope="module")
def imported(name: str, logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp(name) / "new"
    done = run("import", logs, "--data", target)
    assert done.exit_code == 0, done.output
    return target


def records(logs: Path, partition: str) -> Iterator[tuple[StoredBatch, Record]]:
    for batch in read_batches(str(logs / partition)):
        if isinstance(batch, StoredBatch):
            for record in batch.records(DECOMPRESSED_MAX):
                yield batch, record


def rendered(key: Message, value: Message | None, record: Record) -> tuple[Any, Any]:
    """A record in the form of Kafka's dump."""
    assert record.key is not None
    kind = int.from_bytes(record.key[:2], "big")
    stem = NAMES[1 if kind == 0 else kind]
    shown = {"type": str(kind), "data": schema_json.render(f"{stem}Key", 0, key)}
    if value is None or record.value is None:
        return shown, None
    version = int.from_bytes(record.value[:2], "big")
    data = schema_json.render(f"{stem}Value", version, value)
    if isinstance(value, GroupMetadataValue):
        for member, plain in zip(value.members, data["members"], strict=True):
            for field, schema in EMBEDDED.items():
                plain[field] = embedded(schema, getattr(member, field)) or plain[field]
    return shown, {"version": str(version), "data": data}


def embedded(schema: str, data: bytes) -> dict[str, Any] | None:
    if not data:
        return None
    r = Reader(data)
    version = r.int16()
    stem = schema_json.snake_case(schema)
    message = getattr(schema_json.module_of(schema), f"decode_{stem}")(r, version)
    return schema_json.render(schema, version, message)


def dumped(name: str, partition: str) -> list[dict[str, Any]]:
    return [line["record"] for line in known.small_dump(name, partition) if "record" in line]


def invalid_bytes(name: str, partition: str) -> list[int]:
    """At the end of a segment that is cut short."""
    return [line["invalid_bytes"] for line in known.small_dump(name, partition) if "invalid_bytes" in line]


def test_batches_are_those_of_the_dump(name: str, logs: Path) -> None:
    for partition in known.small_dumped(name):
        theirs = [line["batch"] for line in known.small_dump(name, partition) if "batch" in line]
        found = list(read_batches(str(logs / partition)))
        ours = [item for item in found if isinstance(item, StoredBatch)]
        damaged = [item.size_bytes for item in found if isinstance(item, DamagedBytes)]
        assert damaged == invalid_bytes(name, partition)
        heads = [(batch.header, batch.position) for batch in ours]
        shown = [[header.base_offset, header.last_offset, position, header.crc] for header, position in heads]
        assert shown == [[one[field] for field in ("baseOffset", "lastOffset", "position", "crc")] for one in theirs]


def test_every_field_of_every_record_is_that_of_the_dump(name: str, logs: Path) -> None:
    """Kafka 4.3's tool prints what 4.3 reads: null and empty by its rules, in records of older releases too."""
    count = 0
    for partition in known.small_dumped(name, OFFSETS):
        theirs = dumped(name, partition)
        ours = list(records(logs, partition))
        assert [record.offset for _, record in ours] == [one["offset"] for one in theirs]
        for (batch, record), one in zip(ours, theirs, strict=True):
            assert batch.header.is_control == ("marker" in one)
            if batch.header.is_control:
                continue
            assert record.key is not None
            key, value = decode_record(record.key, record.value)
            assert isinstance(key, Message) and (value is None or isinstance(value, Message))
            assert rendered(key, value, record) == (one["key"], one["value"])
            count += 1
    assert count > 30


def test_our_dump_has_the_same_records(name: str, logs: Path) -> None:
    for partition in known.small_dumped(name, OFFSETS):
        lines = [json.loads(line) for line in run("dump", logs, partition, "-o", "json").stdout.splitlines()]
        ours = [(line["offset"], line["type"]) for line in lines if "offset" in line]
        theirs = [
            (one["offset"], f"{one['marker'].lower()}_marker" if "marker" in one else name_of(one["key"]["type"]))
            for one in dumped(name, partition)
        ]
        assert ours == theirs


def name_of(kind: str) -> str:
    return schema_json.snake_case(NAMES[int(kind)])


# --- the state in the end


def by_group(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {group["group"]: group for group in [*state["groups"], *state["other_groups"]]}


def expected_groups(name: str) -> dict[str, dict[str, Any]]:
    """As the broker describes them, without those that have nothing but offsets of an open transaction."""
    answers = known.small_answers(name)
    still_open = {one["group"] for one in answers["commits"] if one.get("outcome") == "open"}
    return {
        group: {**described, "committed": answers["committed"][group]}
        for group, described in answers["described"].items()
        if (name, group) not in LEFT_OVER
        and (group not in still_open or answers["committed"][group] or described["members"])
    }


def offsets_of(group: dict[str, Any]) -> list[list[Any]]:
    fields = ("topic", "partition", "offset", "metadata", "leader_epoch")
    return sorted([one[field] for field in fields] for one in group["offsets"])


def members_of(group: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(member id, instance id, client id, host, [topic, partition] of what it has) of each member."""
    found = []
    for member in group["members"]:
        instance = member.get("instance_id", member.get("group_instance_id"))
        topics = (member["assignment"] or {}).get("assigned_partitions", [])
        owned = sorted([each["topic"], p] for each in topics for p in each["partitions"])
        found.append((member["member_id"], instance, member["client_id"], member["client_host"], owned))
    return sorted(found)


def described_members(group: dict[str, Any]) -> list[tuple[Any, ...]]:
    fields = ("member_id", "instance_id", "client_id", "host", "assignment")
    return sorted(tuple(member[field] for field in fields) for member in group["members"])


def test_groups_are_those_that_the_broker_lists(name: str, state: dict[str, Any]) -> None:
    listed = {row["GROUP"]: row["TYPE"].lower() for row in known.small_answers(name)["tool"]["list"]}
    ours = {group["group"]: group.get("kind", "classic") for group in by_group(state).values()}
    assert ours == {group: listed[group] for group in expected_groups(name)}


def test_offsets_are_those_that_the_broker_answers(name: str, state: dict[str, Any]) -> None:
    ours = {group: offsets_of(found) for group, found in by_group(state).items()}
    assert ours == {group: found["committed"] for group, found in expected_groups(name).items()}


def test_members_are_those_that_the_broker_describes(name: str, state: dict[str, Any]) -> None:
    ours = {group: members_of(found) for group, found in by_group(state).items()}
    assert ours == {group: described_members(found) for group, found in expected_groups(name).items()}
    assert sum(len(found) for found in ours.values()) >= 7


def test_members_are_those_that_kafkas_tool_prints(name: str, state: dict[str, Any]) -> None:
    """`kafka-consumer-groups --describe --members --verbose`, which prints epochs from 4.0 on."""
    expected = known.small_answers(name)["tool"]["members"]
    groups = by_group(state)
    for row in expected:
        group = groups[row["GROUP"]]
        [member] = [one for one in group["members"] if one["member_id"] == row["CONSUMER-ID"]]
        topics = member["assignment"]["assigned_partitions"]
        assert str(sum(len(each["partitions"]) for each in topics)) == row["#PARTITIONS"]
        instance = member.get("instance_id", member.get("group_instance_id"))
        assert (instance or "") == row.get("GROUP-INSTANCE-ID", "")
        if row.get("CURRENT-EPOCH", "-") != "-":
            epochs = (member["member_epoch"], group["assignment_epoch"])
            assert tuple(map(str, epochs)) == (row["CURRENT-EPOCH"], row["TARGET-EPOCH"])
            is_classic = member["classic_member_metadata"] is not None
            assert is_classic == (row.get("UPGRADED") == "false")
    assert len(expected) == sum(len(group["members"]) for group in groups.values())


def test_ends_of_topics_are_those_of_kafkas_tool(name: str, logs: Path) -> None:
    expected = known.small_answers(name)["tool"]
    ends = {tuple(line.split(":")[:2]): int(line.split(":")[2]) for line in expected["end_offsets"]}
    ours = {(one["topic"], str(one["partition"])): one["end_offset"] for one in run_json("ls", logs)["partitions"]}
    assert {place: end for place, end in ours.items() if not place[0].startswith("__")} == ends


# --- the same in Spark's tables, and in a directory that was imported


def not_committed(name: str) -> tuple[set[tuple[int, int]], dict[int, int]]:
    """Partition and offset of the records of aborted and of open transactions, and where the first open one begins."""
    left_out: set[tuple[int, int]] = set()
    first_open: dict[int, int] = {}
    for log in known.small_dumped(name, OFFSETS):
        partition = int(log.rpartition("-")[2])
        pending: dict[int, list[tuple[int, int]]] = {}
        batch: dict[str, Any] = {}
        for line in known.small_dump(name, log):
            batch = line.get("batch", batch)
            record = line.get("record", {})
            if "marker" in record:
                ended = pending.pop(batch["producerId"], [])
                left_out.update(ended if record["marker"] == "ABORT" else [])
            elif record and batch["isTransactional"]:
                pending.setdefault(batch["producerId"], []).append((partition, record["offset"]))
        still_open = [place for places in pending.values() for place in places]
        left_out.update(still_open)
        if still_open:
            first_open[partition] = min(still_open)[1]
    return left_out, first_open


def settled(name: str, logs: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table but those of transactions that were not committed."""
    left_out, _ = not_committed(name)
    found = rows(logs, table, isolationLevel="read_uncommitted")
    return [row for row in found if (row["log_partition"], row["log_offset"]) not in left_out]


@pytest.mark.parametrize("table", ["offset_commits", "group_metadata", "members", "assignments", "records"])
def test_committed_reads_leave_out_nothing_but_transactions_that_were_not_committed(
    name: str, logs: Path, table: str
) -> None:
    """A coordinator applies what comes after an open transaction, so it is in the tables."""
    _, first_open = not_committed(name)
    everything = [row for row in settled(name, logs, table) if row["log_topic"] == OFFSETS]
    plain = [row for row in everything if row["record_name"] not in MARKERS] if table == "records" else everything
    read = [row for row in rows(logs, table) if row["log_topic"] == OFFSETS]
    assert read == plain
    assert bool(first_open) == (name not in ("copied", "compacted"))
    if name.startswith("release-"):
        assert any(row["log_offset"] > first_open.get(row["log_partition"], 1 << 62) for row in read)


def test_tables_hold_each_record(name: str, logs: Path) -> None:
    """By type, and how many take something away; markers by their kind."""
    theirs: Counter[tuple[Any, ...]] = Counter()
    for partition in known.small_dumped(name, OFFSETS):
        for one in dumped(name, partition):
            if "marker" in one:
                theirs[f"{one['marker'].lower()}_marker", False] += 1
            else:
                theirs[int(one["key"]["type"]), one["value"] is None] += 1
    ours: Counter[tuple[Any, ...]] = Counter()
    for row in rows(logs, "records", isolationLevel="read_uncommitted"):
        if row["log_topic"] == OFFSETS:
            is_marker = row["record_name"] in MARKERS
            ours[row["record_name"] if is_marker else row["record_type"], row["is_tombstone"]] += 1
    assert ours == theirs


def test_the_table_of_commits_ends_with_what_the_broker_answers(name: str, logs: Path) -> None:
    last: dict[tuple[str, str, int], tuple[Any, ...]] = {}
    for row in settled(name, logs, "offset_commits"):
        place = (row["group_id"], row["topic"], row["partition"])
        if row["is_tombstone"]:
            last.pop(place, None)
        else:
            epoch = -1 if row["leader_epoch"] is None else row["leader_epoch"]
            last[place] = (row["committed_offset"], row["metadata"], epoch)
    assert last == {
        (group, topic, partition): (offset, metadata, epoch)
        for group, offsets in known.small_answers(name)["committed"].items()
        for topic, partition, offset, metadata, epoch in offsets
    }


def last_rows(found: list[dict[str, Any]], *fields: str) -> list[dict[str, Any]]:
    """The newest row of each key, without those that were taken away."""
    last: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in found:
        last[tuple(row[field] for field in fields)] = row
    return [row for row in last.values() if not row["is_tombstone"]]


def test_the_table_of_members_ends_with_whom_the_broker_describes(name: str, logs: Path) -> None:
    described = known.small_answers(name)["described"]
    consumers = {group for group, one in described.items() if one["type"] == "CONSUMER"}
    found = [row for row in settled(name, logs, "members") if row["record_name"] == "consumer_group_member_metadata"]
    fields = ("group_id", "member_id", "instance_id", "client_id", "client_host")
    ours = sorted(tuple(row[field] for field in fields) for row in last_rows(found, "group_id", "member_id"))
    theirs = [
        (group, one["member_id"], one["instance_id"], one["client_id"], one["host"])
        for group in consumers
        for one in described[group]["members"]
    ]
    assert ours == sorted(theirs, key=lambda row: row[:2])
    # Only the member that speaks the classic protocol has a session of its own.
    sessions = {row["client_id"]: row["session_timeout_ms"] for row in last_rows(found, "group_id", "member_id")}
    assert {client for client, session in sessions.items() if session is not None} == {"mixed-old"}


def test_what_is_corrupt(name: str, logs: Path) -> None:
    found = rows(logs, "_corrupt")
    cut_short = {one for one in known.small_dumped(name) if invalid_bytes(name, one)}
    assert {f"{row['log_topic']}-{row['log_partition']}" for row in found} == cut_short, found
    assert cut_short == ({f"{OFFSETS}-0", f"{OFFSETS}-1"} if name == "torn" else set())


def test_verify_finds_nothing_wrong(name: str, logs: Path) -> None:
    done = run("verify", logs)
    assert done.exit_code == 0, done.output


def test_an_import_keeps_groups_and_offsets(name: str, logs: Path, state: dict[str, Any], imported: Path) -> None:
    after = by_group(run_json("state", imported))
    before = by_group(state)
    assert {group: offsets_of(found) for group, found in after.items()} == {
        group: offsets_of(found) for group, found in before.items()
    }
    assert {group: members_of(found) for group, found in after.items()} == {
        group: members_of(found) for group, found in before.items()
    }
    for group, found in after.items():
        assert [one.get("classic_member_metadata") for one in found["members"]] == [
            one.get("classic_member_metadata") for one in before[group]["members"]
        ]


def test_a_server_on_the_import_describes_the_same_groups(name: str, imported: Path, tmp_path: Path) -> None:
    """State, assignor and members of each, as Kafka's broker describes them."""
    shutil.copytree(imported, tmp_path / "data")
    engine = open_engine(DiskStorage(str(tmp_path / "data")), at(0))
    client = Client(engine)
    states = {row["GROUP"]: row["STATE"] for row in known.small_answers(name)["tool"]["list"]}
    for group, expected in expected_groups(name).items():
        if expected["type"] == "CLASSIC":
            [classic] = client.ask(apis.DESCRIBE_GROUPS, 5, DescribeGroupsRequest([group]), at(1)).groups
            ours = [(one.member_id, one.group_instance_id, one.client_id) for one in classic.members]
            shown = (classic.error_code, classic.group_state, classic.protocol_data)
        else:
            body = ConsumerGroupDescribeRequest([group])
            [consumer] = client.ask(apis.CONSUMER_GROUP_DESCRIBE, 1, body, at(1)).groups
            ours = [(one.member_id, one.instance_id, one.client_id) for one in consumer.members]
            shown = (consumer.error_code, consumer.group_state, consumer.assignor_name)
        assert shown == (0, states[group], expected["assignor"]), group
        assert sorted(ours) == sorted((one[0], one[1], one[2]) for one in described_members(expected))
    engine.stop()


# --- what clients did


def places(commits: list[dict[str, Any]]) -> dict[tuple[str, str, int], list[tuple[Any, Any]]]:
    found: dict[tuple[str, str, int], list[tuple[Any, Any]]] = {}
    for one in commits:
        if one.get("outcome", "committed") == "committed":
            place = (one["group"], one["topic"], one["partition"])
            found.setdefault(place, []).append((one["offset"], one["metadata"]))
    return found


def in_log(name: str, logs: Path) -> dict[tuple[str, str, int], list[tuple[Any, Any]]]:
    found: dict[tuple[str, str, int], list[tuple[Any, Any]]] = {}
    for row in settled(name, logs, "offset_commits"):
        place = (row["group_id"], row["topic"], row["partition"])
        found.setdefault(place, []).append((row["committed_offset"], row["metadata"]))
    return found


def test_commits_are_those_that_clients_made(name: str, logs: Path) -> None:
    """All of them, in their order. Where the log is compacted, the last ones, and none that nobody made."""
    answers = known.small_answers(name)
    made = places(answers["commits"])
    read = in_log(name, logs)
    if name not in COMPACTED:
        assert read == made
        return
    writers = answers["writers"]
    for place, commits in made.items():
        found = read.get(place, [])
        assert set(found) <= set(commits), place
        # Of what was taken away, the cleaner leaves nothing in the end.
        assert found[-1:] == commits[-1:] or (not found and commits[-1][0] is None), place
    for group, (answered, asked) in writers.items():
        # The last batch of each partition was cut, which was a writer's.
        least = answered - 1 if name == "torn" else answered
        for partition in range(3):
            found = read[group, "orders", partition]
            assert least <= found[-1][0] <= asked, (group, found[-1])
            assert len(found) < answered
    assert {place[0] for place in read if place not in made} <= {f"busy-{number}" for number in range(6)}
