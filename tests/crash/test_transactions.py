"""A crash anywhere in a log with transactions: readers see what its batches say, whatever became of the indexes."""

from __future__ import annotations

import random

import pytest

from kcoord.log.storage import Storage
from kcoord.log.transaction_index import marker_type
from kcoord.wire.record_batch import decode_records, parse_header
from tests.crash.states import Moment, digest, subsets
from tests.harness.faulty_storage import FaultyStorage
from tests.harness.log import batches_of
from tests.unit.engine.test_transaction_recovery import Rig

STATES_PER_MOMENT = 6


class Recovered(Rig):
    """An engine over what a crash left."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.has_gaps = False
        self.open()

    def from_batches(self) -> tuple[int, dict[int, bytes]]:
        """The last stable offset and the committed records below it, from the batches alone."""
        opened: dict[int, tuple[int, dict[int, bytes]]] = {}
        found: dict[int, bytes] = {}
        log = self.tp.log
        for position, data in batches_of(log, 0, log.end_offset):
            header = parse_header(data, position)
            records = decode_records(data, position, header, 1 << 20)
            values = {record.offset: record.value or b"" for record in records}
            if header.is_control:
                _, pending = opened.pop(header.producer_id, (0, {}))
                found.update(pending if marker_type(data, header) == 1 else {})
            elif header.is_transactional:
                opened.setdefault(header.producer_id, (header.base_offset, {}))[1].update(values)
            else:
                found.update(values)
        stable = min((first for first, _ in opened.values()), default=log.end_offset)
        return stable, {offset: value for offset, value in found.items() if offset < stable}


def record(seed: int) -> list[Moment]:
    """What the disk may hold at each moment, with the end offset that was acknowledged by then."""
    rng = random.Random(seed)
    storage = FaultyStorage()
    rig = Rig(storage)
    moments: list[Moment] = []
    acknowledged = 0

    def note(kind: str, path: str) -> None:
        moments.append(Moment(storage.snapshot(), acknowledged, f"{kind} {path}"))

    storage.on_operation = note
    for number in range(40):
        producer_id = rng.randint(1, 3)
        if number in (13, 27):
            rig.engine.stop()
            rig.open()
        elif rng.random() < 0.6:
            rig.write(producer_id)
        else:
            rig.end(producer_id, rng.random() < 0.4, rng.random() < 0.5)
        acknowledged = rig.tp.log.end_offset
    storage.on_operation = None
    assert len(rig.tp.log.segments) > 3
    return moments


@pytest.mark.parametrize("seed", range(3))
def test_crashes_of_a_log_with_transactions(seed: int) -> None:
    rng = random.Random(seed)
    moments = record(seed)
    # Those around indexes and snapshots, and some of the others.
    about = [one for one in moments if one.next_operation.endswith(("txnindex", ".snapshot"))]
    assert len(about) > 8
    checked: set[bytes] = set()
    for moment in about + rng.sample(moments, min(40, len(moments))):
        states = list(subsets(moment.snapshot, rng))
        for kept in rng.sample(states, min(STATES_PER_MOMENT, len(states))):
            left = moment.snapshot.crash(kept)
            key = digest(left)
            if key in checked:
                continue
            checked.add(key)
            rig = Recovered(left)
            assert rig.tp.log.end_offset >= moment.events, moment.next_operation
            stable, found = rig.from_batches()
            assert rig.tp.last_stable_offset == stable, moment.next_operation
            assert rig.consume(300) == found, moment.next_operation
            rig.engine.stop()
            assert Recovered(left).consume(1 << 20) == found, moment.next_operation
    assert len(checked) > 20


def test_a_flipped_bit_in_a_producer_snapshot_changes_nothing() -> None:
    rng = random.Random(3)
    storage = FaultyStorage()
    rig = Rig(storage)
    for _ in range(45):
        producer_id = rng.randint(1, 3)
        if rng.random() < 0.6:
            rig.write(producer_id)
        else:
            rig.end(producer_id, rng.random() < 0.4, rng.random() < 0.5)
    rig.engine.stop()
    snapshot = storage.snapshot()
    image = snapshot.crash(snapshot.pieces())
    undamaged = Recovered(snapshot.crash(snapshot.pieces()))
    expected = undamaged.consume(1 << 20), undamaged.tp.last_stable_offset
    names = [name for name in image.list_dir("t-0") if name.endswith(".snapshot")]
    assert len(names) > 3
    for name in names:
        data = bytearray(image.read_bytes(f"t-0/{name}"))
        for _ in range(12):
            bit = rng.randrange(len(data) * 8)
            data[bit >> 3] ^= 1 << (bit & 7)
            damaged = snapshot.crash(snapshot.pieces())
            file = damaged.open(f"t-0/{name}")
            file.truncate(0)
            file.append(bytes(data))
            found = Recovered(damaged)
            assert (found.consume(1 << 20), found.tp.last_stable_offset) == expected, (name, bit)
            data[bit >> 3] ^= 1 << (bit & 7)
