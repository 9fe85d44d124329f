"""`kcoord log repair`: what it shows is what it does, nothing is thrown away, and the log opens afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.directory import open_directory
from kcoord.log.errors import LogDamaged, StorageError
from kcoord.log.state_file import STATE_FILE, StateFileWriter
from kcoord.log.storage import DiskStorage
from tests.harness.engine import CLUSTER_ID
from tests.unit.cli.rig import METADATA, OFFSETS, LogRig, batches_of, run, run_json, split_segment, stopped

SEGMENT = f"{0:020d}.log"


def planned(path: Path, *arguments: str) -> list[Any]:
    result = run("repair", path, *arguments, "-o", "json")
    document = json.loads(result.stdout)
    assert result.exit_code == (1 if document["repairs"] else 0) and not document["executed"]
    repairs: list[Any] = document["repairs"]
    return repairs


def executed(path: Path, *arguments: str) -> list[Any]:
    document = run_json("repair", path, "--execute", *arguments)
    assert document["executed"]
    repairs: list[Any] = document["repairs"]
    return repairs


def open_log(path: Path, verify: bool = False) -> Any:
    return open_directory(DiskStorage(str(path)), 1, CLUSTER_ID, CLUSTER_ID, verify=verify)


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != ".lock"
    }


def ends(path: Path) -> dict[str, int]:
    directory = open_log(path)
    try:
        return {log.name: log.end_offset for log in directory}
    finally:
        directory.close(True)


def damage(segment: Path, text: bytes) -> int:
    """Flip a bit of the batch that contains `text`; the batch's position."""
    data = bytearray(segment.read_bytes())
    at = data.index(text)
    position = 0
    for batch in batches_of(segment):
        if position + len(batch) > at:
            break
        position += len(batch)
    data[at] ^= 1
    segment.write_bytes(data)
    return position


def test_nothing_to_repair(tmp_path: Path) -> None:
    stopped(tmp_path)
    before = contents(tmp_path)
    assert planned(tmp_path) == [] and executed(tmp_path) == []
    assert contents(tmp_path) == before
    assert run("repair", tmp_path).stdout == "nothing to repair\n"


def test_damage_in_the_last_segment(tmp_path: Path) -> None:
    segment = stopped(tmp_path) / OFFSETS / SEGMENT
    position = damage(segment, b"range")
    data = segment.read_bytes()
    before = contents(tmp_path)
    with pytest.raises(LogDamaged):
        open_log(tmp_path, verify=True)
    [cut] = planned(tmp_path)
    assert contents(tmp_path) == before
    assert (cut["action"], cut["log"], cut["file"]) == ("cut", OFFSETS, str(segment))
    assert (cut["position"], cut["offset"], cut["bytes"]) == (position, 2, len(data) - position)
    assert cut["readable_records"] == 7 and cut["later_segments"] == [] and cut["kept"] == []
    assert cut["reason"] == "wrong checksum"
    [done] = executed(tmp_path)
    kept = Path(done["kept"][0])
    assert kept == segment.with_name(f"{SEGMENT}.cut-{position}")
    assert kept.read_bytes() == data[position:] and segment.read_bytes() == data[:position]
    assert {**done, "kept": []} == cut
    assert planned(tmp_path) == []
    assert ends(tmp_path)[OFFSETS] == 2
    assert run("verify", tmp_path, "--strict").exit_code == 0
    # And it can be used again.
    rig = LogRig(tmp_path)
    assert sorted(rig.engine.core.groups.groups) == ["report", "workers"]
    rig.commit("report", 20, orders_0=11)
    rig.stop()
    assert ends(tmp_path)[OFFSETS] == 3


def test_damage_in_an_earlier_segment(tmp_path: Path) -> None:
    stopped(tmp_path)
    directory = tmp_path / OFFSETS
    split_segment(directory, 6, without=(3,))
    later = directory / f"{6:020d}.log"
    tail = later.read_bytes()
    position = damage(directory / SEGMENT, b"range")
    [cut] = planned(tmp_path)
    assert cut["later_segments"] == [str(later)] and cut["offset"] == 2
    [done] = executed(tmp_path)
    assert sorted(Path(name).name for name in done["kept"]) == [f"{SEGMENT}.cut-{position}", f"{6:020d}.log.cut-0"]
    assert (directory / f"{6:020d}.log.cut-0").read_bytes() == tail
    assert ends(tmp_path)[OFFSETS] == 2
    (tmp_path / ".kafka_cleanshutdown").unlink()
    assert ends(tmp_path)[OFFSETS] == 2


def test_gaps_of_compaction_survive_a_cut_and_a_crash(tmp_path: Path) -> None:
    stopped(tmp_path)
    directory = tmp_path / OFFSETS
    split_segment(directory, 8, without=(3,))
    damage(directory / SEGMENT, b"\0\0\0\0\0\0\0\x02\xff\xff\xff\xff")
    [done] = executed(tmp_path)
    assert done["offset"] == 6
    (tmp_path / ".kafka_cleanshutdown").unlink()
    assert ends(tmp_path)[OFFSETS] == 6


def test_damage_at_the_very_beginning(tmp_path: Path) -> None:
    segment = stopped(tmp_path) / OFFSETS / SEGMENT
    assert damage(segment, b"report") == 0
    data = segment.read_bytes()
    [done] = executed(tmp_path)
    assert Path(done["kept"][0]).read_bytes() == data
    assert ends(tmp_path)[OFFSETS] == 0


def test_a_later_segment_that_is_damaged_from_its_start(tmp_path: Path) -> None:
    stopped(tmp_path)
    directory = tmp_path / OFFSETS
    split_segment(directory, 6)
    later = directory / f"{6:020d}.log"
    assert damage(later, b"workers") == 0
    data = later.read_bytes()
    [done] = executed(tmp_path)
    assert Path(done["kept"][0]).read_bytes() == data and later.read_bytes() == b""
    assert ends(tmp_path)[OFFSETS] == 6


def test_a_write_that_was_cut_short(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.marks()
    rig.commit("late", 8, orders_0=1)
    rig.kill()
    segment = tmp_path / OFFSETS / SEGMENT
    torn = segment.read_bytes()[:-5]
    segment.write_bytes(torn)
    [done] = executed(tmp_path)
    assert done["offset"] == 10 and torn.endswith(Path(done["kept"][0]).read_bytes())
    assert ends(tmp_path)[OFFSETS] == 10


def test_synced_batches_that_are_missing(tmp_path: Path) -> None:
    segment = stopped(tmp_path) / OFFSETS / SEGMENT
    segment.write_bytes(b"".join(batches_of(segment)[:-1]))
    for index in segment.parent.glob("*.*index"):
        index.unlink()
    with pytest.raises(LogDamaged):
        open_log(tmp_path)
    [mark] = planned(tmp_path)
    assert (mark["action"], mark["offset"]) == ("lower mark", 8)
    assert executed(tmp_path)[0]["kept"] == []
    assert ends(tmp_path)[OFFSETS] == 8


def test_indexes(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.create("orders", 1, 0)
    for i in range(8):
        rig.produce("orders", bytes(2000), 1 + i)
    rig.stop()
    index = tmp_path / "orders-0" / f"{0:020d}.index"
    right = index.read_bytes()
    index.write_bytes(right[:6] + bytes([right[6] ^ 1]) + right[7:])
    assert run("verify", tmp_path).exit_code == 1
    [repair] = planned(tmp_path)
    assert (repair["action"], repair["file"]) == ("rebuild index", str(index))
    executed(tmp_path)
    assert index.read_bytes() == right
    assert run("verify", tmp_path, "--strict").exit_code == 0


def test_checkpoint_files(tmp_path: Path) -> None:
    points = stopped(tmp_path) / "recovery-point-offset-checkpoint"
    right = points.read_text()
    points.write_text("0\n5\n")
    with pytest.raises(StorageError):
        open_log(tmp_path)
    [repair] = planned(tmp_path)
    assert repair["action"] == "replace checkpoint" and repair["file"] == str(points)
    [done] = executed(tmp_path)
    assert points.read_text() == right
    assert Path(done["kept"][0]).read_text() == "0\n5\n"
    assert ends(tmp_path)[OFFSETS] == 10


def test_only_the_logs_that_are_named(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    rig.produce("orders", b"value", 8)
    rig.stop()
    segment = tmp_path / OFFSETS / SEGMENT
    damage(segment, b"range")
    assert planned(tmp_path, "orders") == []
    assert len(planned(tmp_path, OFFSETS)) == 1


def test_a_second_cut_at_the_same_place_keeps_both(tmp_path: Path) -> None:
    segment = stopped(tmp_path) / OFFSETS / SEGMENT
    damage(segment, b"range")
    first = executed(tmp_path)[0]["kept"][0]
    segment.write_bytes(segment.read_bytes() + b"garbage")
    second = executed(tmp_path)[0]["kept"][0]
    assert second == first + ".2" and Path(second).read_bytes() == b"garbage"


def test_a_state_checkpoint_knows_more_than_the_cut_log(tmp_path: Path) -> None:
    segment = stopped(tmp_path) / OFFSETS / SEGMENT
    damage(segment, b"range")
    segment.with_name("state-checkpoint").write_bytes(b"state")
    [done] = executed(tmp_path)
    assert not segment.with_name("state-checkpoint").exists()
    assert [Path(name).read_bytes() for name in done["kept"] if "state" in Path(name).name] == [b"state"]


def test_snapshots_share_files_and_stay_as_they_are(tmp_path: Path) -> None:
    stopped(tmp_path / "data")
    directory = tmp_path / "data" / OFFSETS
    split_segment(directory, 6)
    segment = directory / SEGMENT
    position = damage(segment, b"range")
    (directory / f"{0:020d}.index").write_bytes(b"")
    shared = []
    for file in sorted(directory.iterdir()):
        (tmp_path / file.name).hardlink_to(file)
        shared.append((tmp_path / file.name, file.read_bytes()))
    executed(tmp_path / "data")
    assert segment.stat().st_size == position and ends(tmp_path / "data")[OFFSETS] == 2
    for link, data in shared:
        assert link.read_bytes() == data, link.name
    assert [file.name for file in directory.iterdir() if file.name.endswith(".repaired")] == []


def test_the_table(tmp_path: Path) -> None:
    segment = stopped(tmp_path) / OFFSETS / SEGMENT
    damage(segment, b"range")
    shown = run("repair", tmp_path)
    assert shown.exit_code == 1
    assert shown.stdout.splitlines()[-1] == "1 repair to do: --execute does it"
    text = " ".join(shown.stdout.split())
    assert f"{OFFSETS}: cut at offset 2" in text and "7 records in them can still be read" in text
    done = run("repair", tmp_path, "--execute")
    assert done.exit_code == 0 and done.stdout.splitlines()[-1] == "1 repair done"
    assert max(map(len, [*shown.stdout.splitlines(), *done.stdout.splitlines()])) <= 80


def test_a_log_in_use_is_refused(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.history()
    for arguments in ((), ("--execute",)):
        result = run("repair", tmp_path, *arguments)
        assert result.exit_code == 6 and "in use by another process" in result.stderr
    rig.kill()
    assert planned(tmp_path) == []


def test_a_brokers_directory_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    before = contents(tmp_path)
    result = run("repair", tmp_path, "--execute")
    assert result.exit_code == 5 and "not a kcoord data directory" in result.stderr
    assert contents(tmp_path) == before


def lost(path: Path, log: str) -> None:
    stopped(path)
    (path / log).rename(path / "elsewhere")


def test_a_lost_directory(tmp_path: Path) -> None:
    lost(tmp_path, OFFSETS)
    # What fails to open keeps the lock.
    shutil.copytree(tmp_path, tmp_path / "copy")
    with pytest.raises(LogDamaged, match="its directory is missing, 10 offsets were synced"):
        LogRig(tmp_path / "copy")
    report = json.loads(run("verify", tmp_path, "-o", "json").stdout)
    assert [(p["check"], p["log"]) for p in report["problems"]] == [("durable mark", OFFSETS)]
    [mark] = planned(tmp_path)
    assert (mark["action"], mark["log"], mark["offset"]) == ("lower mark", OFFSETS, 0)
    assert mark["reason"] == "its directory is missing, 10 offsets were synced"
    text = " ".join(run("repair", tmp_path).stdout.split())
    assert f"{OFFSETS}: start it again, empty" in text and "Restore it from a copy instead if you can" in text
    assert planned(tmp_path, METADATA) == []
    assert planned(tmp_path, "__consumer_offsets") == planned(tmp_path, OFFSETS) == [mark]
    assert executed(tmp_path, OFFSETS) == [mark]
    points = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert "__consumer_offsets" not in points and "__cluster_metadata 0 " in points
    assert planned(tmp_path) == []
    rig = LogRig(tmp_path)
    assert rig.engine.core.groups.groups == {} and "orders" in rig.engine.core.topics.topics
    rig.stop()
    assert run("verify", tmp_path, "--strict").exit_code == 0


def test_a_lost_metadata_log_is_put_back_by_hand(tmp_path: Path) -> None:
    lost(tmp_path, METADATA)
    assert run("verify", tmp_path).exit_code == 1
    points = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    for arguments in ((), ("--execute",)):
        result = run("repair", tmp_path, *arguments, "-o", "json")
        assert result.exit_code == 1
        assert [item["action"] for item in json.loads(result.stdout)["repairs"]] == ["put back"]
    shown = run("repair", tmp_path, "--execute").stdout
    assert "start would treat every topic as deleted" in " ".join(shown.split()) and shown.endswith("0 repairs done\n")
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == points
    (tmp_path / "elsewhere").rename(tmp_path / METADATA)
    assert planned(tmp_path) == []


def test_the_mark_of_a_deleted_topic_is_no_loss(tmp_path: Path) -> None:
    points = stopped(tmp_path) / "recovery-point-offset-checkpoint"
    lines = points.read_text().splitlines()
    points.write_text("\n".join(["0", str(int(lines[1]) + 1), *lines[2:], "gone 0 7"]) + "\n")
    assert planned(tmp_path) == []
    LogRig(tmp_path).stop()


@pytest.mark.parametrize("ends_at_cut", [True, False])
def test_a_state_checkpoint_stays_unless_it_is_ahead_of_the_cut(tmp_path: Path, ends_at_cut: bool) -> None:
    """Compaction may have removed what it has, because of later records that the cut removes."""
    stopped(tmp_path)
    segment = tmp_path / OFFSETS / SEGMENT
    cut_at = 0
    for batch in batches_of(segment)[:-1]:
        cut_at = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    StateFileWriter(DiskStorage(str(tmp_path)), f"{OFFSETS}/{STATE_FILE}").finish(0, cut_at + (0 if ends_at_cut else 1))
    assert [repair["offset"] for repair in executed(tmp_path)] == [cut_at]
    assert segment.with_name(STATE_FILE).exists() == ends_at_cut
