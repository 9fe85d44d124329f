"""One log of `__consumer_offsets` for the rules about groups: where its batches end, and what compaction took.

That a log was compacted shows where an offset is missing. Until then it counts as whole; what is found of states
meanwhile is held back, and forgotten if a gap comes. From the offset up to which the cleaner came, every record is
there. Where its checkpoint does not say, or gaps say more, that is the last segment. (A crash just before the
checkpoint is written leaves one that says too little; no gap tells if nothing above it had been replaced.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from kcoord.core.outcome import LogId
from kcoord.history.invariants import NEVER, GroupInvariants, Violation
from kcoord.log.inspect import DataDirectory, PartitionFiles
from kcoord.log.reader import StoredBatch
from kcoord.wire.message import Message

# Only the end of the log is sure to be right.
AT_END: Final = NEVER - 1
# Takes the rule, what is wrong, file, position and offset; "" and -1 where the batch was read long ago.
Tell = Callable[[str, str, str, int, int], None]


@final
class GroupChecks:
    def __init__(
        self, directory: DataDirectory, files: PartitionFiles, rules: GroupInvariants, tell: Tell
    ) -> None:
        self.rules = rules
        self.tell = tell
        self.log_id = LogId(files.topic, files.partition)
        self.last_segment_start = files.segments[-1].base_offset if files.segments else 0
        cleaned = directory.cleaned.get((files.topic, files.partition), self.last_segment_start)
        self.floor = min(cleaned, self.last_segment_start)
        self.start = directory.start_of(files)
        self.due = self.start
        self.has_gaps = False
        # Whether states can be known at all; if retention or DeleteRecords took the beginning they cannot.
        self.is_known = self.start == 0
        self._batch: StoredBatch | None = None
        self._held: list[tuple[Violation, str, int]] = []
        self.rules.expect(self.log_id, 0 if self.is_known else NEVER)

    def begin_batch(self, batch: StoredBatch) -> None:
        """A batch is about to be read; also control batches."""
        self._batch = batch
        base, end = int(batch.header.base_offset), int(batch.header.last_offset) + 1
        if end <= self.start:
            return
        is_short = int(batch.header.count) != end - base
        if self.is_known and (base > self.due or is_short):
            if is_short and base >= self.last_segment_start:
                # Compacted when it was not the last one.
                self._gap(AT_END)
            elif self.due < self.last_segment_start:
                self._gap(base)
            else:
                self.lost()
        if base > self.due:
            # What was compacted may end in the gap.
            for violation in self.rules.end_batch(self.log_id, base):
                self._found(violation)
        self.due = max(self.due, end)
        if base >= self.last_segment_start:
            self._release()

    def record(self, offset: int, key: Message | None, value: Message | None) -> None:
        """The next record of the batch, replayed; control records are none."""
        for violation in self.rules.replay(self.log_id, offset, key, value):
            self._found(violation)

    def end_batch(self) -> None:
        """Its records were read."""
        for violation in self.rules.end_batch(self.log_id, self.due):
            self._found(violation)

    def lost(self) -> None:
        """Something cannot be read. What comes behind it is replayed, but nothing is known of states any more."""
        self.is_known = False
        self._release()
        self.rules.lost(self.log_id)

    def finish(self, is_cut: bool) -> None:
        """There are no more batches; `is_cut`: there should be."""
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
