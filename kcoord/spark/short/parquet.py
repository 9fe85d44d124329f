"""A table as Parquet files, by day and bucket of groups, as Spark would write them."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from kcoord.spark.short.runs import MISSING, encoded_column, in_order, integers
from kcoord.spark.writer.staging import staging_folder, take_place

# Spark's, for `xxhash64`.
HASH_SEED: Final = 42
DAY_US: Final = 86_400_000_000
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"
COMPRESSION: Final = "snappy"
# An empty file that says that a table is complete.
SUCCESS: Final = "_SUCCESS"
# What names in the directory of a table begin with, besides those of columns (`date=`).
OF_TABLES: Final = ("part-", "_", ".")
EPOCH: Final = date(1970, 1, 1)


def with_places(table: pa.Table, times: Any, buckets: int, date_name: str, bucket_name: str) -> pa.Table:
    """The table with the columns that directories are named by: the day (UTC) of the rows' times, and a bucket for the
    column `group_id`."""
    days = pa.array((times // DAY_US).astype(np.int32), mask=times == MISSING).cast(pa.date32())
    groups, names = _sorted_groups(table.column("group_id"))
    bucket_of = np.array([bucket_of_group(name, buckets) for name in names], np.int32)
    return table.append_column(date_name, days).append_column(bucket_name, pa.array(bucket_of[groups]))


def write_table(
    table: pa.Table, times: Any, place: str, date_name: str, bucket_name: str, overwrite: bool = False
) -> None:
    """Write all of a table that `with_places` has made to the directory `place`, or nothing. In a file rows are sorted
    by group and time. With `overwrite` a table that is there is replaced. Raises TableExists and OSError.
    """
    with _staged(place, overwrite) as staged:
        _write_files(table, times, staged, date_name, bucket_name)


def write_one_file(table: pa.Table, place: str, overwrite: bool = False) -> None:
    """The same for any table, without such directories and as it is sorted."""
    with _staged(place, overwrite) as staged:
        pq.write_table(table, os.path.join(staged, _file_name()), compression=COMPRESSION, store_schema=False)


class TableExists(ValueError):
    """Something is where a table is to be."""


def check_place(place: str, overwrite: bool, read: str) -> None:
    """Whether a table may be written to `place`, if the logs are in or below `read`. Raises TableExists."""
    at, logs = os.path.realpath(place), os.path.realpath(read)
    if os.path.commonpath([at, logs]) == at:
        raise TableExists(f"{place} has the logs that were read: a table is written somewhere else")
    _refuse(place, overwrite)


def _refuse(place: str, overwrite: bool) -> None:
    if not os.path.lexists(place):
        return
    if not overwrite:
        raise TableExists(f"{place} exists; --overwrite replaces it")
    if os.path.isdir(place) and not os.path.islink(place):
        foreign = [name for name in os.listdir(place) if not _is_of_table(name)]
        if foreign:
            raise TableExists(f"{place} is no table, since it has {min(foreign)}: nothing is removed")


def _is_of_table(name: str) -> bool:
    return name.startswith(OF_TABLES) or "=" in name


@contextmanager
def _staged(place: str, overwrite: bool) -> Iterator[str]:
    """A directory that takes the place of what is there, if what is done with it ends well. Otherwise nothing changes.

    A crash between the two renames, or a disk that fails then, leaves the table that was there in the hidden directory
    as `replaced`.
    """
    place = place.rstrip("/")
    parent = os.path.dirname(os.path.abspath(place))
    if os.path.exists(parent) and not os.path.isdir(parent):
        raise TableExists(f"{parent} is not a directory")
    # Hidden from readers of the directory above, and of this run alone.
    staging = staging_folder(os.path.abspath(place))
    made, replaced = os.path.join(staging, "table"), os.path.join(staging, "replaced")
    os.makedirs(made)
    try:
        yield made
        with open(os.path.join(made, SUCCESS), "wb"):
            pass
        _refuse(place, overwrite)
        if os.path.lexists(place):
            take_place(made, place, replaced)
        else:
            os.rename(made, place)
    finally:
        # Unless it has the only copy of the table that was there.
        if os.path.lexists(place) or not os.path.lexists(replaced):
            shutil.rmtree(staging, ignore_errors=True)


def _file_name() -> str:
    return f"part-00000-{uuid.uuid4()}.c000.{COMPRESSION}.parquet"


def _write_files(table: pa.Table, times: Any, staged: str, date_name: str, bucket_name: str) -> None:
    days, buckets = integers(table.column(date_name).cast(pa.int32())), integers(table.column(bucket_name))
    groups, _ = _sorted_groups(table.column("group_id"))
    order = in_order(days, buckets, groups, times)
    changes = (np.diff(days[order]) != 0) | (np.diff(buckets[order]) != 0)
    begins = [0, *(np.flatnonzero(changes) + 1).tolist()]
    ends = [*begins[1:], len(order)]
    file_name = _file_name()
    stored = table.drop_columns([date_name, bucket_name])

    def write(begin: int, end: int) -> None:
        first = order[begin]
        folder = os.path.join(staged, f"{date_name}={_day_text(days[first])}", f"{bucket_name}={buckets[first]}")
        os.makedirs(folder, exist_ok=True)
        rows = stored.take(pa.array(order[begin:end]))
        pq.write_table(rows, os.path.join(folder, file_name), compression=COMPRESSION, store_schema=False)

    # Arrow leaves the other threads alone while it works.
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        list(threads.map(write, begins, ends) if len(order) else ())


def _sorted_groups(column: Any) -> tuple[Any, list[str]]:
    """For each row the number of its group, in the order of their names, and the names."""
    encoded = encoded_column(column)
    names = encoded.dictionary.to_pylist()
    # Spark compares bytes of UTF-8; the order of code points is the same.
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.zeros(len(names), np.int64)
    rank[order] = np.arange(len(names))
    return rank[encoded.indices.to_numpy()] if len(names) else np.zeros(0, np.int64), [names[one] for one in order]


def bucket_of_group(group_id: str, buckets: int) -> int:
    """Spark's `pmod(xxhash64(group_id), buckets)`."""
    value = xxhash.xxh64_intdigest(group_id.encode(), seed=HASH_SEED)
    return (value - (1 << 64) if value >> 63 else value) % buckets


def _day_text(day: int) -> str:
    return NO_DAY if day == MISSING else (EPOCH + timedelta(days=int(day))).isoformat()
