"""Produce: what is taken, with which offsets, and what is refused."""

from __future__ import annotations

import pytest

from kcoord.engine.producer_state import load_producers
from kcoord.protocol.errors import (
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_RECORD,
    INVALID_REQUIRED_ACKS,
    INVALID_TIMESTAMP,
    INVALID_TOPIC_EXCEPTION,
    MESSAGE_TOO_LARGE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RECORD_LIST_TOO_LARGE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.wire.compression import CODEC_GZIP, CODEC_LZ4, CODEC_NONE, CODEC_SNAPPY, CODEC_ZSTD
from kcoord.wire.record_batch import BatchBuilder, check_crc, decode_records
from tests.harness.batches import BASE_TIME_MS, batch
from tests.harness.present import present
from tests.harness.record_batches import parse_batches
from tests.unit.engine.plane import WALL_MS, Plane, offsets, topic_id, values


@pytest.fixture
def plane() -> Plane:
    plane = Plane()
    plane.create("t", 2)
    return plane


def compressed(codec: int, texts: list[bytes], producer_id: int = -1, sequence: int = -1) -> bytes:
    builder = BatchBuilder()
    for i, text in enumerate(texts):
        builder.append(BASE_TIME_MS + i, None, text, [("h", b"x")])
    epoch = 0 if producer_id >= 0 else -1
    return builder.build(0, -1, producer_id, epoch, sequence, codec=codec)


def test_offsets_are_given_in_order(plane: Plane) -> None:
    first = plane.produce("t", batch([b"a", b"b"]))
    assert (first.error_code, first.base_offset, first.log_append_time_ms, first.log_start_offset) == (
        NONE,
        0,
        -1,
        0,
    )
    assert plane.produce("t", batch([b"c"])).base_offset == 2
    assert plane.produce("t", batch([b"d"]), partition=1).base_offset == 0
    assert plane.produce("t", batch([b"e"]), acks=1).base_offset == 3
    assert plane.produce("t", batch([b"f"]), acks=0).base_offset == 4
    plane.commit()
    data = plane.fetch("t", 0)
    assert offsets(data.records) == [0, 1, 2, 3, 4]
    assert values(data.records) == [b"a", b"b", b"c", b"e", b"f"]


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD])
def test_batches_are_stored_as_they_came(plane: Plane, codec: int) -> None:
    sent = compressed(codec, [b"a" * 50, b"b" * 50])
    plane.put("t", batch([b"x"]))
    plane.put("t", sent)
    stored = plane.fetch("t", 1).records
    assert stored is not None
    # Base offset and leader epoch differ, everything else is what the producer sent.
    assert stored[8:12] == sent[8:12] and stored[16:] == sent[16:]
    assert parse_batches(stored)[0].base_offset == 1


def test_unknown_topics_and_partitions(plane: Plane) -> None:
    good = batch([b"a"])
    for answer in (
        plane.produce("nowhere", good),
        plane.produce("t", good, partition=2),
        plane.produce("t", good, partition=-1),
        plane.produce("t", good, partition=2, version=13),
    ):
        assert answer.error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert (answer.base_offset, answer.log_append_time_ms, answer.log_start_offset) == (-1, -1, -1)
        assert (answer.record_errors, answer.error_message) == ([], None)
    assert plane.produce("", good, version=13, uuid=topic_id(9)).error_code == UNKNOWN_TOPIC_ID
    assert plane.produce("t", good, version=13).error_code == NONE


def test_every_partition_is_answered_on_its_own(plane: Plane) -> None:
    good, bad = batch([b"a"]), batch([b"a"], break_crc=True)
    body = ProduceRequest(
        None,
        -1,
        5000,
        [
            TopicProduceData("t", partition_data=[PartitionProduceData(1, bad), PartitionProduceData(0, good)]),
            TopicProduceData("nowhere", partition_data=[PartitionProduceData(0, good)]),
        ],
    )
    response = present(plane.produce_handler.handle_produce(plane.request(0, 9, body), body, plane.now))
    found = [(t.name, p.index, p.error_code) for t in response.responses for p in t.partition_responses]
    assert found == [("t", 1, CORRUPT_MESSAGE), ("t", 0, NONE), ("nowhere", 0, UNKNOWN_TOPIC_OR_PARTITION)]
    plane.commit()
    assert values(plane.fetch("t", 0).records) == [b"a"]


@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_acks_that_mean_nothing(plane: Plane, acks: int) -> None:
    assert plane.produce("t", batch([b"a"]), acks=acks).error_code == INVALID_REQUIRED_ACKS
    assert plane.partition("t").log.end_offset == 0


def test_internal_topics_are_closed(plane: Plane) -> None:
    for name in ("__consumer_offsets", "__transaction_state"):
        plane.create(name)
        assert plane.produce(name, batch([b"a"])).error_code == INVALID_TOPIC_EXCEPTION


def test_bad_batches(plane: Plane) -> None:
    good = batch([b"a"])
    whole = {
        None: INVALID_RECORD,
        b"": INVALID_RECORD,
        good[:-1]: INVALID_RECORD,
        good + good: INVALID_RECORD,
        batch([b"a"], magic=1): INVALID_RECORD,
        batch([b"a"], magic=3): CORRUPT_MESSAGE,
        batch([b"a"], break_crc=True): CORRUPT_MESSAGE,
    }
    for records, error in whole.items():
        answer = plane.produce("t", records)
        assert (answer.error_code, answer.log_start_offset) == (error, -1)
    # What is found inside of a batch is told with the log's start.
    control = plane.produce("t", batch([b"a"], attributes=0x20))
    assert (control.error_code, control.log_start_offset, control.base_offset) == (INVALID_RECORD, 0, -1)
    shifted = b"\0" * 7 + b"\x05" + good[8:]
    assert plane.produce("t", shifted).error_code == INVALID_RECORD
    assert plane.partition("t").log.end_offset == 0


def test_a_torn_end_is_passed_over(plane: Plane) -> None:
    good = batch([b"a"])
    for rest in (good[:-1], good[:5], b"\0"):
        assert plane.produce("t", good + rest).error_code == NONE
    plane.commit()
    assert values(plane.fetch("t", 0).records) == [b"a"] * 3


def test_zstd_needs_version_7(plane: Plane) -> None:
    records = compressed(CODEC_ZSTD, [b"a"])
    assert plane.produce("t", records, version=6).error_code == UNSUPPORTED_COMPRESSION_TYPE
    assert plane.produce("t", records, version=7).error_code == NONE


def test_size_limits(plane: Plane) -> None:
    records = batch([b"x" * 300])
    plane.create("small", max_message_bytes=str(len(records) - 1))
    answer = plane.produce("small", records)
    assert (answer.error_code, answer.log_start_offset) == (MESSAGE_TOO_LARGE, -1)
    plane.configure("small", "max.message.bytes", str(len(records)))
    assert plane.produce("small", records).error_code == NONE
    plane.configure("small", "segment.bytes", str(len(records) - 1))
    assert plane.produce("small", records).error_code == RECORD_LIST_TOO_LARGE


def test_compacted_topics_need_keys(plane: Plane) -> None:
    plane.create("c", cleanup_policy="compact")
    answer = plane.produce("c", batch([b"a", b"b"]))
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (INVALID_RECORD, -1, 0)
    assert [e.batch_index for e in answer.record_errors] == [0, 1]
    assert answer.error_message
    assert plane.produce("c", batch([b"a"], key=b"k")).error_code == NONE


def test_timestamps_out_of_range(plane: Plane) -> None:
    hour = 3600_000
    assert plane.produce("t", batch([b"a"], base_time_ms=WALL_MS + hour)).error_code == NONE
    late = plane.produce("t", batch([b"a", b"b"], base_time_ms=WALL_MS + hour))
    assert (late.error_code, [e.batch_index for e in late.record_errors]) == (INVALID_TIMESTAMP, [1])
    plane.create("b", message_timestamp_before_max_ms="1000")
    assert plane.produce("b", batch([b"a"], base_time_ms=WALL_MS - 1000)).error_code == NONE
    assert plane.produce("b", batch([b"a"], base_time_ms=WALL_MS - 1001)).error_code == INVALID_TIMESTAMP


def test_timestamps_before_1970_are_stored(plane: Plane) -> None:
    times = [-86_400_000, -2]
    for time_ms in times:
        assert plane.produce("t", batch([b"a"], base_time_ms=time_ms)).error_code == NONE
    plane.commit()
    stored = plane.fetch("t", 0).records
    assert stored is not None
    headers = parse_batches(stored)
    assert [decode_records(stored, h.pos, h, 1000)[0].timestamp for h in headers] == times
    # The largest time of such a batch reads as "no time", as on a broker.
    assert [h.max_timestamp for h in headers] == [-1, -1]
    # A limit of the topic still applies.
    plane.create("b", message_timestamp_before_max_ms="1000")
    assert plane.produce("b", batch([b"a"], base_time_ms=-2)).error_code == INVALID_TIMESTAMP


def test_log_append_time(plane: Plane) -> None:
    plane.create("l", message_timestamp_type="LogAppendTime")
    answer = plane.produce("l", batch([b"a", b"b"], base_time_ms=5))
    assert (answer.error_code, answer.log_append_time_ms) == (NONE, WALL_MS)
    plane.commit()
    stored = plane.fetch("l", 0).records
    assert stored is not None
    header = parse_batches(stored)[0]
    assert check_crc(stored, 0, header)
    assert [r.timestamp for r in decode_records(stored, 0, header, 1000)] == [WALL_MS, WALL_MS]
    # A producer cannot claim it for itself. In a topic of create time, the claim is dropped.
    assert plane.produce("l", batch([b"a"], attributes=0x08)).error_code == INVALID_TIMESTAMP
    assert plane.produce("t", batch([b"a"], attributes=0x08)).error_code == NONE
    plane.commit()
    stored = plane.fetch("t", 0).records
    assert stored is not None
    assert parse_batches(stored)[0].attributes == 0


@pytest.mark.parametrize(
    ("name", "codec"),
    [("gzip", 1), ("snappy", 2), ("lz4", 3), ("zstd", 4), ("uncompressed", 0), ("producer", -1)],
)
@pytest.mark.parametrize("stamped", [False, True])
def test_a_topics_own_codec(name: str, codec: int, stamped: bool) -> None:
    plane = Plane()
    plane.create("t", compression_type=name)
    if stamped:
        plane.configure("t", "message.timestamp.type", "LogAppendTime")
    texts = [b"a" * 100, b"b" * 100]
    for sent in (CODEC_NONE, CODEC_GZIP):
        base = plane.put("t", compressed(sent, texts))
        stored = plane.fetch("t", base).records
        assert stored is not None
        header = parse_batches(stored)[0]
        assert header.codec == (sent if codec < 0 else codec)
        assert check_crc(stored, 0, header)
        records = decode_records(stored, 0, header, 1000)
        assert [(r.offset - base, r.value, r.headers) for r in records] == [
            (0, texts[0], [("h", b"x")]),
            (1, texts[1], [("h", b"x")]),
        ]
        times = [WALL_MS, WALL_MS] if stamped else [BASE_TIME_MS, BASE_TIME_MS + 1]
        assert [r.timestamp for r in records] == times


@pytest.mark.parametrize(("name", "expected"), [("gzip", 0x01), ("producer", 0x40)])
def test_a_batch_of_another_codec_has_only_attributes_of_producers(name: str, expected: int) -> None:
    """The cleaner's mark for a time of deletion stays in a batch that is stored as it came, as on a broker."""
    plane = Plane()
    plane.create("t", compression_type=name)
    base = plane.put("t", batch([b"a"], attributes=0x40))
    assert parse_batches(present(plane.fetch("t", base).records))[0].attributes == expected


def test_transactional_batches_have_no_transaction(plane: Plane) -> None:
    records = batch([b"a"], attributes=0x10, producer_id=5, producer_epoch=0, base_sequence=0)
    assert plane.produce("t", records).error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert plane.produce("t", records, transactional_id="x").error_code == INVALID_PRODUCER_ID_MAPPING
    # Without the flag the batch is an ordinary one, whatever the request says.
    assert plane.produce("t", batch([b"a"]), transactional_id="x").error_code == NONE


# Idempotent producers.


def numbered(sequence: int, count: int = 1, epoch: int = 0, producer_id: int = 7) -> bytes:
    texts = [b"%d" % (sequence + i) for i in range(count)]
    return batch(texts, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def send(plane: Plane, sequence: int, count: int = 1, epoch: int = 0) -> tuple[int, int]:
    answer = plane.produce("t", numbered(sequence, count, epoch))
    return answer.error_code, answer.base_offset


def test_repeated_batches_get_their_first_offsets(plane: Plane) -> None:
    assert send(plane, 0, 2) == (NONE, 0)
    assert send(plane, 2) == (NONE, 2)
    # Also before the first copy is durable; the log has it once.
    assert send(plane, 0, 2) == (NONE, 0)
    plane.commit()
    repeated = plane.produce("t", numbered(0, 2))
    assert (repeated.base_offset, repeated.log_append_time_ms, repeated.log_start_offset) == (
        0,
        BASE_TIME_MS + 1000,
        0,
    )
    assert plane.partition("t").log.end_offset == 3
    for sequence in range(3, 8):
        assert send(plane, sequence) == (NONE, sequence)
    for sequence in range(3, 8):
        assert send(plane, sequence) == (NONE, sequence)
    # Only the last five are known.
    assert send(plane, 2) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_gaps_and_old_epochs_are_refused(plane: Plane) -> None:
    send(plane, 0)
    gap = plane.produce("t", numbered(2))
    assert (gap.error_code, gap.base_offset, gap.log_start_offset) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1, 0)
    assert send(plane, 1, epoch=1) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert send(plane, 0, epoch=1) == (NONE, 1)
    assert send(plane, 1, epoch=0) == (INVALID_PRODUCER_EPOCH, -1)
    assert plane.partition("t").log.end_offset == 2
    # An unknown producer may begin anywhere: its first records may be gone. Partitions know nothing of each other.
    assert plane.produce("t", numbered(5), partition=1).base_offset == 0


def test_a_refused_batch_leaves_the_producer_as_it_was(plane: Plane) -> None:
    small = len(numbered(0))
    plane.configure("t", "max.message.bytes", str(small))
    assert send(plane, 0) == (NONE, 0)
    assert send(plane, 1, 5)[0] == MESSAGE_TOO_LARGE
    assert send(plane, 1) == (NONE, 1)


def test_producers_are_known_again_from_the_log(plane: Plane) -> None:
    for sequence in range(3):
        send(plane, sequence)
    plane.commit()
    producers = load_producers(plane.config, plane.partition("t").log, [])
    plane.partition("t").producers = producers
    assert send(plane, 1) == (NONE, 1)
    assert send(plane, 3) == (NONE, 3)
    assert send(plane, 5) == (OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


def test_a_recompressed_batch_keeps_its_producer(plane: Plane) -> None:
    plane.configure("t", "compression.type", "lz4")
    assert send(plane, 0, 2) == (NONE, 0)
    assert send(plane, 0, 2) == (NONE, 0)
    plane.commit()
    stored = plane.fetch("t", 0).records
    assert stored is not None
    header = parse_batches(stored)[0]
    assert (header.codec, header.producer_id, header.producer_epoch, header.base_sequence) == (
        CODEC_LZ4,
        7,
        0,
        0,
    )
