"""State checkpoints: the state of a coordinator log, so that opening it takes time for live state and not for history.

A checkpoint at offset N has the newest record of every key below N, byte for byte, with its offset and timestamp: the
result of compacting the whole log at once. Loading replays the checkpoint and then the log from N on. A tombstone is
kept if its replay still has an effect on an existing group: that the group's metadata was deleted, or the offset of the
group's last record.

An offset from a transaction counts as soon as its commit marker lies below N. It is then written like any other, and it
has the offset of its record, not of the marker. An offset of a transaction that is open at N is written in a batch with
the producer's id and epoch, as in the log, and is pending after loading. Everything else of transactions is left out.

The next checkpoint is made from the last one and the log since then, and not from the state in memory. So another
process can make it, which blocks nothing and cannot write what is not in the log; and it has the timestamps and headers
of records, which the state in memory does not keep. The order matters: N is a durable end, and the files of the log are
synced before the checkpoint is written, so it is never ahead of what is durable.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.coordinator import Core
from kcoord.core.outcome import INFO, WARNING, Fact, LogId
from kcoord.engine.batch_walk import BatchWalk
from kcoord.engine.control_batch import NO_MARKER, marker_type
from kcoord.engine.group_events import GroupEvents
from kcoord.engine.loader import DECOMPRESSED_BYTES_MAX, LogLoader
from kcoord.log.errors import LogError, StorageError
from kcoord.log.partition_log import Extent, PartitionLog
from kcoord.log.sieve import SURVIVORS_MAX, Survivors
from kcoord.log.state_file import (
    TEMPORARY_SUFFIX,
    BadStateFile,
    StateFile,
    StateFileWriter,
    read_state_file,
    remove_state_file,
    state_path,
)
from kcoord.log.storage import Storage
from kcoord.log.transaction_index import COMMIT
from kcoord.wire.compression import DecompressionError
from kcoord.wire.native import is_compiled
from kcoord.wire.primitives import (
    BytesWriter,
    DecodeError,
    Reader,
    i64,
    read_i16_be,
    varint_size,
    write_varint,
)
from kcoord.wire.record_batch import (
    LOG_APPEND_TIME_FLAG,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    encode_batch,
    record_end,
    records_reader,
    skip_headers,
)

# A checkpoint is not worth a process for fewer records than these of a log.
RECORDS_MIN: Final = 100_000
# For some seconds after the last round, a checkpoint waits until a start after a crash would have to replay so many
# records, which takes about half a second, or to read so many bytes: of all logs together that have enough of them for
# a file. A round for fewer would only begin more often, and at the highest rates its process takes a part of a
# processor that clients could use.
REPLAY_RECORDS: Final = 250_000
REPLAY_RECORDS_COMPILED: Final = 4_000_000
REPLAY_BYTES: Final = 256 << 20
# At a stop a checkpoint is made when the log has grown this much less than it must while the server runs.
AT_STOP: Final = 8
BATCH_BYTES: Final = 1 << 20
DELTA_MAX: Final = 0x7FFFFFFE
TIMESTAMP_DELTA_MAX: Final = 0x3FFFFFFFFFFFFFFF

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2


class StateNotWritten(Exception):
    """The log cannot be made into a checkpoint now; the message has the reason."""


@final
class StatePlan:
    """What to write: the state of log `log_name` at `end_offset`, from the last checkpoint and `extents`.

    `from_offset` is the end of the last checkpoint, 0 if there is none to continue from.
    """

    def __init__(
        self, log_name: str, start_offset: int, from_offset: int, end_offset: int, extents: list[Extent]
    ) -> None:
        self.log_name = log_name
        self.start_offset = start_offset
        self.from_offset = from_offset
        self.end_offset = end_offset
        self.extents = extents

    def records(self) -> int:
        """How many records a start replays without it, at most."""
        return self.end_offset - max(self.from_offset, self.start_offset)

    def size_bytes(self) -> int:
        size = 0
        for extent in self.extents:
            size += extent.end - extent.start
        return size


@final
class LogState:
    """The state checkpoint of a log: its end offset and its number of records."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.end_offset = 0
        self.records = 0
        # Files that must be synced before a checkpoint may replace their records.
        self.events: GroupEvents | None = None
        self.partition = 0
        # After a failure the next attempt waits for as many records again.
        self.tried_at = 0
        self.records_min = RECORDS_MIN

    def load(self, core: Core, log_id: LogId, events: GroupEvents | None = None) -> str:
        """Replay the valid checkpoint, if there is one, and the log after it. Returns why one was not used, or "".

        Raises LogDamaged and OSError.
        """
        self.events = events
        self.partition = log_id.partition
        log = self.log
        loader = LogLoader(core, log_id, events)
        loader.format_1_end = log.format_1_end
        start = log.log_start_offset
        reason = ""
        found: StateFile | None = None
        try:
            found = self._find()
        except (BadStateFile, OSError) as error:
            # The log still has all of its records.
            reason = str(error)
        if found is not None:
            loader.load_extent(log.storage, found.extent, start)
            self.end_offset = self.tried_at = found.end_offset
            self.records = found.records
            start = max(start, found.end_offset)
        loader.load_log(log, start)
        return reason

    def _find(self) -> StateFile | None:
        log = self.log
        path = state_path(log.name)
        temporary = path + TEMPORARY_SUFFIX
        if log.storage.exists(temporary) and not log.storage.is_dir(temporary):
            log.storage.remove(temporary)
        found = read_state_file(log.storage, path)
        if found is not None and found.end_offset > log.end_offset:
            # The log will reach that offset again, with other records, so the checkpoint must be removed.
            try:
                remove_state_file(log.storage, path)
            except OSError as error:
                raise StorageError(f"{path} is ahead of its log and cannot be removed: {error}") from None
            raise BadStateFile(f"it goes to offset {found.end_offset}, the log to {log.end_offset}; removed")
        return found

    def plan(self, at_stop: bool) -> StatePlan | None:
        """What could be written now; None if too few records were added since the last time. Raises LogDamaged."""
        log = self.log
        end = log.durable_end
        if self.events is not None:
            end = min(end, self.events.projected_end(self.partition))
        start = log.log_start_offset
        wanted = max(self.records_min, self.records)
        if at_stop:
            wanted //= AT_STOP
        if end - max(self.tried_at, start) < wanted:
            return None
        try:
            extents = log.extents(max(self.end_offset, start), end)
        except LogError:
            # The next call is for the other logs.
            self.tried_at = end
            raise
        return StatePlan(log.name, start, self.end_offset, end, extents)


@final
class StateCheckpoints:
    """The state checkpoints of all coordinator logs: loads them, and decides what to write."""

    def __init__(self) -> None:
        # By the name of the log.
        self.logs: dict[str, LogState] = {}
        self.replay_records = REPLAY_RECORDS_COMPILED if is_compiled() else REPLAY_RECORDS
        self.replay_bytes = REPLAY_BYTES

    def load(self, core: Core, log_id: LogId, log: PartitionLog, events: GroupEvents | None = None) -> list[Fact]:
        """Replay a log, starting from its checkpoint if it is valid. Raises LogDamaged and OSError.

        `events` gets the records of groups, see LogLoader.
        """
        state = LogState(log)
        self.logs[log.name] = state
        reason = state.load(core, log_id, events)
        if not reason:
            return []
        fields: dict[str, object] = {"file": state_path(log.name), "reason": reason}
        return [Fact(WARNING, "state_checkpoint_not_used", fields)]

    def plans(self, at_stop: bool, may_wait: bool = False) -> list[StatePlan]:
        """The plans that are worth writing now; with `may_wait` none while a start would not replay much. Another
        process or thread passes them to `write_state`. Raises LogDamaged.
        """
        plans: list[StatePlan] = []
        records = 0
        size = 0
        for state in self.logs.values():
            plan = state.plan(at_stop)
            if plan is not None:
                plans.append(plan)
                records += plan.records()
                size += plan.size_bytes()
        if may_wait and records < self.replay_records and size < self.replay_bytes:
            return []
        for plan in plans:
            self.logs[plan.log_name].tried_at = plan.end_offset
        return plans

    def written(self, plan: StatePlan, records: int) -> Fact:
        state = self.logs[plan.log_name]
        state.end_offset = plan.end_offset
        state.records = records
        fields: dict[str, object] = {"log": plan.log_name, "offset": plan.end_offset, "records": records}
        return Fact(INFO, "state_checkpoint_written", fields)

    def failed(self, plan: StatePlan, reason: str) -> Fact:
        """Nothing depends on it. The next one is made from the log alone, after as many records again."""
        self.logs[plan.log_name].end_offset = 0
        fields: dict[str, object] = {"log": plan.log_name, "offset": plan.end_offset, "reason": reason}
        return Fact(WARNING, "state_checkpoint_not_written", fields)


def write_state(storage: Storage, plan: StatePlan) -> int:
    """Write a checkpoint. Returns the number of its records. The old one stays until the new one is durable.

    Raises StateNotWritten, LogDamaged, BadStateFile and OSError.
    """
    extents: list[Extent] = []
    path = state_path(plan.log_name)
    if plan.from_offset > 0:
        last = read_state_file(storage, path)
        if last is None or last.end_offset != plan.from_offset:
            raise StateNotWritten(f"the checkpoint at offset {plan.from_offset} no longer exists")
        extents.append(last.extent)
    for extent in plan.extents:
        # With `log.sync = os` nothing has synced these files before.
        file = storage.open(extent.path)
        try:
            file.datasync()
        finally:
            file.close()
    # The file must be there before the log is read: it tells the cleaner that a first checkpoint is being written.
    writer = StateFileWriter(storage, path)
    try:
        survey = _Survey()
        _Pass(storage, plan, extents, survey, None).run()
        survey.conclude()
        copy = _Copy(writer)
        _Pass(storage, plan, extents, survey, copy).run()
        copy.close_batch()
        writer.finish(copy.records, plan.end_offset, copy.has_transactions)
    except BaseException:
        writer.abandon()
        raise
    return copy.records


@final
class _Key:
    """A key and its newest record: the offset, and whether it is a tombstone."""

    def __init__(self, key: bytes, offset: i64, is_tombstone: bool) -> None:
        self.key = key
        self.offset: i64 = offset
        self.is_tombstone = is_tombstone
        # The key that came after this one the last time. Most clients commit the same partitions again, in one order.
        self.following: _Key | None = None


@final
class _Survey:
    """The newest record of each key, and the state of each group."""

    def __init__(self) -> None:
        self.keys: dict[bytes, _Key] = {}
        # The key of the last record that counted at once.
        self.last: _Key | None = None
        # For groups with a tombstone: the offset of the group's last record, and whether it has records other than
        # tombstones.
        self.group_end: dict[bytes, int] = {}
        self.is_alive: dict[bytes, bool] = {}
        # The offsets of records of open transactions: by producer id and key, and their producers by key.
        self.pending: dict[int, dict[bytes, int]] = {}
        self.producers: dict[bytes, dict[int, bool]] = {}

    def see(self, key: bytes, has_value: bool, offset: int) -> None:
        """A record that counts at once."""
        found = self._note(key, offset, not has_value)
        if self.last is not None:
            self.last.following = found
        self.last = found
        if not has_value:
            group = group_of(key)
            if group:
                self.group_end[group] = offset
            producers = self.producers.pop(key, None)
            if producers is not None:
                for producer_id in producers:
                    del self.pending[producer_id][key]

    def sees_again(self, key: bytes, offset: i64) -> bool:
        """The same for a record with a value, if its key is the expected one: that takes no lookup. Otherwise False."""
        last = self.last
        if last is None:
            return False
        expected = last.following
        if expected is None or expected.key != key:
            return False
        expected.offset = offset
        expected.is_tombstone = False
        self.last = expected
        return True

    def _note(self, key: bytes, offset: i64, is_tombstone: bool) -> _Key:
        found = self.keys.get(key)
        if found is None:
            found = self.keys[key] = _Key(key, offset, is_tombstone)
        else:
            found.offset = offset
            found.is_tombstone = is_tombstone
        return found

    def newest_of(self, key: bytes) -> i64:
        """The offset of the key's newest record; -1 if it has none."""
        found = self.keys.get(key)
        return -1 if found is None else found.offset

    def see_pending(self, key: bytes, offset: int, producer_id: int) -> None:
        """An offset that a transaction commits."""
        of_producer = self.pending.get(producer_id)
        if of_producer is None:
            of_producer = {}
            self.pending[producer_id] = of_producer
        of_producer[key] = offset
        producers = self.producers.get(key)
        if producers is None:
            producers = {}
            self.producers[key] = producers
        producers[producer_id] = True

    def end_transaction(self, producer_id: int, is_commit: bool) -> None:
        """The marker of a transaction. Of two records for one key the one with the higher offset counts."""
        for key, offset in self.pending.pop(producer_id, {}).items():
            producers = self.producers[key]
            del producers[producer_id]
            if not producers:
                del self.producers[key]
            if is_commit and offset > self.newest_of(key):
                self._note(key, offset, False)

    def conclude(self) -> None:
        """All records were visited: determine the groups that exist, and those that end with a tombstone."""
        ends = self.group_end
        for found in self.keys.values():
            # Nothing is expected any more, and no key refers to itself in a circle.
            found.following = None
            if found.is_tombstone:
                continue
            group = group_of(found.key)
            end = ends.get(group)
            if end is not None:
                self.is_alive[group] = True
                if found.offset > end:
                    ends[group] = int(found.offset)

    def survivors(self) -> Survivors | None:
        """The offsets of all records that may stay; None if they are too many to sort."""
        if len(self.keys) > SURVIVORS_MAX:
            return None
        offsets: list[int] = [int(found.offset) for found in self.keys.values()]
        for of_producer in self.pending.values():
            offsets.extend(of_producer.values())
        offsets.sort()
        return Survivors(offsets)

    def is_pending(self, key: bytes, offset: int, producer_id: int) -> bool:
        """Whether the record belongs to a transaction that is still open, and is its last one for the key."""
        of_producer = self.pending.get(producer_id)
        return of_producer is not None and of_producer.get(key, -1) == offset

    def keeps(self, key: bytes, has_value: bool, offset: int) -> bool:
        if self.newest_of(key) != offset:
            return False
        if has_value:
            return True
        group = group_of(key)
        if group not in self.is_alive:
            return False
        return read_i16_be(key, 0) == GROUP_METADATA or self.group_end[group] == offset


def group_of(key: bytes) -> bytes:
    """The group id in the key of an offset or a group, with its length prefix; empty for other keys."""
    if len(key) < 4:
        return b""
    record_type = read_i16_be(key, 0)
    if record_type < LEGACY_OFFSET_COMMIT or record_type > GROUP_METADATA:
        return b""
    size: i64 = i64(read_i16_be(key, 2))
    if size < 0 or size > len(key) - 4:
        return b""
    return key[2 : 4 + size]


def same_key(key: bytes) -> bytes:
    """The key under which the record is remembered: both formats of an offset commit's key map to one."""
    if len(key) > 2 and read_i16_be(key, 0) == LEGACY_OFFSET_COMMIT:
        return b"\x00\x01" + key[2:]
    return key


def is_offset(identity: bytes) -> bool:
    """Whether this is the key of a committed offset, as `same_key` returns it."""
    return len(identity) > 2 and read_i16_be(identity, 0) == OFFSET_COMMIT


@final
class _Pass:
    """One walk over all relevant records: first for `survey`, then for `copy` to write those that the survey keeps."""

    def __init__(
        self, storage: Storage, plan: StatePlan, last: list[Extent], survey: _Survey, copy: _Copy | None
    ) -> None:
        self.storage = storage
        self.plan = plan
        self.last = last
        self.survey = survey
        self.copy = copy
        # The second walk passes over batches of which nothing stays.
        self.survivors = survey.survivors() if copy is not None else None

    def run(self) -> None:
        plan = self.plan
        for extent in self.last:
            self._walk(extent, plan.start_offset, plan.from_offset)
        for extent in plan.extents:
            self._walk(extent, max(plan.from_offset, plan.start_offset), plan.end_offset)

    def _walk(self, extent: Extent, from_offset: i64, upto_offset: i64) -> None:
        survivors = self.survivors
        walk = BatchWalk(self.storage, extent)
        try:
            while True:
                header = walk.advance()
                if header is None or header.base_offset >= upto_offset:
                    return
                if header.last_offset < from_offset:
                    continue
                if survivors is not None and survivors.knows_none(header.base_offset, header.last_offset):
                    continue
                try:
                    if header.is_control:
                        self._control(walk.buf, header)
                    else:
                        self._records(walk.buf, header, from_offset)
                except (DecodeError, DecompressionError) as error:
                    raise walk.damaged_here(header, str(error)) from None
        finally:
            walk.close()

    def _control(self, data: bytes, header: BatchHeader) -> None:
        if self.copy is None:
            kind = marker_type(data, header)
            if kind != NO_MARKER:
                self.survey.end_transaction(header.producer_id, kind == COMMIT)

    def _records(self, data: bytes, header: BatchHeader, from_offset: i64) -> None:
        r = records_reader(data, header.pos, header, DECOMPRESSED_BYTES_MAX)
        buf = r.buf
        survey = self.survey
        copy = self.copy
        producer_id = header.producer_id
        append_time = (header.attributes & LOG_APPEND_TIME_FLAG) != 0
        left = header.count
        while left > 0:
            left -= 1
            end = record_end(r)
            timestamp = header.base_timestamp + r.varlong()
            if append_time:
                timestamp = header.max_timestamp
            offset = header.base_offset + r.varint()
            rest: i64 = r.pos
            key = _take_field(r)
            has_value = _skip_field(r)
            skip_headers(r)
            if r.pos != end:
                raise DecodeError("record does not match its size")
            if offset < from_offset or key is None:
                continue
            if copy is None and producer_id < 0 and has_value and survey.sees_again(key, offset):
                continue
            identity = same_key(key)
            if copy is None:
                if producer_id >= 0 and has_value and is_offset(identity):
                    survey.see_pending(identity, offset, producer_id)
                else:
                    survey.see(identity, has_value, offset)
            elif survey.keeps(identity, has_value, offset):
                copy.add(offset, timestamp, buf[rest:end], header.leader_epoch)
            elif producer_id >= 0 and survey.is_pending(identity, offset, producer_id):
                epoch: i64 = header.producer_epoch
                copy.add(offset, timestamp, buf[rest:end], header.leader_epoch, producer_id, epoch)


def _take_field(r: Reader) -> bytes | None:
    size = r.varint()
    if size < 0:
        return None
    pos = r.take(size)
    return r.buf[pos : pos + size]


def _skip_field(r: Reader) -> bool:
    size = r.varint()
    if size > 0:
        r.take(size)
    return size >= 0


@final
class _Copy:
    """Writes records into batches, with their offsets and timestamps."""

    def __init__(self, writer: StateFileWriter) -> None:
        self.writer = writer
        self.records = 0
        self.body = BytesWriter()
        self.count: i64 = 0
        self.base_offset: i64 = 0
        self.last_offset: i64 = 0
        self.base_timestamp: i64 = NO_TIMESTAMP
        self.max_timestamp: i64 = NO_TIMESTAMP
        self.leader_epoch: i64 = 0
        # The transaction that the open batch belongs to, and whether any batch belonged to one.
        self.producer_id: i64 = NO_PRODUCER_ID
        self.producer_epoch: i64 = NO_PRODUCER_EPOCH
        self.has_transactions = False

    def add(
        self,
        offset: i64,
        timestamp: i64,
        rest: bytes,
        leader_epoch: i64,
        producer_id: i64 = NO_PRODUCER_ID,
        producer_epoch: i64 = NO_PRODUCER_EPOCH,
    ) -> None:
        """Add a record; `rest` is everything from its key on. With a producer it belongs to an open transaction."""
        if self.count > 0 and (
            len(self.body) > BATCH_BYTES
            or producer_id != self.producer_id
            or producer_epoch != self.producer_epoch
            or leader_epoch != self.leader_epoch
            or offset - self.base_offset > DELTA_MAX
            or timestamp - self.base_timestamp > TIMESTAMP_DELTA_MAX
            or self.base_timestamp - timestamp > TIMESTAMP_DELTA_MAX
        ):
            self.close_batch()
        if self.count == 0:
            self.base_offset = offset
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
            self.leader_epoch = leader_epoch
            self.producer_id = producer_id
            self.producer_epoch = producer_epoch
        offset_delta = offset - self.base_offset
        timestamp_delta = timestamp - self.base_timestamp
        size: i64 = len(rest)
        w = self.body
        write_varint(w, 1 + varint_size(timestamp_delta) + varint_size(offset_delta) + size)
        w.append(0)
        write_varint(w, timestamp_delta)
        write_varint(w, offset_delta)
        w.write(rest)
        self.count += 1
        self.records += 1
        self.last_offset = offset
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp

    def close_batch(self) -> None:
        if self.count == 0:
            return
        is_transactional = self.producer_id >= 0
        self.has_transactions = self.has_transactions or is_transactional
        batch = encode_batch(
            self.base_offset,
            self.leader_epoch,
            TRANSACTIONAL_FLAG if is_transactional else 0,
            self.last_offset - self.base_offset,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            NO_SEQUENCE,
            self.count,
            self.body.getvalue(),
        )
        self.writer.append(batch)
        self.body = BytesWriter()
        self.count = 0
