"""Replays the history of one group, or of one transactional id, and checks the rules. Does not use Spark.

The records of one key come in the order of their log, without those of others. So the ends of batches, where states
are checked (`kcoord.history.invariants`), are unknown. But a coordinator writes the records of one step next to each
other with one timestamp: if a record of another key is between, or the time has changed, the state was complete.
Otherwise the check comes later.

A single history does not show either whether its log was compacted. So each violation has the logs for which it holds
(`holds`), and `kcoord.spark.jobs.verify`, which knows all histories of the log, selects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, final

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import OFFSETS_TOPIC, LogId
from kcoord.history.invariants import NEVER, GroupInvariants, Violation
from kcoord.log.serde import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    UnknownRecord,
    decode_record,
    decode_transaction_record,
)
from kcoord.protocol.records import consumer_group_metadata
from kcoord.protocol.records.offset_commit import OffsetCommitKey
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.spark.jobs.transaction_rules import TransactionRules
from kcoord.wire.primitives import DecodeError

# For any log.
ALWAYS: Final = "always"
# For a log without gaps.
WHOLE: Final = "whole"
# For a log without gaps from the floor on.
ABOVE_FLOOR: Final = "above floor"
# For a log with gaps, but none from the floor on: WHOLE and ABOVE_FLOOR have reported the same.
AT_FLOOR: Final = "at floor"
# For a log with gaps above the floor: the end of a log is right in any case.
AT_END: Final = "at end"
# A floor above all offsets: it is unknown how far the log was compacted.
UNKNOWN_FLOOR: Final = NEVER - 1

OFFSET_TYPES: Final = (LEGACY_OFFSET_COMMIT, OFFSET_COMMIT)
# Groups are independent; those of one core share what is costly to make.
GROUPS_PER_CORE: Final = 1_000


@dataclass(frozen=True)
class Found:
    offset: int
    rule: str
    message: str
    holds: str


class History(ABC):
    """The history of one key."""

    @abstractmethod
    def record(
        self, offset: int, timestamp_ms: int, key: bytes, value: bytes | None, in_transaction: bool
    ) -> list[Found]:
        """The next record of the key."""

    @abstractmethod
    def finish(self) -> list[Found]:
        """The key has no more records."""


def new_core() -> Core:
    """Replays groups one after the other, whatever logs they are in."""
    core = Core(CoreConfig())
    core.assume_offsets_logs(1)
    return core


@final
class GroupHistory(History):
    """One group. Up to `floor` its log may have been compacted; NEVER if no state of it can be known."""

    def __init__(self, group_id: str, core: Core, floor: int = UNKNOWN_FLOOR) -> None:
        self.floor = floor
        self.rules = GroupInvariants(core)
        self.offsets = OffsetsLeft(group_id, core)
        self.log = LogId(OFFSETS_TOPIC, 0)
        self.holds = WHOLE
        self._due = 0
        self._timestamp_ms = -1
        self._is_open = False

    def record(
        self, offset: int, timestamp_ms: int, key: bytes, value: bytes | None, in_transaction: bool
    ) -> list[Found]:
        found: list[Found] = []
        if self._is_open and (offset != self._due or timestamp_ms != self._timestamp_ms):
            self._end_step(found)
        if self.holds == WHOLE and self.floor <= offset < NEVER:
            self._reach_floor(found)
        self._due = offset + 1
        self._timestamp_ms = timestamp_ms
        self._is_open = True
        try:
            key_message, value_message = decode_record(key, value)
        except DecodeError as error:
            return [*found, Found(offset, "record", f"the record cannot be decoded: {error}", ALWAYS)]
        if isinstance(key_message, UnknownRecord):
            return found
        # Records that the core does not replay are skipped.
        self._add_violations(self.rules.replay(self.log, offset, key_message, value_message), found)
        partition = ("", -1)
        if isinstance(key_message, OffsetCommitKey):
            partition = (key_message.topic, key_message.partition)
        record_type = int.from_bytes(key[:2], "big")
        self.offsets.note(record_type, offset, partition, value is not None, in_transaction)
        return found

    def finish(self) -> list[Found]:
        found: list[Found] = []
        if self._is_open:
            self._end_step(found)
        if self.floor == NEVER:
            return found
        if self.holds == WHOLE and self.floor < UNKNOWN_FLOOR:
            self._reach_floor(found)
        self.holds = AT_END
        self.rules.expect(self.log, UNKNOWN_FLOOR)
        self._add_violations(self.rules.end_log(self.log), found)
        return found

    def _end_step(self, found: list[Found]) -> None:
        self._is_open = False
        self._add_violations(self.rules.end_batch(self.log, self._due), found)
        self._add_violations(self.offsets.end_step(), found)

    def _reach_floor(self, found: list[Found]) -> None:
        self.holds = AT_FLOOR
        self.rules.expect(self.log, self.floor)
        self._add_violations(self.rules.end_batch(self.log, self.floor), found)
        self.holds = ABOVE_FLOOR

    def _add_violations(self, violations: list[Violation], found: list[Found]) -> None:
        for one in violations:
            holds = self.holds if one.is_of_state else ALWAYS
            found.append(Found(one.offset, one.rule, one.text, holds))


@final
class OffsetsLeft:
    """Checks that removing a group removes its offsets.

    A violation is certain in two cases: a classic group's record is removed and the same step has no record of another
    kind of group, or a consumer group is removed together with some of its offsets. (A consumer group without members
    is also removed when a classic member joins, and then keeps its offsets.) Offsets that were committed without a
    group, or later, belong to no group and are valid. So may be those of transactions, which count only from the end of
    the transaction.
    """

    def __init__(self, group_id: str, core: Core) -> None:
        self.group_id = group_id
        self.core = core
        self._transactional: dict[tuple[str, int], bool] = {}
        self._removed_at = -1
        self._is_certain = False
        self._has_tombstones = False

    def note(
        self, record_type: int, offset: int, partition: tuple[str, int], has_value: bool, in_transaction: bool
    ) -> None:
        """One record was replayed; `partition` is an offset's."""
        if record_type in OFFSET_TYPES:
            if in_transaction:
                self._transactional[partition] = True
            else:
                self._transactional.pop(partition, None)
                self._has_tombstones = self._has_tombstones or not has_value
        elif has_value:
            self._removed_at = -1
        elif record_type in (GROUP_METADATA, consumer_group_metadata.RECORD_TYPE):
            self._removed_at = offset
            self._is_certain = record_type == GROUP_METADATA

    def end_step(self) -> list[Violation]:
        removed_at = self._removed_at
        is_certain = self._is_certain or self._has_tombstones
        self._removed_at = -1
        self._has_tombstones = False
        if removed_at < 0 or not is_certain:
            return []
        found: list[Violation] = []
        for topic, of_topic in self.core.offsets.by_group.get(self.group_id, {}).items():
            for partition, stored in of_topic.items():
                if stored.record_offset < removed_at and (topic, partition) not in self._transactional:
                    text = f"group {self.group_id!r} is removed, but not its offset of {topic}-{partition}"
                    found.append(Violation("offsets", text, self.group_id, removed_at, True))
        return found


@final
class TransactionHistory(History):
    """One transactional id."""

    def __init__(self, transactional_id: str, floor: int = UNKNOWN_FLOOR) -> None:
        self.rules = TransactionRules(transactional_id)
        self.floor = floor

    def record(
        self, offset: int, timestamp_ms: int, key: bytes, value: bytes | None, in_transaction: bool
    ) -> list[Found]:
        try:
            key_message, message = decode_transaction_record(key, value)
        except DecodeError as error:
            return [Found(offset, "record", f"the record cannot be decoded: {error}", ALWAYS)]
        if not isinstance(key_message, TransactionLogKey):
            return []
        known = message if isinstance(message, TransactionLogValue) else None
        of_state = ABOVE_FLOOR if self.floor <= offset < NEVER else WHOLE
        return [
            Found(offset, rule, text, of_state if is_of_state else ALWAYS)
            for rule, text, is_of_state in self.rules.replay(known)
        ]

    def finish(self) -> list[Found]:
        return []
