"""Spark's tables of a data directory that has records of format 1: in it, and after a server went on with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcoord.log.serde import decode_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol.records.consumer_group_member_metadata import ConsumerGroupMemberMetadataValue
from tests.harness.engine import open_engine
from tests.harness.format_1 import CLASSIC, CLASSIC_SESSION_MS, REGEX, STATIC, unpack
from tests.unit.cli.rig import OFFSETS, at
from tests.unit.spark.log_rig import rows


@pytest.fixture(params=["as it was", "opened", "one partition"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = unpack(tmp_path / "data")
    if request.param == "opened":
        open_engine(DiskStorage(str(root)), at(5)).stop()
    return root / OFFSETS if request.param == "one partition" else root


def members(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["member_id"]: row for row in found if row["record_name"] == "consumer_group_member_metadata"}


def test_sessions_of_members(data: Path) -> None:
    found = members(rows(data, "members"))
    sessions = {name: row["session_timeout_ms"] for name, row in found.items()}
    assert sessions == {STATIC: None, REGEX: None, CLASSIC: CLASSIC_SESSION_MS}


def test_values_of_records_are_those_that_a_broker_writes(data: Path) -> None:
    found = members(rows(data, "records"))
    for name, row in found.items():
        _key, value = decode_record(row["key"], row["value"])
        assert isinstance(value, ConsumerGroupMemberMetadataValue)
        assert (value.classic_member_metadata is not None) == (name == CLASSIC)
        assert ('"classicMemberMetadata":null' in row["value_json"]) == (name != CLASSIC)
    # Without JSON they are scanned another way.
    plain = members(rows(data, "records", columns="member_id,record_name,key,value"))
    assert {name: row["value"] for name, row in plain.items()} == {name: row["value"] for name, row in found.items()}


def test_other_causes_stay(data: Path) -> None:
    found = rows(data, "records")
    causes = [row["headers"] for row in found if row["log_topic"] == "__consumer_offsets" and row["headers"]]
    assert causes and all(one["key"].startswith("kcoord") for headers in causes for one in headers)


def test_nothing_is_corrupt(data: Path) -> None:
    assert rows(data, "_corrupt") == []
