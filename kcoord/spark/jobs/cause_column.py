"""The cause of an epoch in a record's headers, as a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from kcoord.core.groups.cause_header import CAUSE_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column


def cause_bytes() -> Column:
    """The header's value, which `decode_cause` reads, of rows with the column `headers`; null if there is none."""
    causes = F.filter("headers", lambda header: (header["key"] == CAUSE_HEADER) & header["value"].isNotNull())
    return F.get(causes, F.lit(0))["value"]
