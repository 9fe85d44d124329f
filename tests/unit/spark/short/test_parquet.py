"""What is written is all of a table or nothing, whatever happens on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kcoord.spark.short.parquet import TableExists, check_place, with_places, write_table
from kcoord.spark.short.runs import integers
from kcoord.spark.tables.arrow import TIMESTAMP

DAY_US = 86_400_000_000


def table(*rows: tuple[str, int | None]) -> pa.Table:
    groups, times = zip(*rows, strict=True)
    found = pa.table({"group_id": pa.array(groups), "at": pa.array(times, pa.int64()).cast(TIMESTAMP)})
    return with_places(found, integers(found.column("at")), 4, "date", "bucket")


def write(rows: pa.Table, place: Path) -> None:
    write_table(rows, integers(rows.column("at")), str(place), "date", "bucket", overwrite=True)


def test_days_and_buckets_are_directories_and_rows_are_sorted(tmp_path: Path) -> None:
    rows = [("b", 5), ("a", 7), ("b", 3), ("a", DAY_US), ("a", None), ("a", 1)]
    write(table(*rows), tmp_path / "t")
    days = {path.name for path in (tmp_path / "t").iterdir()}
    assert days == {"_SUCCESS", "date=1970-01-01", "date=1970-01-02", "date=__HIVE_DEFAULT_PARTITION__"}
    found: dict[str, list[int]] = {}
    for file in (tmp_path / "t" / "date=1970-01-01").glob("*/*.parquet"):
        read = pq.ParquetFile(file).read()
        assert read.schema.names == ["group_id", "at"]
        for row in read.to_pylist():
            found.setdefault(row["group_id"], []).append(row["at"].microsecond)
    assert found == {"a": [1, 7], "b": [3, 5]}


def test_a_table_without_rows_has_no_files(tmp_path: Path) -> None:
    write(table(("a", 1)).slice(0, 0), tmp_path / "t")
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["_SUCCESS"]


def test_a_full_disk_leaves_the_table_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(table(("old", 1)), tmp_path / "t")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    written = []

    def fail(rows: pa.Table, path: str, **_more: object) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        Path(path).touch()

    monkeypatch.setattr("kcoord.spark.short.parquet.pq.write_table", fail)
    with pytest.raises(OSError, match="No space"):
        write(table(("a", 1), ("a", DAY_US), ("a", 2 * DAY_US)), tmp_path / "t")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_table_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write(table(("old", 1)), tmp_path / "t")
    write(table(("new", DAY_US)), tmp_path / "t")
    assert {path.name for path in (tmp_path / "t").iterdir()} == {"_SUCCESS", "date=1970-01-02"}
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_what_is_no_table_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "precious").touch()
    with pytest.raises(TableExists, match="precious"):
        write(table(("a", 1)), tmp_path / "t")
    assert [path.name for path in tmp_path.rglob("*")] == ["t", "precious"]


def test_nor_is_a_table_that_nobody_asked_to_replace(tmp_path: Path) -> None:
    write(table(("old", 1)), tmp_path / "t")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    rows = table(("new", DAY_US))
    with pytest.raises(TableExists, match="--overwrite"):
        write_table(rows, integers(rows.column("at")), str(tmp_path / "t"), "date", "bucket")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_the_old_table_comes_back_if_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(table(("old", 1)), tmp_path / "t")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    rename = os.rename

    def fail(old: str, new: str) -> None:
        if old.endswith("/table"):
            raise PermissionError(13, "Permission denied")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(PermissionError):
        write(table(("new", DAY_US)), tmp_path / "t")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_links_and_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "kept").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        write(table(("new", DAY_US)), tmp_path / name)
        assert (tmp_path / name / "_SUCCESS").exists() and not (tmp_path / name).is_symlink()
    assert (tmp_path / "real" / "kept").exists()


def test_the_logs_that_were_read_are_never_replaced(tmp_path: Path) -> None:
    logs = tmp_path / "lag" / "data"
    logs.mkdir(parents=True)
    for place in (logs, tmp_path / "lag"):
        with pytest.raises(TableExists, match="the logs that were read"):
            check_place(str(place), True, str(logs))
    check_place(str(logs / "out"), True, str(logs))
