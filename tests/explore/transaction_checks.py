"""What the logs say about the transactions of the model, and what readers are shown."""

from __future__ import annotations

from typing import Any, Final

from kcoord.core.outcome import OFFSETS_TOPIC, Now
from kcoord.engine.engine import Engine
from kcoord.log.serde import decode_record
from kcoord.log.transaction_index import marker_type
from kcoord.protocol import apis
from kcoord.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.wire.record_batch import Record, decode_records, parse_header
from tests.explore.transaction_client import PARTITIONS, TOPIC, Txn
from tests.harness.engine import decode_answer, read_answers, request_frame, take_output
from tests.harness.log import batches_of
from tests.harness.record_batches import parse_batches

COMMITTED: Final = 1
RECORD_BYTES_MAX: Final = 1 << 20


class Verdict:
    """How transactions ended in the logs: by number, in every partition that they wrote to."""

    def __init__(self) -> None:
        self.ends: dict[int, dict[str, bool]] = {}
        self.values: dict[str, list[tuple[int, bytes]]] = {}
        self.stable: dict[str, int] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.problems: list[str] = []

    def note(self, number: int, where: str, is_commit: bool) -> None:
        """A crash may abort the first copy of a write that was not answered. Its second copy counts."""
        known = self.ends.setdefault(number, {})
        known[where] = known.get(where, False) or is_commit


class PartitionReader:
    """Reads one log from its batches alone."""

    def __init__(self, where: str, verdict: Verdict) -> None:
        self.where = where
        self.verdict = verdict
        # By producer: first offset and the records of its open transaction.
        self.open: dict[int, tuple[int, list[tuple[int, Record]]]] = {}
        self.committed: list[tuple[int, Record]] = []

    def read(self, engine: Engine, topic: str, partition: int) -> None:
        log = engine.directory.get(topic, partition)
        if log is None:
            return
        for position, data in batches_of(log, 0, log.end_offset):
            header = parse_header(data, position)
            if header.is_control:
                _, records = self.open.pop(header.producer_id, (0, []))
                self._end(records, marker_type(data, header) == 1)
            elif header.is_transactional:
                found = decode_records(data, position, header, RECORD_BYTES_MAX)
                entry = self.open.setdefault(header.producer_id, (header.base_offset, []))
                entry[1].extend((number_of(topic, record), record) for record in found)
        self.verdict.stable[self.where] = min((first for first, _ in self.open.values()), default=log.end_offset)

    def _end(self, records: list[tuple[int, Record]], is_commit: bool) -> None:
        numbers = {number for number, _ in records}
        if len(numbers) > 1:
            self.verdict.problems.append(f"one marker in {self.where} ends the transactions {sorted(numbers)}")
        for number in numbers:
            self.verdict.note(number, self.where, is_commit)
        if is_commit:
            self.committed.extend(records)


def number_of(topic: str, record: Record) -> int:
    """The transaction that a record belongs to."""
    if topic == OFFSETS_TOPIC:
        _, value = decode_record(record.key or b"", record.value)
        assert isinstance(value, OffsetCommitValue)
        return value.offset
    return int((record.value or b"").split(b"/")[0])


def read_logs(engine: Engine) -> Verdict:
    verdict = Verdict()
    for partition in range(PARTITIONS):
        reader = PartitionReader(f"{TOPIC}-{partition}", verdict)
        reader.read(engine, TOPIC, partition)
        committed = sorted((record.offset, record.value or b"") for _, record in reader.committed)
        verdict.values[reader.where] = committed
    for log_id in engine.core.offsets_logs():
        reader = PartitionReader(f"{log_id.topic}-{log_id.partition}", verdict)
        reader.read(engine, log_id.topic, log_id.partition)
        # A newer record of the same key counts, by its position in the log.
        for number, record in sorted(reader.committed, key=lambda one: one[1].offset):
            key, _ = decode_record(record.key or b"", record.value)
            assert isinstance(key, OffsetCommitKey)
            verdict.offsets[key.group, key.partition] = number
    return verdict


def broken(verdict: Verdict, txns: dict[int, Txn], is_over: bool) -> list[str]:
    """What disagrees with what clients were told. `is_over`: every transaction has ended."""
    problems = list(verdict.problems)
    found = {value for values in verdict.values.values() for _, value in values}
    for where, values in verdict.values.items():
        only = [value for _offset, value in values]
        if len(set(only)) != len(only):
            problems.append(f"{where} has a value twice")
    for txn in txns.values():
        ends = verdict.ends.get(txn.number, {})
        if is_over and len(set(ends.values())) > 1:
            problems.append(f"{txn} is torn: {ends}")
        if txn.told is not None:
            wrong = [where for where, is_commit in ends.items() if is_commit != txn.told]
            problems += [f"{txn} ended otherwise in {where}" for where in wrong]
        if not txn.commit_asked and any(ends.values()):
            problems.append(f"{txn} is committed, and nobody asked for that")
        written = [value for of_partition in txn.values.values() for value in of_partition]
        is_committed = txn.told if txn.told is not None else any(ends.values())
        if is_committed and (txn.told or is_over):
            problems += [f"{txn} lost {value.decode()}" for value in written if value not in found]
            group = txn.transactional_id
            for partition in txn.offsets:
                if verdict.offsets.get((group, partition), -1) < txn.number:
                    problems.append(f"{txn} lost the offset of partition {partition}")
    return problems


class CommittedReader:
    """A consumer with isolation level READ_COMMITTED that is never told anything twice or out of order."""

    def __init__(self) -> None:
        self.positions = [0] * PARTITIONS
        self.seen: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]

    def poll(self, engine: Engine, now: Now) -> None:
        for partition in range(PARTITIONS):
            values, self.positions[partition] = fetch_committed(engine, partition, self.positions[partition], now)
            self.seen[partition] += values


def fetch_committed(engine: Engine, partition: int, offset: int, now: Now) -> tuple[list[tuple[int, bytes]], int]:
    """What a consumer finds up to the last stable offset: values with their offsets, and where it goes on."""
    values: list[tuple[int, bytes]] = []
    while True:
        found, end = fetch_once(engine, partition, offset, now)
        values += found
        if end == offset:
            return values, end
        offset = end


def fetch_once(engine: Engine, partition: int, offset: int, now: Now) -> tuple[list[tuple[int, bytes]], int]:
    """What a consumer makes of one answer."""
    ask_for = [FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)]
    body = FetchRequest(max_wait_ms=0, isolation_level=COMMITTED, topics=[FetchTopic(TOPIC, partitions=ask_for)])
    answer = ask_now(engine, apis.FETCH, 11, body, now)
    data = answer.responses[0].partitions[0]
    assert data.error_code == 0, data.error_code
    aborted = sorted((one.first_offset, one.producer_id) for one in data.aborted_transactions or [])
    skipped: set[int] = set()
    values: list[tuple[int, bytes]] = []
    records = data.records or b""
    for header in parse_batches(records):
        while aborted and aborted[0][0] <= header.last_offset:
            skipped.add(aborted.pop(0)[1])
        if header.is_control:
            skipped.discard(header.producer_id)
        elif header.producer_id not in skipped and header.last_offset >= offset:
            for record in decode_records(records, header.pos, header, RECORD_BYTES_MAX):
                values.append((record.offset, record.value or b""))
        offset = header.last_offset + 1
    return values, offset


def ask_now(engine: Engine, api_key: int, version: int, body: Any, now: Now) -> Any:
    """A request that is answered at once, in the middle of whatever else goes on."""
    session = engine.open_session("127.0.0.1", "127.0.0.1", 9092)
    engine.receive(session, request_frame(api_key, version, body), now)
    engine.outbox.release()
    answers = read_answers(take_output(session))
    engine.close_session(session, now)
    assert len(answers) == 1, (session.close_reason, len(answers))
    return decode_answer(api_key, version, answers[0][1])
