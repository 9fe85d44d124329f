"""The table `_history`: what compaction, retention and DeleteRecords left, without Spark."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kcoord.spark.reader.batch_reader import HistoryReader, TaskPartition
from kcoord.spark.reader.history import plan_history, read_history
from kcoord.spark.reader.options import BadOption, parse_options
from kcoord.spark.reader.row_filter import EVERYTHING
from kcoord.spark.source import KcoordDataSource
from kcoord.spark.tables.schemas import spark_schema
from tests.data.known import LOGS, dump
from tests.unit.cli.rig import run
from tests.unit.cli.test_log_compact import COMMITS, closed_segments
from tests.unit.spark.exchange_rig import Exchange
from tests.unit.spark.log_rig import NOW, LogRig, commit, options, rows

COLUMNS = ("log_start_offset", "end_offset", "cleaned_offset", "complete_from_offset", "history_complete_from")


def row(root: Path, **given: str) -> tuple[Any, ...]:
    [found] = rows(root, "_history", **given)
    return tuple(found[name] for name in COLUMNS)


def time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_a_log_is_whole_until_it_is_compacted(tmp_path: Path) -> None:
    data = closed_segments(tmp_path)
    end = 2 * COMMITS + 1
    assert row(data) == (0, end, None, 0, None)
    run("compact", data, "--history", "0")
    # The last commit of each group in the closed segments, which are without a gap, and the one after them.
    assert row(data) == (0, end, 2 * COMMITS, 2 * COMMITS - 2, time(1_760_000_000_000 + 2000))
    assert rows(data, "_history")[0]["log_topic"] == "__consumer_offsets"


def test_a_broker_s_logs() -> None:
    """Nothing of the coordinators' topics was compacted; of `compacted` and `trimmed` something is gone."""
    found = rows(LOGS, "_history")
    assert [(one["log_topic"], one["log_partition"]) for one in found] == [
        *(("__consumer_offsets", number) for number in range(3)),
        *(("__transaction_state", number) for number in range(2)),
    ]
    assert all((one["complete_from_offset"], one["history_complete_from"]) == (0, None) for one in found)
    start, end, cleaned, complete_from, at = row(LOGS, subscribe="compacted")
    assert (start, end, cleaned) == (0, 600, 380)
    # As kafka-dump-log shows it: what follows has no gap.
    times = {line["record"]["offset"]: line["record"]["time"] for line in dump("compacted-0") if "record" in line}
    assert [one for one in sorted(times) if one >= complete_from] == list(range(complete_from, 600))
    # The last offset that is missing is in the batch before.
    batches = [line["batch"] for line in dump("compacted-0") if "batch" in line]
    [before] = [one for one in batches if one["lastOffset"] == complete_from - 1]
    assert before["count"] <= before["lastOffset"] - before["baseOffset"] and complete_from <= cleaned
    assert at == time(times[complete_from])
    start, _, _, complete_from, at = row(LOGS, subscribe="trimmed")
    assert start == complete_from == 150 and at is not None


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(commit("g", "t", 0, 1))
    at = log.size
    log.append(commit("g", "t", 0, 2))
    log.append(commit("g", "t", 0, 3), at_ms=NOW + 5)
    assert row(tmp_path)[3:] == (0, None)
    data = bytearray(log.file(".log").read_bytes())
    data[at + 16] = 9
    log.file(".log").write_bytes(data)
    assert row(tmp_path)[3:] == (2, time(NOW + 5))
    # A batch whose end was not written is not there yet.
    log.file(".log").write_bytes(data[:-5])
    assert row(tmp_path)[1:4] == (1, None, 0)


def test_an_empty_last_segment_ends_the_log(tmp_path: Path) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(commit("g", "t", 0, 1))
    log.next_offset = 7
    log.roll()
    # The newest record that is left is all there is to say about the time.
    assert row(tmp_path) == (0, 7, None, 7, time(NOW))


def test_files_that_are_removed_meanwhile_are_listed_again(tmp_path: Path) -> None:
    log = LogRig(tmp_path, "__consumer_offsets")
    log.append(commit("g", "t", 0, 1))
    reader = HistoryReader(options(tmp_path, "_history"))
    [partition] = reader.partitions()
    log.file(".log").unlink()
    log.next_offset = 3
    log.roll()
    log.append(commit("g", "t", 0, 2))
    [batch] = reader.read(partition)
    assert batch.column("complete_from_offset").to_pylist() == [3]
    shutil.rmtree(log.path)
    with pytest.raises(FileNotFoundError):
        list(reader.read(partition))


def test_it_is_read_at_once_only(tmp_path: Path) -> None:
    given = {"path": str(LOGS), "table": "_history"}
    source = KcoordDataSource(given)
    assert isinstance(source.reader(spark_schema("_history")), HistoryReader)
    with pytest.raises(BadOption, match="cannot be streamed"):
        source.streamReader(spark_schema("_history"))
    assert list(HistoryReader(parse_options(given)).read(TaskPartition)) == []
    found = rows(LOGS, "_history", where='{"log_topic": "__consumer_offsets", "log_partition": [1]}')
    assert [one["log_partition"] for one in found] == [1]


def test_files_that_a_broker_exchanges_before_they_are_read(tmp_path: Path) -> None:
    """What is there now is looked at, not what was listed."""
    log = LogRig(tmp_path, "__consumer_offsets")
    for number in range(3):
        for _ in range(4):
            log.append(commit("g", "t", 0, number))
        log.roll()
    log.append(commit("g", "t", 0, 9))
    [task] = plan_history(options(tmp_path, "_history"), EVERYTHING)
    Exchange(log, count=2).run()
    [found] = read_history(task, options(tmp_path, "_history")).to_pylist()
    assert (found["end_offset"], found["complete_from_offset"]) == (13, 8)
