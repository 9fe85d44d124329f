"""The table `_corrupt`: what cannot be read. `reader/tasks.py` makes its rows while it reads the logs."""

from __future__ import annotations

from typing import ClassVar, final

from kcoord.spark.tables.table import BIGINT, BY_OFFSET, PLACE, STRING, Column, Table


@final
class CorruptTable(Table):
    NAME: ClassVar[str] = "_corrupt"
    ROW: ClassVar[str] = "bytes or a record that cannot be read"
    TOPICS_IN_WORDS: ClassVar[str] = "all topics, or the chosen ones"
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE[:3],
        Column("file", STRING, "the segment file"),
        Column("position", BIGINT, "where in the file the damage, or the batch with the record, begins"),
        Column("size_bytes", BIGINT, "how many bytes are damaged; 0 for a single record"),
        Column("log_offset", BIGINT, "the offset that was expected there", BY_OFFSET),
        Column("reason", STRING, "why it cannot be read"),
    )
