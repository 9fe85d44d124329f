"""A share of the flips that `make bit-flips` covers, and the fields that no checksum covers."""

from __future__ import annotations

import pytest

from kcoord.log.errors import LogDamaged
from tests.crash.bit_flips import Bench, Specimen, Tally, flip_all, make_log
from tests.unit.log.batches import make_batch


def test_a_share_of_the_bits() -> None:
    tally = Tally()
    for number, specimen in enumerate(make_log(2)[:20]):
        flip_all(specimen, number, 2, 0.0, tally, 100)
    assert tally.problems == []
    assert tally.bits == 2000
    assert tally.found_active == tally.found_closed == tally.bits
    assert tally.harmless == 0 and tally.middle_refused and tally.middle_cut


@pytest.mark.parametrize(("start", "end"), [(0, 8), (8, 12), (12, 16), (16, 17)])
def test_bits_outside_the_checksum_of_an_only_batch(start: int, end: int) -> None:
    """Base offset, length, leader epoch and magic: nothing beside the batch could tell but what stands elsewhere."""
    batch = make_batch(5, count=2, epoch=3)
    specimen = Specimen(5, batch, 7, [(0, 0), (3, 5)])
    bench = Bench(specimen)
    assert bench.open(batch, 7, False).end_offset == 7
    for bit in range(start * 8, end * 8):
        damaged = bytearray(batch)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(LogDamaged):
            bench.open(bytes(damaged), 7, False)


def test_a_log_that_lost_its_epochs_still_opens() -> None:
    batch = make_batch(0, count=2, epoch=3)
    log = Bench(Specimen(0, batch, 2, [])).open(batch, 2, False)
    assert (log.end_offset, log.leader_epoch) == (2, 3)
