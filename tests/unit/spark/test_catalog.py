"""Options as Spark passes them for tables of its catalog, and several paths. Without a session."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kcoord.spark.catalog import is_of_catalog, options_of, stated_options, with_options
from kcoord.spark.reader.batch_reader import KcoordReader
from kcoord.spark.reader.options import BadOption, parse_options
from kcoord.spark.source import KcoordDataSource
from kcoord.spark.tables.schemas import spark_schema
from tests.unit.spark.log_rig import LogRig, rows

# What Spark 4.3 passes for CREATE TABLE ... USING kcoord OPTIONS (path 'data', table 'records') TBLPROPERTIES (a 'b').
PROPERTIES = {
    "provider": "kcoord", "location": "/data", "path": "/data", "a": "b", "owner": "somebody", "external": "true",
    "table": "records", "option.table": "records",
}  # fmt: skip


def test_a_tables_properties_are_not_taken_for_options() -> None:
    assert is_of_catalog(PROPERTIES) and not is_of_catalog({"path": "/data", "table": "records"})
    assert stated_options(PROPERTIES) == {"path": "/data", "table": "records"}
    with pytest.raises(BadOption, match=r"there is no option tabel"):
        KcoordDataSource({**PROPERTIES, "option.tabel": "records"}).schema()


def test_options_come_back_out_of_the_schema() -> None:
    schema = KcoordDataSource(PROPERTIES).schema()
    assert schema.names == spark_schema("records").names
    assert options_of(schema, {}) == {"path": "/data", "table": "records"}
    # Options of one read take the place of the table's; a path means other options altogether.
    assert options_of(schema, {"onCorrupt": "collect"})["onCorrupt"] == "collect"
    assert options_of(schema, {"Table": "messages"}) == {"path": "/data", "Table": "messages"}
    assert options_of(schema, {"path": "/other"}) == {"path": "/other"}
    reader = KcoordDataSource({}).reader(schema)
    assert isinstance(reader, KcoordReader) and reader.options.table.NAME == "records"


def test_a_schema_elsewhere_has_no_options() -> None:
    assert KcoordDataSource({"path": "/data"}).schema() == spark_schema("offset_commits")


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("data", os.path.abspath("data")), ("/data", "/data"), ("s3://bucket/a", "s3://bucket/a"), ("file:/a", "file:/a")],
)
def test_a_relative_path_is_made_absolute(path: str, wanted: str) -> None:
    assert stated_options({"provider": "kcoord", "path": path}) == {"path": wanted}


def test_secrets_are_not_stored_in_a_catalog() -> None:
    given = {**PROPERTIES, "option.storage.secret_key": "x"}
    with pytest.raises(BadOption, match=r"storage\.secret_key is not stored in a catalog"):
        stated_options(given)
    assert stated_options({"path": "/a", "storage.secret_key": "x"})["storage.secret_key"] == "x"
    assert "storage.region" in stated_options({**PROPERTIES, "option.storage.region": "x"})


def test_without_any_option_the_message_explains_tables_of_the_catalog() -> None:
    schema = with_options(spark_schema("records"), {"path": "/data", "table": "records"})
    with pytest.raises(BadOption, match=r"a path is needed.*column list.*WITH \(path"):
        KcoordDataSource({}).reader(spark_schema("records"))
    with pytest.raises(BadOption, match=r"directory of some$"):
        KcoordDataSource({"table": "records"}).schema()
    assert KcoordDataSource({}).streamReader(schema) is not None


def test_a_stream_is_not_written_and_the_message_has_the_next_step() -> None:
    with pytest.raises(BadOption, match="foreachBatch"):
        KcoordDataSource({"path": "/data"}).streamWriter(spark_schema("messages"), False)


def test_several_paths_are_read_together(tmp_path: Path) -> None:
    for name in ("a", "b/east", "b/west"):
        LogRig(tmp_path / name).append((b"k", name.encode()))
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    paths = json.dumps([a, b, f"{b}/east/"])
    found = rows("", paths=paths)
    assert [(row["log"], row["value"]) for row in found] == [
        (a, b"a"), (f"{b}/east", b"b/east"), (f"{b}/west", b"b/west")
    ]  # fmt: skip
    # One in a list is like one by itself.
    assert [row["log"] for row in rows("", paths=json.dumps([a]))] == ["."]


def test_several_paths_are_of_one_filesystem() -> None:
    with pytest.raises(BadOption, match=r"several paths have to be in one filesystem, not in file and s3://a"):
        parse_options({"paths": '["/a", "s3://a/b"]'})
    assert parse_options({"paths": '["s3://a/b", "s3a://a/c"]'}).more_paths == ("s3a://a/c",)
    for wrong in ("a", "1", "[]"):
        with pytest.raises(BadOption, match="path"):
            parse_options({"paths": wrong})


def test_a_path_as_a_catalog_writes_it(tmp_path: Path) -> None:
    LogRig(tmp_path / "a b").append((b"k", b"v"))
    assert len(rows(f"file:{tmp_path}/a b")) == 1
