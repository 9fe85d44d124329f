"""Feeds one log of `__consumer_offsets` to the rules about groups, and takes compaction into account.

A missing offset shows that a log was compacted. Until then the log counts as complete. Findings about states are held
back and dropped if a gap follows. Above the offset in the cleaner's checkpoint every record exists. If there is no
checkpoint, or gaps lie above it, that holds only for the last segment. (A crash just before the checkpoint is written
leaves a value that is too low. There is no gap above it if no record there had been replaced.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import LogId
from kcoord.history.invariants import NEVER, GroupInvariants, Violation
from kcoord.log.inspect import DataDirectory, PartitionFiles
from kcoord.log.reader import StoredBatch
from kcoord.log.transaction_index import ABORT, COMMIT, marker_type
from kcoord.wire.message import Message
from kcoord.wire.record_batch import NO_PRODUCER_ID

# Only the state at the end of the log is certain.
AT_END: Final = NEVER - 1
# Receives the rule, the message, file, position and offset; "" and -1 if the batch is no longer known.
Tell = Callable[[str, str, str, int, int], None]


@final
class GroupChecks:
    def __init__(self, directory: DataDirectory, files: PartitionFiles, rules: GroupInvariants, tell: Tell) -> None:
        self.rules = rules
        self.tell = tell
        self.log_id = LogId(files.topic, files.partition)
        self.last_segment_start = files.segments[-1].base_offset if files.segments else 0
        cleaned = directory.cleaned.get((files.topic, files.partition), self.last_segment_start)
        self.floor = min(cleaned, self.last_segment_start)
        self.start = directory.start_of(files)
        self.due = self.start
        self.has_gaps = False
        # Whether states are known at all; not if retention or DeleteRecords removed the beginning.
        self.is_known = self.start == 0
        self._batch: StoredBatch | None = None
        self._held: list[tuple[Violation, str, int]] = []
        self.rules.expect(self.log_id, 0 if self.is_known else NEVER)

    def begin_batch(self, batch: StoredBatch) -> None:
        """Called before each batch, including control batches."""
        self._batch = batch
        base, end = int(batch.header.base_offset), int(batch.header.last_offset) + 1
        if end <= self.start:
            return
        is_short = int(batch.header.count) != end - base
        if self.is_known and (base > self.due or is_short):
            if is_short and base >= self.last_segment_start:
                # The segment was compacted when it was not the last one.
                self._gap(AT_END)
            elif self.due < self.last_segment_start:
                self._gap(base)
            else:
                self.lost()
        if base > self.due:
            # The compacted part may end within the gap.
            for violation in self.rules.end_batch(self.log_id, base):
                self._found(violation)
        self.due = max(self.due, end)
        if base >= self.last_segment_start:
            self._release()

    def record(self, offset: int, key: Message | None, value: Message | None) -> None:
        """Called for each replayed record of the batch, but not for control records."""
        producer_id = NO_PRODUCER_ID if self._batch is None else int(self._batch.header.producer_id)
        for violation in self.rules.replay(self.log_id, offset, key, value, producer_id):
            self._found(violation)

    def marker(self, batch: StoredBatch) -> None:
        """Called for each control batch: a marker ends the transaction of its producer."""
        header = batch.header
        kind = marker_type(batch.data, header)
        if kind in (ABORT, COMMIT) and header.base_offset >= self.start:
            self.rules.core.replay_marker(
                self.log_id,
                int(header.base_offset),
                int(header.producer_id),
                int(header.producer_epoch),
                kind == COMMIT,
            )

    def end_batch(self) -> None:
        """Called after the records of a batch."""
        for violation in self.rules.end_batch(self.log_id, self.due):
            self._found(violation)

    def lost(self) -> None:
        """Called for unreadable bytes. Later records are replayed, but states are unknown from here on."""
        self.is_known = False
        self._release()
        self.rules.lost(self.log_id)

    def finish(self, is_cut: bool) -> None:
        """Called at the end of the log; `is_cut` means that batches are missing there."""
        self._batch = None
        if is_cut and self.has_gaps and self.due < self.floor:
            self.lost()
        for violation in self.rules.end_log(self.log_id):
            self._found(violation)
        self._release()

    def _gap(self, base: int) -> None:
        if base > self.floor:
            self.floor = AT_END if base >= AT_END else self.last_segment_start
        elif self.has_gaps:
            return
        self.has_gaps = True
        self._held = []
        self.rules.expect(self.log_id, self.floor)

    def _found(self, violation: Violation) -> None:
        batch, file, position = self._batch, "", -1
        if batch is not None and violation.offset >= batch.header.base_offset:
            file, position = batch.file, batch.position
        if violation.is_of_state and batch is not None and batch.header.base_offset < self.last_segment_start:
            self._held.append((violation, file, position))
        else:
            self.tell(violation.rule, violation.text, file, position, violation.offset)

    def _release(self) -> None:
        held = self._held
        self._held = []
        for violation, file, position in held:
            self.tell(violation.rule, violation.text, file, position, violation.offset)
