"""Plans repairs of the metadata log and its snapshots for `kcoord log repair`.

A valid snapshot replaces everything below its end, so damage there loses nothing: the log begins at the snapshot. A
damaged snapshot is put aside if the log or another snapshot has its state. Otherwise no tool can determine the topics.
"""

from __future__ import annotations

import os
from typing import Final

from kcoord.cli.log.past.state_start import LookedAtStorage
from kcoord.cli.log.repair.plan import BEGIN_AT, CUT, LOWER_MARK, PUT_ASIDE, PUT_BACK, Repair
from kcoord.log.inspect import DataDirectory, PartitionFiles
from kcoord.log.metadata_checkpoint import (
    BadCheckpoint,
    CheckpointName,
    list_checkpoints,
    no_base,
    read_checkpoint_file,
)

ENDS_EARLY: Final = "the log ends at {}, its snapshot at {}"


def plan_snapshots(
    directory: DataDirectory, files: PartitionFiles, repairs: list[Repair], end: int
) -> tuple[list[Repair], int]:
    """The repairs of the metadata log with its snapshots, and its end offset after them. Raises OSError.

    `repairs` and `end` are those that the log alone would need."""
    start = directory.start_of(files)
    storage = LookedAtStorage(os.path.dirname(files.path))
    good: list[CheckpointName] = []
    found: list[Repair] = []
    reason = ""
    names = list_checkpoints(storage, files.name)
    for name in names:
        try:
            read_checkpoint_file(storage, files.name, name)
        except BadCheckpoint as error:
            reason = str(error)
            path = os.path.join(files.path, name.file)
            found.append(Repair(PUT_ASIDE, files.name, path, -1, name.end_offset, reason))
            continue
        if name.end_offset >= start:
            good.append(name)
    if start > 0 and not good:
        damage = no_base(files.path, start, names, reason)
        return [*repairs, Repair(PUT_BACK, files.name, damage.file, -1, start, damage.reason)], end
    newest = good[-1].end_offset if good else 0
    if newest <= end:
        return [*repairs, *found], end
    # All damage lies below the end of the snapshot.
    wrong = [repair for repair in repairs if repair.action == CUT]
    why = wrong[0].reason if wrong else ENDS_EARLY.format(end, newest)
    begin = Repair(BEGIN_AT, files.name, os.path.join(files.path, good[-1].file), -1, newest, why)
    begin.later = [segment.path for segment in files.segments]
    if any(segment.base_offset == newest for segment in files.segments):
        begin.later = [segment.path for segment in files.segments if segment.base_offset < newest]
    begin.bytes = sum(segment.size_bytes for segment in files.segments if segment.path in begin.later)
    rest = [
        repair
        for repair in repairs
        if repair.action not in (CUT, LOWER_MARK) and (repair.offset >= newest or repair.log != files.name)
    ]
    return [*rest, *found, begin], newest
