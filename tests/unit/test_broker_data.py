"""The logs of a real broker in tests/data/broker: kcoord reads there what Kafka's dumper and the clients say."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.reader import StoredBatch, find_partitions, read_batches
from kcoord.log.serde import decode_record, decode_transaction_record
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from kcoord.wire.record_batch import Record
from tests.data import known

DECOMPRESSED_MAX = 1 << 20
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = known.dumped_partitions()
COMMITTED = 1  # of the types of end markers
Place = tuple[str, str, int]  # group, topic, partition


def batches(name: str) -> list[StoredBatch]:
    found = []
    for batch in read_batches(str(known.LOGS / name)):
        assert isinstance(batch, StoredBatch), batch
        found.append(batch)
    return found


def records(name: str) -> Iterator[tuple[StoredBatch, Record]]:
    for batch in batches(name):
        for record in batch.records(DECOMPRESSED_MAX):
            yield batch, record


def dumped(name: str, kind: str) -> list[dict[str, Any]]:
    """Lines of one kind that the dump has of the partition's `.log` files."""
    found = []
    in_log = False
    for line in known.dump(name):
        if "file" in line:
            in_log = line["file"].endswith(".log")
        elif in_log and kind in line:
            found.append(line[kind])
    return found


def offsets_partitions() -> list[str]:
    return [name for name in PARTITIONS if name.startswith("__consumer_offsets-")]


def aborted_and_open(name: str) -> tuple[set[int], set[int], int]:
    """Offsets of aborted transactions and of open ones, and the last stable offset, as markers tell."""
    pending: dict[int, list[int]] = {}
    aborted: set[int] = set()
    end = 0
    for batch, record in records(name):
        producer = batch.header.producer_id
        end = record.offset + 1
        if batch.header.is_control:
            ended = pending.pop(producer, [])
            assert record.key is not None
            if record.key[3] != COMMITTED:
                aborted.update(ended)
        elif batch.header.is_transactional:
            pending.setdefault(producer, []).append(record.offset)
    still_open = {offset for offsets in pending.values() for offset in offsets}
    return aborted, still_open, min(still_open, default=end)


def test_every_partition_was_dumped() -> None:
    assert sorted(Path(found.path).name for found in find_partitions(str(known.LOGS))) == PARTITIONS


@pytest.mark.parametrize("name", PARTITIONS)
def test_batches_are_those_of_the_dump(name: str) -> None:
    ours = []
    for batch in batches(name):
        header = batch.header
        ours.append(
            {
                "baseOffset": header.base_offset,
                "lastOffset": header.last_offset,
                "count": header.count,
                "baseSequence": header.base_sequence,
                "lastSequence": header.last_sequence,
                "producerId": header.producer_id,
                "producerEpoch": header.producer_epoch,
                "partitionLeaderEpoch": header.leader_epoch,
                "isTransactional": header.is_transactional,
                "isControl": header.is_control,
                "position": batch.position,
                "size": header.size,
                "compresscodec": CODECS[header.codec],
                "crc": header.crc,
                ("CreateTime", "LogAppendTime")[header.timestamp_type]: header.max_timestamp,
            }
        )
    theirs = dumped(name, "batch")
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one == {field: other.get(field) for field in one}


@pytest.mark.parametrize("name", PARTITIONS)
def test_records_are_those_of_the_dump(name: str) -> None:
    ours = []
    for _, record in records(name):
        sizes = [-1 if part is None else len(part) for part in (record.key, record.value)]
        ours.append([record.offset, record.timestamp, *sizes])
    theirs = [
        [line[field] for field in ("offset", "time", "key_size", "value_size")] for line in dumped(name, "record")
    ]
    assert ours == theirs


@pytest.mark.parametrize("name", offsets_partitions())
def test_commits_are_those_of_the_dump(name: str) -> None:
    ours = []
    for batch, record in records(name):
        if batch.header.is_control or record.key is None:
            continue
        key, value = decode_record(record.key, record.value)
        if isinstance(key, OffsetCommitKey):
            place = [record.offset, key.group, key.topic, key.partition]
            if isinstance(value, OffsetCommitValue):
                place += [value.offset, value.leader_epoch, value.metadata, value.commit_timestamp]
            ours.append(place)
    theirs = []
    for line in dumped(name, "record"):
        if "marker" in line or str(line["key"]["type"]) not in ("0", "1"):
            continue
        about = line["key"]["data"]
        place = [line["offset"], about["group"], about["topic"], about["partition"]]
        if line["value"] is not None:
            data = line["value"]["data"]
            place += [data["offset"], data.get("leaderEpoch", -1), data["metadata"], data["commitTimestamp"]]
        theirs.append(place)
    assert ours == theirs
    assert ours


def test_commits_are_those_that_clients_made_in_their_order() -> None:
    known_places: dict[Place, list[tuple[int | None, str | None, str]]] = {}
    for entry in known.answers()["commits"]:
        place = (entry["group"], entry["topic"], entry["partition"])
        outcome = entry.get("outcome", "")
        known_places.setdefault(place, []).append((entry["offset"], entry["metadata"], outcome))
    read_places: dict[Place, list[tuple[int | None, str | None, str]]] = {}
    for name in offsets_partitions():
        aborted, still_open, _ = aborted_and_open(name)
        for batch, record in records(name):
            if batch.header.is_control or record.key is None:
                continue
            key, value = decode_record(record.key, record.value)
            if not isinstance(key, OffsetCommitKey) or key.group in known.answers()["committing_by_themselves"]:
                continue
            outcome = ""
            if batch.header.is_transactional:
                ended = "aborted" if record.offset in aborted else "committed"
                outcome = "open" if record.offset in still_open else ended
            shown = (value.offset, value.metadata) if isinstance(value, OffsetCommitValue) else (None, None)
            read_places.setdefault((key.group, key.topic, key.partition), []).append((*shown, outcome))
    assert read_places == known_places


def test_offsets_in_the_end_are_those_that_the_admin_client_saw() -> None:
    held: dict[str, dict[tuple[str, int], list[Any]]] = {}
    for name in offsets_partitions():
        pending: dict[int, list[tuple[OffsetCommitKey, Any]]] = {}
        for batch, record in records(name):
            assert record.key is not None
            if batch.header.is_control:
                ended = pending.pop(batch.header.producer_id, [])
                applied = ended if record.key[3] == COMMITTED else []
            else:
                key, value = decode_record(record.key, record.value)
                applied = []
                if isinstance(key, OffsetCommitKey):
                    if batch.header.is_transactional:
                        pending.setdefault(batch.header.producer_id, []).append((key, value))
                    else:
                        applied = [(key, value)]
            for key, value in applied:
                offsets = held.setdefault(key.group, {})
                offsets.pop((key.topic, key.partition), None)
                if value is not None:
                    shown = [key.topic, key.partition, value.offset, value.metadata, value.leader_epoch]
                    offsets[(key.topic, key.partition)] = shown
    ours = {group: sorted(offsets.values()) for group, offsets in held.items() if offsets}
    theirs = {group: offsets for group, offsets in known.answers()["committed"].items() if offsets}
    assert ours == theirs


def test_messages_are_those_that_consumers_saw() -> None:
    ours = []
    for place, ends in sorted(known.answers()["ends"].items()):
        topic, partition = place.rsplit("-", 1)
        aborted, _, last_stable = aborted_and_open(place)
        if batches(place):
            assert last_stable == ends["last_stable"]
            assert batches(place)[-1].header.last_offset + 1 == ends["high"]
        for batch, record in records(place):
            if batch.header.is_control or record.offset < ends["start"]:
                continue
            at = {
                "topic": topic,
                "partition": int(partition),
                "offset": record.offset,
                "timestamp": record.timestamp,
            }
            headers = [[name, in_base64(value)] for name, value in record.headers]
            at.update(timestamp_type=batch.header.timestamp_type, key=in_base64(record.key))
            at.update(value=in_base64(record.value), headers=headers)
            at["committed"] = record.offset < last_stable and record.offset not in aborted
            ours.append(at)
    theirs = sorted(known.messages(), key=lambda m: (f"{m['topic']}-{m['partition']}", m["offset"]))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one == other


def in_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def test_transactions_are_those_of_the_dump() -> None:
    statuses = {}
    for name in (name for name in PARTITIONS if name.startswith("__transaction_state-")):
        theirs = [[line["offset"], line["value"] is None] for line in dumped(name, "record")]
        assert [[record.offset, record.value is None] for _, record in records(name)] == theirs
        for _, record in records(name):
            assert record.key is not None
            key, value = decode_transaction_record(record.key, record.value)
            assert isinstance(key, TransactionLogKey)
            statuses[key.transactional_id] = (
                value.transaction_status if isinstance(value, TransactionLogValue) else None
            )
    # 1 ongoing, 4 committed, 5 aborted.
    assert statuses.pop("tx-open") == 1
    assert statuses.pop("tx-timed-out") == 5
    assert statuses.pop("tx-forgotten") is None
    assert set(statuses.values()) <= {4, 5}


def test_the_logs_hold_what_they_are_for() -> None:
    every = {name: batches(name) for name in PARTITIONS}
    codecs = {batch.header.codec for name, found in every.items() if name.startswith("codec-") for batch in found}
    assert codecs == {0, 1, 2, 3, 4}
    offsets = [batch for name in offsets_partitions() for batch in every[name]]
    assert {batch.header.codec for batch in offsets} == {0, 4}
    assert {batch.header.leader_epoch for batch in offsets} == {0, 2, 4}
    for name in ("orders-0", "payments-0", "compacted-0", *offsets_partitions()):
        segments = sorted((known.LOGS / name).glob("*.log"))
        assert len(segments) >= 2, name
    assert any(path.stat().st_size for path in (known.LOGS / "payments-0").glob("*.txnindex"))
    assert any(path.stat().st_size for path in (known.LOGS / "orders-0").glob("*.index"))
    compacted = every["compacted-0"]
    assert any(batch.header.count <= batch.header.last_offset - batch.header.base_offset for batch in compacted)
    assert known.answers()["ends"]["trimmed-0"]["start"] == 150
    types = set()
    for name in offsets_partitions():
        types |= {int(line["key"]["type"]) for line in dumped(name, "record") if "marker" not in line}
    # Commits, classic groups, and all that consumer groups have in 4.3: 3, 5 to 8, 16 (regular expressions).
    assert types >= {1, 2, 3, 5, 6, 7, 8, 16}
    assert {kind for kind, _ in known.answers()["groups"].values()} >= {"Classic", "Consumer", "Share"}
