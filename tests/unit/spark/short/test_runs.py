"""Windows with NumPy, held against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord.spark.short import runs
from kcoord.spark.short.runs import MISSING, Sorted, begins_of, in_order, keys_of, running_max

ROWS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.just(int(MISSING)), st.integers(-5, 5))), max_size=20)


def columns(rows: list[tuple[int, int]]) -> tuple[Any, Any]:
    found = np.array(rows, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


@given(ROWS)
def test_running_maxima(rows: list[tuple[int, int]]) -> None:
    rows.sort(key=lambda row: row[0])
    keys, values = columns(rows)
    wanted = [max(value for other, value in rows[: i + 1] if other == key) for i, (key, _) in enumerate(rows)]
    assert running_max(values, begins_of(keys)).tolist() == wanted


@given(ROWS, ROWS)
def test_places_in_sorted_rows(rows: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    rows.sort()
    keys, values = columns(rows)
    found = Sorted(keys, values, 4)
    ends = [sum(key < other for key, _ in rows) for other in range(5)]
    assert found.bounds.tolist() == ends
    after = [ends[key] + sum(other == key and one <= value for other, one in rows) for key, value in asked]
    first = [ends[key] + sum(other == key and one < value for other, one in rows) for key, value in asked]
    assert found.after(*columns(asked)).tolist() == after
    assert found.first(*columns(asked)).tolist() == first


@pytest.mark.parametrize("most", [runs.NUMBERS_MAX, 20])
def test_numbers_of_keys(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if numbers of all columns together would be too large."""
    monkeypatch.setattr(runs, "NUMBERS_MAX", most)
    rows = [("a", 1, "x"), ("b", 1, "x"), ("a", None, "x"), ("a", 1, "x"), ("a", 1, None), ("a", None, "x")]
    table = pa.table({name: pa.array(values) for name, values in zip("abc", zip(*rows, strict=True), strict=True)})
    numbers, count = keys_of(table, ["a", "b", "c"])
    assert count == len(set(rows)) == numbers.max() + 1
    assert all((numbers[i] == numbers[j]) == (rows[i] == rows[j]) for i in range(6) for j in range(6))
    assert keys_of(table.slice(0, 0), ["a", "b"])[1] == 0


def test_the_first_of_these_counts_most() -> None:
    assert in_order(np.array([1, 0, 1]), np.array([3, 9, 2])).tolist() == [1, 2, 0]
