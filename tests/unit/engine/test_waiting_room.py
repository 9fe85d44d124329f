"""The room for waiting requests: its limits, and who hears of freed space."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kcoord.engine.waiting_room import WaitingRoom

SIZES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=40)


def test_an_address_has_half_of_the_room() -> None:
    room = WaitingRoom(100)
    room.add("a", 50)
    assert room.has_space("a") and not room.is_full
    room.add("a", 1)
    assert not room.has_space("a") and room.has_space("b") and room.is_full
    assert room.remove("a", 1)
    assert room.has_space("a") and not room.is_full
    assert not room.remove("a", 50)
    assert room.bytes_of == {}


def test_all_addresses_together_have_a_limit() -> None:
    room = WaitingRoom(100)
    for address in ("a", "b", "c"):
        assert room.has_space(address)
        room.add(address, 40)
    assert room.is_full and not room.has_space("a") and not room.has_space("d")
    assert room.remove("b", 40)
    assert room.has_space("b") and room.has_space("d")


@given(SIZES, st.randoms(use_true_random=False))
def test_every_change_that_makes_space_is_told(sizes: list[tuple[str, int]], random: Random) -> None:
    """Requests come while they have space, and leave in any order."""
    room = WaitingRoom(100)
    inside: list[tuple[str, int]] = []
    for address, size in sizes:
        assert room.is_full == any(not room.has_space(one) for one in "abcd")
        if room.has_space(address):
            room.add(address, size)
            inside.append((address, size))
    random.shuffle(inside)
    while inside:
        shut_out = [one for one in "abcd" if not room.has_space(one)]
        told = room.remove(*inside.pop())
        assert told or shut_out == [one for one in "abcd" if not room.has_space(one)]
        assert room.bytes == sum(size for _, size in inside) and room.full_addresses >= 0
    assert (room.bytes, room.bytes_of, room.is_full) == (0, {}, False)
