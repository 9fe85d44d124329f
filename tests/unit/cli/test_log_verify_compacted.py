"""`kcoord log verify` of a state checkpoint when compaction has removed what later records replace."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcoord.cli.log.verify.findings import Findings
from kcoord.cli.log.verify.state_checks import StateCheck
from kcoord.log.cleaner import CleanConfig
from kcoord.log.inspect import PartitionFiles
from kcoord.log.partition_log import PartitionLog
from kcoord.log.reader import PartitionDirectory, StoredBatch, read_batches
from kcoord.log.serde import encode_record
from kcoord.log.state_file import StateFileWriter, state_path
from kcoord.log.storage import DiskStorage
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.log import compact, write_checkpoint
from tests.unit.engine.test_offsets_compaction import NewKeys
from tests.unit.engine.transaction_logs import NAME, NO_PRODUCER, RandomLog, commit, new_log

SEGMENT_BYTES = 600


def found_in(path: Path, log: PartitionLog) -> list[str]:
    """The messages of a check of the log and its checkpoint."""
    findings = Findings()
    files = PartitionFiles(PartitionDirectory(str(path / NAME), "__consumer_offsets", 0))
    check = StateCheck(files, 0, findings)
    for segment in files.segments:
        for batch in read_batches(segment.path):
            assert isinstance(batch, StoredBatch)
            for record in batch.records(1 << 20):
                check.note(batch.header, record)
    check.finish(log.end_offset)
    return [finding.message for finding in findings.found]


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_wrong_with_a_log_that_was_compacted_beyond_its_checkpoint(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    random_log = NewKeys(rng, new_log(DiskStorage(str(tmp_path)), SEGMENT_BYTES))
    log = random_log.log
    first_dirty = now_ms = 0
    for _ in range(15):
        for _ in range(rng.randint(1, 12)):
            random_log.grow()
        if rng.random() < 0.3:
            write_checkpoint(log)
        if log.closed_segments and rng.random() < 0.8:
            config = CleanConfig(500, SEGMENT_BYTES, log.config.index_interval_bytes)
            first_dirty = compact(log, first_dirty, config, now_ms).end
        now_ms += rng.choice((0, 500, 2500))
        assert found_in(tmp_path, log) == []


def test_other_records_that_the_log_does_not_have_are_still_reported(tmp_path: Path) -> None:
    storage = DiskStorage(str(tmp_path))
    made = NewKeys(random.Random(1), new_log(storage, SEGMENT_BYTES))
    for offset in range(4):
        made.append(NO_PRODUCER, [commit(("a", "t", offset % 2), offset)])
    end = made.log.end_offset

    def with_checkpoint(*records: tuple[int, int, int]) -> list[str]:
        """(offset of the record, partition, committed offset) of each."""
        writer = StateFileWriter(storage, state_path(NAME))
        for at, partition, offset in records:
            builder = BatchBuilder()
            builder.append(1000 + at, *encode_record(*commit(("a", "t", partition), offset)))
            writer.append(builder.build(at, 0))
        writer.finish(len(records), end)
        return found_in(tmp_path, made.log)

    newest = "its record at offset {} is not the newest of its key"
    assert with_checkpoint((2, 0, 2), (3, 1, 3)) == []
    assert with_checkpoint((2, 0, 2), (3, 1, 9)) == [newest.format(3)]
    # Replaced later, so that compaction may remove the newest below the end, but not give it another value.
    made.append(NO_PRODUCER, [commit(("a", "t", 1), 5)])
    assert with_checkpoint((2, 0, 2), (3, 1, 3)) == []
    assert with_checkpoint((2, 0, 2), (3, 1, 9)) == [newest.format(3)]
    assert with_checkpoint((1, 1, 1), (2, 0, 2)) == [newest.format(1)]


@pytest.mark.parametrize("seed", range(4))
def test_keys_of_both_formats_are_the_same_key(tmp_path: Path, seed: int) -> None:
    """Records of Kafka 0.8 and newer ones, without compaction."""
    random_log = RandomLog(random.Random(seed), new_log(DiskStorage(str(tmp_path)), SEGMENT_BYTES))
    for _ in range(60):
        random_log.grow()
    write_checkpoint(random_log.log)
    assert found_in(tmp_path, random_log.log) == []
