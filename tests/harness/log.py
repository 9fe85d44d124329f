"""Logs read, compacted and marked in one call, which the server does in steps."""

from __future__ import annotations

from collections.abc import Iterator

from kcoord.engine.state_checkpoint import StatePlan, write_state
from kcoord.log.cleaner import CleanConfig, CleanResult, clean
from kcoord.log.exchange import promote
from kcoord.log.journal import Journal
from kcoord.log.partition_log import PartitionLog
from kcoord.log.state_file import read_state_file, state_path


def batches_of(log: PartitionLog, from_offset: int, upto_offset: int) -> Iterator[tuple[int, bytes]]:
    """(position, buffer) of every written batch between the offsets, with checksums verified.

    Parse with parse_header(buffer, position). Raises LogDamaged.
    """
    upto_offset = min(upto_offset, log.written_end)
    for segment in log.segments:
        if segment.base_offset >= upto_offset or not segment.size:
            continue
        for header, data in segment.batches(segment.position_before(from_offset), True):
            if header.base_offset >= upto_offset:
                return
            if header.last_offset >= from_offset:
                yield header.pos, data


def checkpoint(journal: Journal, now_ms: int) -> None:
    """Write the recovery points and wait for the disk. If that fails the journal has failed, as in the server."""
    try:
        journal.directory.write_recovery_points(journal.begin_checkpoint(now_ms))
    except OSError as error:
        journal.fail(error)
        raise


def compact(
    log: PartitionLog, first_dirty: int, config: CleanConfig, now_ms: int, producers: frozenset[int] | None = None
) -> CleanResult:
    """Clean the closed segments, of which there is at least one, and exchange them."""
    storage = log.storage
    bases = [segment.base_offset for segment in log.closed_segments]
    result = clean(storage, log.name, bases, first_dirty, config, now_ms, producers)
    promote(storage, log.name, [group.base for group in result.groups], config.index_interval_bytes)
    for group in result.groups:
        found = log.begin_replace(group.base, group.old_bases)
        assert found is not None
        new, old = found
        storage.sync_dir(log.name)
        new.rename("")
        storage.sync_dir(log.name)
        for segment in old:
            segment.remove()
    return result


def write_checkpoint(log: PartitionLog) -> None:
    """A state checkpoint at the end of the log, from the last one and the log after it."""
    last = read_state_file(log.storage, state_path(log.name))
    start = 0 if last is None else last.end_offset
    end = log.durable_end
    write_state(log.storage, StatePlan(log.name, log.log_start_offset, start, end, log.extents(start, end)))
