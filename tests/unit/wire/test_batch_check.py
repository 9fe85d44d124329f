"""A check of a produced batch in steps: the same verdict as at once, and never more work than its budget."""

from __future__ import annotations

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.wire.compression import BLOCK_CHARGE_BYTES, compress
from kcoord.wire.produced_batch import (
    CHECKED,
    CODEC_OF_PRODUCER,
    ELEMENTS_PER_BATCH,
    OVER_BUDGET,
    UNFINISHED,
    BatchCheck,
    CheckBudget,
    ProducedBatch,
    ProduceLimits,
)
from kcoord.wire.record_batch import (
    LOG_APPEND_TIME,
    BatchBuilder,
    check_crc,
    decode_records,
    encode_batch,
    parse_header,
)

NOW = 1_700_000_000_000
MIB = 1024 * 1024


def build(count: int, codec: int = 0, headers: int = 0, key: bytes | None = b"k", late_ms: int = 0) -> bytes:
    b = BatchBuilder()
    for i in range(count):
        b.append(NOW + (late_ms if i == count // 2 else 0), key, b"v", [("h", b"x")] * headers)
    return b.build(0, 0, codec=codec)


def at_once(check: BatchCheck) -> ProducedBatch:
    assert check.step(CheckBudget()) == CHECKED
    assert check.result is not None
    return check.result


def facts(result: ProducedBatch) -> tuple[object, ...]:
    return result.error_code, result.message, result.batch, result.record_errors


@given(
    count=st.integers(1, 30),
    codec=st.integers(0, 4),
    headers=st.integers(0, 5),
    key=st.none() | st.just(b"k"),
    late_ms=st.sampled_from([0, -5, 10**9]),
    damage=st.none() | st.tuples(st.integers(0, 10**6), st.integers(1, 255)),
    compacted=st.booleans(),
    stamped=st.booleans(),
    target=st.integers(-1, 4),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=5),
)
def test_steps_come_to_the_same_verdict(
    count: int, codec: int, headers: int, key: bytes | None, late_ms: int, damage: tuple[int, int] | None,
    compacted: bool, stamped: bool, target: int, steps: list[int],
) -> None:  # fmt: skip
    records = build(count, codec, headers, key, late_ms)
    if damage is not None:
        body = bytearray(records[61:])
        body[damage[0] % len(body)] ^= damage[1]
        h = parse_header(records)
        records = encode_batch(
            0, 0, codec, count - 1, h.base_timestamp, h.max_timestamp, -1, -1, -1, count, bytes(body)
        )
    limits = ProduceLimits(compacted=compacted, timestamp_type=int(stamped))
    whole = at_once(BatchCheck(records, 12, NOW, limits, target))
    check = BatchCheck(records, 12, NOW, limits, target)
    turns = 0
    while True:
        # First a turn's budget that is too small for it, then ever more.
        size = min(100 << turns, 1 << 40) - 100
        found = check.step(CheckBudget(size, steps[turns % len(steps)], size))
        turns += 1
        if found == CHECKED:
            break
        assert turns < 1000
    assert check.result is not None and facts(check.result) == facts(whole)
    if whole.error_code == 0:
        header = parse_header(whole.batch)
        assert check_crc(whole.batch, 0, header)
        assert header.codec == (codec if target == CODEC_OF_PRODUCER else target)
        assert len(decode_records(whole.batch, 0, header, MIB)) == count


def test_a_walk_stops_where_its_budget_ends() -> None:
    check = BatchCheck(build(1000), 12, NOW, ProduceLimits())
    budget = CheckBudget(elements=ELEMENTS_PER_BATCH + 100)
    assert check.step(budget) == UNFINISHED
    assert (budget.elements, check.index) == (0, 100)
    assert check.step(CheckBudget(elements=0)) == UNFINISHED
    assert check.index == 100
    assert check.step(CheckBudget(elements=900)) == CHECKED


def test_headers_of_one_record_are_elements_too() -> None:
    check = BatchCheck(build(1, headers=5000), 12, NOW, ProduceLimits())
    steps = 0
    while check.step(CheckBudget(elements=100)) == UNFINISHED:
        steps += 1
    assert steps >= 50
    assert check.result is not None and check.result.error_code == 0


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_what_is_too_large_for_a_budget_is_not_decompressed(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    b = BatchBuilder()
    b.append(NOW, b"k", bytes(4 * MIB))
    bomb = b.build(0, 0, codec=codec)
    check = BatchCheck(bomb, 12, NOW, ProduceLimits(max_batch_bytes=8 * MIB))
    budget = CheckBudget(content_bytes=MIB)
    assert check.step(budget) == OVER_BUDGET
    assert check.result is None and check.reader is None and budget.content_bytes == MIB
    budget = CheckBudget(content_bytes=5 * MIB)
    assert check.step(budget) == CHECKED
    assert MIB - 1000 < budget.content_bytes < MIB
    # What one batch may become is a verdict, whatever the budget.
    small = BatchCheck(bomb, 12, NOW, ProduceLimits(max_batch_bytes=8 * MIB, max_decompressed_bytes=MIB))
    assert small.step(CheckBudget()) == CHECKED
    assert small.result is not None and small.result.error_code == 10


def test_blocks_are_charged_before_a_decoder_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + bytes(3) * 10_000 + b"\x01\x00\x00"
    records = encode_batch(0, 0, 4, 0, NOW, NOW, -1, -1, -1, 1, frame)

    def decoder(data: bytes, view: memoryview) -> int:
        raise AssertionError("not to be called")

    with monkeypatch.context() as patch:
        patch.setattr(cramjam.zstd, "decompress_into", decoder)
        check = BatchCheck(records, 12, NOW, ProduceLimits())
        assert check.step(CheckBudget(10_000 * BLOCK_CHARGE_BYTES)) == OVER_BUDGET
    assert check.step(CheckBudget()) == CHECKED


def test_compressing_again_has_its_budget() -> None:
    check = BatchCheck(build(1000), 12, NOW, ProduceLimits(timestamp_type=LOG_APPEND_TIME), 1)
    assert check.step(CheckBudget(recompressed_bytes=1000)) == OVER_BUDGET
    assert check.is_walked
    assert check.step(CheckBudget()) == CHECKED
    assert check.result is not None and check.result.header is not None
    assert check.result.header.max_timestamp == NOW and check.reader is None


def test_fields_that_the_broker_ignores_survive_another_codec() -> None:
    h = parse_header(build(2))
    body = compress(2, build(2)[61:])
    odd = bytearray(encode_batch(0, 0, 2, 1, h.base_timestamp, NOW, -1, -1, -1, 2, body))
    # A leader epoch is the broker's to set, and clients write anything there.
    odd[12:16] = b"\x80\x00\x00\x05"
    result = at_once(BatchCheck(bytes(odd), 12, NOW, ProduceLimits(), 4))
    assert result.error_code == 0
    assert [r.value for r in decode_records(result.batch, 0, parse_header(result.batch), 1000)] == [b"v", b"v"]
