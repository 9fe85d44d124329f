"""Windows over rows of Arrow tables with NumPy: numbers for keys, rows in the order of a key, running maxima.

Numbers and times (microseconds) are int64, and what is null in a table is MISSING, which is less than everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MISSING: Final = np.iinfo(np.int64).min
# Numbers of keys stay below this, so that adding a column to a key cannot overflow.
NUMBERS_MAX: Final = 1 << 62


def integers(column: Any) -> Any:
    """A column of numbers or times."""
    return pc.fill_null(column.cast(pa.int64()), MISSING).to_numpy()


def flags(column: Any) -> Any:
    """A column of booleans; null is False."""
    return pc.fill_null(column, False).to_numpy()


def micros(times_ms: Iterable[int | None]) -> Any:
    """Times in ms as microseconds, MISSING for None."""
    return np.array([MISSING if time is None else time * 1000 for time in times_ms], np.int64)


def nullable(values: Any, kind: Any) -> pa.Array:
    """Numbers or times back as a column of that type."""
    return pa.array(values, mask=values == MISSING).cast(kind)


def keys_of(table: pa.Table, names: Sequence[str]) -> tuple[Any, int]:
    """A number for each row, the same where all these columns are equal, and how many different ones there are: they
    are the numbers below that."""
    found = np.zeros(table.num_rows, np.int64)
    count = 1
    for name in names:
        encoded = encoded_column(table.column(name))
        size = max(len(encoded.dictionary), 1)
        if count > NUMBERS_MAX // size:
            found, count = _renumbered(found)
        found = found * size + encoded.indices.to_numpy().astype(np.int64)
        count *= size
    return _renumbered(found)


def encoded_column(column: Any) -> Any:
    """A column as one dictionary array, with null as a value of its own."""
    encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def _renumbered(numbers: Any) -> tuple[Any, int]:
    distinct, found = np.unique(numbers, return_inverse=True)
    return found.reshape(-1), len(distinct)


def in_order(*by: Any) -> Any:
    """The indexes of rows, sorted by the first of these, then by the second, and so on."""
    return np.lexsort(by[::-1])


def begins_of(keys: Any) -> Any:
    """Whether a row is the first with its key. Rows are in the order of keys."""
    begins = np.ones(len(keys), bool)
    begins[1:] = keys[1:] != keys[:-1]
    return begins


def ends_of(keys: Any) -> Any:
    """Whether a row is the last with its key. Rows are in the order of keys."""
    return np.append(begins_of(keys)[1:], True)[: len(keys)]


def first_rows(keys: Any, count: int) -> Any:
    """The index of the first row of each key."""
    found = np.zeros(count, np.int64)
    found[keys[::-1]] = np.arange(len(keys))[::-1]
    return found


def least_of(keys: Any, values: Any, count: int) -> Any:
    """The least value of each key, MISSING if it has none. No value is MISSING."""
    most = np.iinfo(np.int64).max
    found = np.full(count, most)
    np.minimum.at(found, keys, values)
    return np.where(found == most, MISSING, found)


def largest_of(keys: Any, values: Any, count: int) -> Any:
    """The largest value of each key, MISSING if it has none."""
    found = np.full(count, MISSING)
    np.maximum.at(found, keys, values)
    return found


def running_max(values: Any, begins: Any) -> Any:
    """The largest value of the same key up to each row, MISSING if there is none."""
    distinct, ranks = np.unique(values, return_inverse=True)
    if not len(distinct):
        return values
    # Later keys have larger numbers, so that a maximum never comes from the key before.
    lowest = np.cumsum(begins) * len(distinct)
    return distinct[np.maximum.accumulate(lowest + ranks.reshape(-1)) - lowest]


def back_in_place(order: Any, values: Any) -> Any:
    """Values of sorted rows in the order in which the rows were before."""
    found = np.empty_like(values)
    found[order] = values
    return found


class Sorted:
    """Rows of keys that are numbers below `count`, sorted by key and value: finds places in them, many at a time."""

    def __init__(self, keys: Any, values: Any, count: int) -> None:
        self.distinct, ranks = np.unique(values, return_inverse=True)
        # Ranks from 1 on; 0 is before all values of a key.
        self.step = len(self.distinct) + 1
        self.places = keys * self.step + ranks.reshape(-1) + 1
        first = np.arange(count + 1, dtype=np.int64)
        # Where the rows of each key begin, and where they end.
        self.bounds = np.searchsorted(self.places, first * self.step)

    def after(self, keys: Any, values: Any) -> Any:
        """For each pair the index after the last row of the key whose value is not larger."""
        ranks = np.searchsorted(self.distinct, values, "right")
        return np.searchsorted(self.places, keys * self.step + ranks, "right")

    def first(self, keys: Any, values: Any) -> Any:
        """For each pair the index of the first row of the key whose value is not smaller, or the end of the key."""
        ranks = np.searchsorted(self.distinct, values, "left")
        return np.searchsorted(self.places, keys * self.step + ranks + 1, "left")
