"""A hash of key columns, as the first column of what Spark sorts.

Sorting compares eight bytes of the first column, and whole rows only where these are equal. The first key of the jobs
is the data directory, which is mostly the same one everywhere, and names begin alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY_HASH: Final = "_key_hash"


def with_key_hash(rows: DataFrame, *keys: str) -> DataFrame:
    """`rows` with KEY_HASH. Windows partition by it and by the keys, since different keys may have the same hash.

    It is a column, and not an expression in the window: two windows with the same expression would each make their own
    column of it, and Spark would shuffle the rows again between them.
    """
    return rows.withColumn(KEY_HASH, F.xxhash64(*keys))
