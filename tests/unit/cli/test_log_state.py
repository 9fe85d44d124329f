"""`kcoord log state`: yesterday's groups, exactly as the server had them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kcoord.cli.log.past.replay import coordinator_logs, replay_until
from kcoord.cli.log.points import Point
from kcoord.core.config import CoreConfig
from kcoord.log.inspect import inspect_directory
from kcoord.log.serde import encode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import open_engine
from tests.unit.cli.rig import METADATA, OFFSETS, START_MS, LogRig, at, run, run_json, split_segment, stopped

CHECKPOINT = "0\n1\n__consumer_offsets 0 {}\n"


def groups(*arguments: str | Path) -> dict[str, Any]:
    return {group["group"]: group for group in run_json("state", *arguments)["groups"]}


def offsets(group: dict[str, Any]) -> dict[str, int]:
    return {f"{row['topic']}-{row['partition']}": row["offset"] for row in group["offsets"]}


def test_the_newest_state(tmp_path: Path) -> None:
    found = groups(stopped(tmp_path))
    assert list(found) == ["workers"]
    workers = found["workers"]
    assert (workers["state"], workers["generation"], workers["protocol_type"]) == ("Empty", 2, "consumer")
    assert workers["members"] == [] and workers["state_timestamp_ms"] == START_MS + 6000
    assert offsets(workers) == {"orders-0": 2, "orders-1": 7}


def test_the_state_at_an_offset(tmp_path: Path) -> None:
    document = run_json("state", stopped(tmp_path), "--as-of", "6")
    metadata = next(row for row in run_json("ls", tmp_path)["partitions"] if row["log"] == METADATA)
    ends = [(end["log"], end["offset"]) for end in document["logs"]]
    assert ends == [(METADATA, metadata["end_offset"]), (OFFSETS, 6)]
    assert document["logs"][1]["timestamp_ms"] == START_MS + 4000
    assert [topic["topic"] for topic in document["topics"]] == ["__consumer_offsets", "orders"]
    found = {group["group"]: group for group in document["groups"]}
    assert sorted(found) == ["report", "workers"]
    workers = found["workers"]
    assert (workers["state"], workers["generation"], workers["protocol"]) == ("Stable", 1, "range")
    [member] = workers["members"]
    assert workers["leader"] == member["member_id"]
    assert member["assignment"]["assigned_partitions"] == [{"topic": "orders", "partitions": [0, 1]}]
    assert offsets(workers) == {"orders-0": 9, "orders-1": 7}
    [report] = found["report"]["offsets"]
    assert (report["offset"], report["metadata"], report["record_offset"]) == (10, "by hand", 0)
    # Between two records of one batch.
    assert offsets(groups(tmp_path, "--as-of", "4")["workers"]) == {"orders-0": 5}
    assert groups(tmp_path, "--as-of", "0") == {}


def test_the_state_at_a_time(tmp_path: Path) -> None:
    stopped(tmp_path)
    assert offsets(groups(tmp_path, "--as-of", f"@{START_MS + 4000}")["workers"])["orders-0"] == 9
    assert offsets(groups(tmp_path, "--as-of", f"@{START_MS + 3999}")["workers"])["orders-0"] == 5
    assert offsets(groups(tmp_path, "--as-of", "2025-10-09T08:53:25Z")["workers"])["orders-0"] == 2
    assert groups(tmp_path, "--as-of", "2025-10-09") == {}
    assert list(groups(tmp_path, "--as-of", "0s")) == ["workers"]


def test_every_point_has_the_state_the_server_had(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    digests = {}
    ask = rig.client.ask

    def note(*arguments: Any) -> Any:
        answer = ask(*arguments)
        log = rig.engine.directory.get("__consumer_offsets", 0)
        if log is not None and log.end_offset:
            digests[log.end_offset] = rig.engine.core.digest()
        return answer

    rig.client.ask = note  # type: ignore[method-assign, assignment]
    rig.history()
    rig.stop()
    directory = inspect_directory(str(tmp_path))
    assert len(digests) > 5
    for offset, digest in digests.items():
        logs = coordinator_logs(directory, "", -1)
        past = replay_until(directory, logs, Point("", offset, -1), False, lambda _: None)
        assert past.core.digest() == digest, offset


def test_one_group(tmp_path: Path) -> None:
    stopped(tmp_path)
    assert list(groups(tmp_path, "-g", "report", "--as-of", "7")) == ["report"]
    result = run("state", tmp_path, "-g", "report", "-o", "json")
    assert result.exit_code == 1 and "group report did not exist" in result.stderr


def test_the_table(tmp_path: Path) -> None:
    result = run("state", stopped(tmp_path), "--as-of", "7")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"{OFFSETS} below offset 7 (2025-10-09T08:53:25.000Z)"
    assert "workers: Stable, generation 1, consumer, range, since 2025-10-09T08:53:22.000Z" in lines
    assert "report: offsets only" in lines and "    metadata: by hand" in lines
    assert ["orders", "0", "2", "2025-10-09T08:53:25.000Z"] in [line.split() for line in lines]
    assert lines[-1] == "2 groups"


def test_of_a_running_server(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.marks()
    rig.commit("late", 8, orders_0=1)
    result = run("state", tmp_path)
    assert result.exit_code == 0 and "durable mark" in result.stderr
    assert result.stdout.splitlines()[-1] == "1 group"
    assert sorted(groups(tmp_path, "--unsynced")) == ["late", "workers"]
    # The server goes on undisturbed.
    rig.commit("later", 9, orders_0=1)
    rig.stop()
    assert sorted(groups(tmp_path)) == ["late", "later", "workers"]


def test_several_coordinator_partitions(tmp_path: Path) -> None:
    config = CoreConfig()
    config.offsets_topic_num_partitions = 3
    engine = open_engine(DiskStorage(str(tmp_path)), at(0), config=config)
    engine.stop()
    rig = LogRig(tmp_path)
    rig.create("orders", 2, 0)
    for i in range(6):
        rig.commit(f"g{i}", 1 + i, orders_0=i)
    rig.stop()
    assert list(groups(tmp_path)) == [f"g{i}" for i in range(6)]
    assert list(groups(tmp_path, "--as-of", f"@{START_MS + 3000}")) == ["g0", "g1", "g2"]
    result = run("state", tmp_path, "--as-of", "1")
    assert result.exit_code == 2 and "there are 3" in result.stderr
    [end] = [end for end in run_json("state", tmp_path, "-g", "g1")["logs"] if end["log"].startswith("__consumer")]
    partition = end["log"].rpartition("-")[2]
    assert list(groups(tmp_path, "-g", "g1", "--as-of", "1")) in (["g1"], [])
    in_partition = groups(tmp_path, "-p", partition)
    assert "g1" in in_partition and len(in_partition) < 6
    result = run("state", tmp_path, "-p", "7")
    assert result.exit_code == 2 and "no __consumer_offsets-7" in result.stderr


def test_a_brokers_directory_without_metadata(tmp_path: Path) -> None:
    stopped(tmp_path)
    (tmp_path / "__cluster_metadata-0").rename(tmp_path / "elsewhere")
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    document = run_json("state", tmp_path)
    assert document["topics"] == [] and [group["group"] for group in document["groups"]] == ["workers"]


def test_points_that_are_not_there(tmp_path: Path) -> None:
    result = run("state", stopped(tmp_path), "--as-of", "11")
    assert result.exit_code == 2 and f"{OFFSETS} ends at offset 10" in result.stderr
    result = run("state", tmp_path, "--as-of", "tomorrow")
    assert result.exit_code == 2 and "'tomorrow' is not a time" in result.stderr


def test_what_compaction_removed_is_not_made_up(tmp_path: Path) -> None:
    stopped(tmp_path)
    split_segment(tmp_path / OFFSETS, 6, without=(5,))
    assert offsets(groups(tmp_path)["workers"]) == {"orders-0": 2, "orders-1": 7}
    assert offsets(groups(tmp_path, "--as-of", "7")["workers"])["orders-0"] == 2
    checkpoint = tmp_path / "cleaner-offset-checkpoint"
    checkpoint.write_text(CHECKPOINT.format(7))
    result = run("state", tmp_path, "--as-of", "6")
    assert result.exit_code == 1
    assert f"{OFFSETS} was compacted below offset 7 (2025-10-09T08:53:26.000Z)" in result.stderr
    assert result.stdout == ""
    result = run("state", tmp_path, "--as-of", "6", "--inexact")
    assert result.exit_code == 0 and "was compacted" in result.stderr
    assert offsets(groups(tmp_path, "--as-of", "6", "--inexact")["workers"])["orders-0"] == 5
    checkpoint.write_text(CHECKPOINT.format(6))
    assert "orders-0" in offsets(groups(tmp_path, "--as-of", "6")["workers"])
    # What lies before the first gap is all there.
    assert offsets(groups(tmp_path, "--as-of", "4")["workers"]) == {"orders-0": 5}


def test_damage_is_not_passed_over(tmp_path: Path) -> None:
    stopped(tmp_path)
    segment = tmp_path / OFFSETS / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[data.index(b"range")] ^= 1
    segment.write_bytes(data)
    result = run("state", tmp_path)
    assert result.exit_code == 7 and str(segment) in result.stderr and "wrong checksum" in result.stderr
    assert list(groups(tmp_path, "--as-of", "1")) == ["report"]


def test_a_write_cut_short_is_left_out(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.marks()
    rig.commit("late", 8, orders_0=1)
    rig.kill()
    segment = tmp_path / OFFSETS / f"{0:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    result = run("state", tmp_path)
    assert result.exit_code == 0 and "at the end that cannot be read" in result.stderr
    assert list(groups(tmp_path)) == ["workers"]


def test_offsets_of_transactions_count_when_they_are_committed(tmp_path: Path) -> None:
    """And a newer commit outside of a transaction counts more than an older one inside of it."""
    stopped(tmp_path)
    segment = tmp_path / OFFSETS / f"{0:020d}.log"

    def append(base: int, producer_id: int, key: bytes, value: bytes | None, control: bool = False) -> None:
        builder = BatchBuilder()
        builder.append(START_MS + 9000, key, value)
        batch = builder.build(base, 0, producer_id, 0, -1 if control else 0, transactional=True, control=control)
        segment.write_bytes(segment.read_bytes() + batch)

    key, value = encode_record(OffsetCommitKey("txn", "orders", 0), OffsetCommitValue(77))
    append(10, 4, key, value)
    append(11, 5, *encode_record(OffsetCommitKey("txn", "orders", 1), OffsetCommitValue(88)))
    append(12, 4, bytes.fromhex("00000001"), bytes(6), control=True)
    append(13, 5, bytes.fromhex("00000000"), bytes(6), control=True)
    append(14, 4, key, value)
    assert "txn" not in groups(tmp_path, "--as-of", "12")
    assert offsets(groups(tmp_path, "--as-of", "13")["txn"]) == {"orders-0": 77}
    assert offsets(groups(tmp_path)["txn"]) == {"orders-0": 77}
    append(15, -1, key, encode_record(OffsetCommitKey("txn", "orders", 0), OffsetCommitValue(99))[1])
    append(16, 4, bytes.fromhex("00000001"), bytes(6), control=True)
    assert offsets(groups(tmp_path)["txn"]) == {"orders-0": 99}
