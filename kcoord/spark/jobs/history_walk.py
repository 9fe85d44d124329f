"""Goes through the records of logs and gives each to the history of its key. Uses neither Spark nor Arrow.

Records of a log come in one of two orders. Sorted by key and offset, one history is open at a time, however long the
log is. In the order of the log, the histories of all its keys are open, as in the coordinator that has the log; then
nobody has to sort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.spark.jobs.histories import (
    ALWAYS,
    GROUPS_PER_CORE,
    UNKNOWN_FLOOR,
    Found,
    GroupHistory,
    History,
    TransactionHistory,
    new_core,
)

# (log, log_topic, log_partition).
Place = tuple[str, str, int]
# From `log_offset` to `holds`, and from there on.
NOT_FOUND: Final = (None,) * 4
NOT_COUNTED: Final = (None,) * 5


@final
class HistoryWalk:
    """`rows` are those of `kcoord.spark.jobs.verify.CHECKED` that were not taken yet. `is_sorted` is whether records
    come sorted by key, and not in the order of the log.
    """

    def __init__(self, floors: Mapping[Place, int], offsets_partitions: int, is_sorted: bool) -> None:
        self.floors = floors
        self.offsets_partitions = offsets_partitions
        self.is_sorted = is_sorted
        self.rows: list[tuple[Any, ...]] = []
        self.core = new_core()
        self.groups = 0
        self.place: Place = ("", "", -1)
        self.floor = UNKNOWN_FLOOR
        self.counted = 0
        self.above = 0
        self.lowest = -1
        self.highest = -1
        self.histories: dict[str, History] = {}

    def take(
        self,
        place: Place,
        offsets: Sequence[int],
        timestamps_ms: Sequence[int],
        ids: Sequence[str | None],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        in_transaction: Sequence[bool],
    ) -> None:
        """The next records of the log at `place`. Those without an id only count."""
        if place != self.place:
            self._leave_log()
            self.place = place
            self.floor = self.floors.get(place, UNKNOWN_FLOOR)
        last_id: str | None = None
        history: History | None = None
        for index in range(len(offsets)):
            offset = offsets[index]
            self._count(offset)
            key_id = ids[index]
            if key_id is None:
                if self.is_sorted:
                    self._leave_histories()
                    history = None
                continue
            if history is None or key_id != last_id:
                last_id = key_id
                history = self._history(key_id, offset)
            key = keys[index]
            if key is not None:
                found = history.record(offset, timestamps_ms[index], key, values[index], in_transaction[index])
                if found:
                    self._add(key_id, found)

    def finish(self) -> None:
        """There are no more records."""
        self._leave_log()

    def _count(self, offset: int) -> None:
        if self.counted == 0 or offset < self.lowest:
            self.lowest = offset
        if offset > self.highest:
            self.highest = offset
        self.counted += 1
        if offset >= self.floor:
            self.above += 1

    def _history(self, key_id: str, offset: int) -> History:
        """The history of a key, which begins at `offset` if it is new."""
        known = self.histories.get(key_id)
        if known is not None:
            return known
        if self.is_sorted:
            self._leave_histories()
        history = self._new_history(key_id, offset)
        self.histories[key_id] = history
        return history

    def _new_history(self, key_id: str, offset: int) -> History:
        _, topic, partition = self.place
        if topic == TRANSACTION_TOPIC:
            return TransactionHistory(key_id, self.floor)
        if self.groups == GROUPS_PER_CORE:
            self.groups = 0
            self.core = new_core()
        self.groups += 1
        if self.offsets_partitions > 0:
            home = coordinator_partition(key_id, self.offsets_partitions)
            if home != partition:
                text = f"group {key_id!r} belongs into partition {home} of {OFFSETS_TOPIC}"
                self._add(key_id, [Found(offset, "placement", text, ALWAYS)])
        return GroupHistory(key_id, self.core, self.floor)

    def _leave_histories(self) -> None:
        for key_id, history in self.histories.items():
            self._add(key_id, history.finish())
        self.histories.clear()

    def _leave_log(self) -> None:
        self._leave_histories()
        if self.counted:
            seen = (self.counted, self.lowest, self.highest, self.floor, self.above)
            self.rows.append((None, None, *self.place, *NOT_FOUND, *seen))
        self.counted = 0
        self.above = 0
        self.highest = -1
        # The same group in another log is another group.
        self.core = new_core()
        self.groups = 0

    def _add(self, key_id: str, found: list[Found]) -> None:
        kind = "transaction" if self.place[1] == TRANSACTION_TOPIC else "group"
        for one in found:
            about = (one.offset, one.rule, one.message, one.holds)
            self.rows.append((kind, key_id, *self.place, *about, *NOT_COUNTED))
