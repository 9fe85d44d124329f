"""The option `newest`: records that others of the same key replaced may be missing, nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from kcoord.spark.reader import tasks as reading
from kcoord.spark.reader.options import BadOption
from kcoord.spark.tables.record_rows import newest_of
from tests.data.known import LOGS
from tests.unit.spark.log_rig import LogRig, commit, options, rows

COLUMNS = "log,log_partition,log_offset,key,value"


def test_the_last_of_each_key_and_all_without() -> None:
    keys = pa.array([b"a", b"b", None, b"a", None, b"c", b"b"], pa.binary())
    assert newest_of(keys).to_pylist() == [2, 3, 4, 5, 6]
    assert newest_of(pa.array([None, None], pa.binary())).to_pylist() == [0, 1]


def test_the_state_is_the_same_with_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "NEWEST_ROWS", 50)
    made_up = random.Random(3)
    log = LogRig(tmp_path, "__consumer_offsets")
    for offset in range(400):
        log.append(commit(made_up.choice("abcdef"), "t", made_up.randrange(3), offset))
    everything = rows(tmp_path, "records", columns=COLUMNS)
    found = rows(tmp_path, "records", columns=COLUMNS, newest="true")
    assert len(everything) == 400 and 18 <= len(found) <= 160
    assert found == [row for row in everything if row in found]
    assert {row["key"]: row for row in found} == {row["key"]: row for row in everything}
    assert found[-1] == everything[-1]


def test_of_a_brokers_logs(tmp_path: Path) -> None:
    def state(**given: str) -> dict[object, object]:
        return {(row["log"], row["log_partition"], row["key"]): row for row in rows(LOGS, "records", **given)}

    assert state(columns=COLUMNS, newest="true") == state(columns=COLUMNS)
    without_key = rows(LOGS, "records", columns="log_offset", newest="true")
    assert 0 < len(without_key) < len(rows(LOGS, "records", columns="log_offset"))


def test_only_where_it_makes_sense(tmp_path: Path) -> None:
    for table, level in (("offset_commits", "read_committed"), ("records", "read_uncommitted")):
        with pytest.raises(BadOption, match="newest"):
            options(tmp_path, table, newest="true", isolationLevel=level)
