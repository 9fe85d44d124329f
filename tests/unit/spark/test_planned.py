"""How the slices of a table are shared among Spark's tasks."""

from __future__ import annotations

from kcoord.spark.planned import SLICE_COST_BYTES, in_shares
from kcoord.spark.reader.slices import SegmentFile, Slice
from kcoord.spark.reader.tasks import Task

LARGE = 1 << 40


def tasks(*sizes: int) -> list[Task]:
    return [
        Task(Slice(".", "t", number, SegmentFile(f"t-{number}", 0, size), 0, size, 0))
        for number, size in enumerate(sizes)
    ]


def shared(sizes: list[int], count: int, bytes_max: int = LARGE) -> list[list[int]]:
    return [
        [task.part.end for task in share] for share in in_shares([[task] for task in tasks(*sizes)], count, bytes_max)
    ]


def test_nothing_has_no_shares() -> None:
    assert shared([], 4) == []


def test_shares_keep_the_order_and_leave_nothing_out() -> None:
    given = tasks(*range(0, 50_000_000, 1_000_000))
    assert [task for share in in_shares([[task] for task in given], 4, LARGE) for task in share] == given


def test_slices_of_one_size_are_shared_evenly() -> None:
    assert [len(share) for share in shared([1_000_000] * 16, 4)] == [4, 4, 4, 4]


def test_a_large_slice_is_alone() -> None:
    sizes = [20_000_000, 100_000_000, 10, 10]
    assert shared(sizes, 2) == [[20_000_000], [100_000_000], [10, 10]]


def test_files_without_content_count_too() -> None:
    assert [len(share) for share in shared([0] * 100, 4)] == [25, 25, 25, 25]


def test_no_share_is_much_larger_than_asked_for() -> None:
    size = 10 * SLICE_COST_BYTES
    shares = shared([size - SLICE_COST_BYTES] * 40, 1, 4 * size)
    assert [len(share) for share in shares] == [4] * 10
