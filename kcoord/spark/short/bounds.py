"""How much a job without Spark may hold in memory."""

from __future__ import annotations

from typing import Final

# Of a table as it is read. Jobs have several tables, and what they make of them is as large again, or larger.
TABLE_BYTES_MAX: Final = 512 << 20


class NotShort(Exception):
    """There are more rows than a job without Spark may have in memory: Spark, which may write to a disk, takes over."""
