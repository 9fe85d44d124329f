"""The table `_history`: from which offset on each partition's log is complete. `reader/history.py` makes its rows."""

from __future__ import annotations

from typing import ClassVar, final

from kcoord.core.outcome import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kcoord.spark.tables.table import BIGINT, PLACE, TIMESTAMP, Column, Table


@final
class HistoryTable(Table):
    NAME: ClassVar[str] = "_history"
    ROW: ClassVar[str] = "a partition, and from which offset on its log is complete ([History](spark.md#history))"
    TOPICS_IN_WORDS: ClassVar[str] = "`__consumer_offsets` and `__transaction_state`, or the chosen topics"
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE[:3],
        Column("log_start_offset", BIGINT, "the first offset that exists"),
        Column("end_offset", BIGINT, "the offset after the last one"),
        Column(
            "cleaned_offset", BIGINT, "the cleaner's checkpoint: below it the log may be compacted; null without one"
        ),
        Column("complete_from_offset", BIGINT, "from here on every record is there; 0 if none was ever removed"),
        Column(
            "history_complete_from",
            TIMESTAMP,
            "the time of the first record from that offset on, or of the newest record if none follows; "
            "null if the whole history is there",
        ),
        Column(
            "state_complete_from_offset",
            BIGINT,
            "from here on the state at each point is complete: `complete_from_offset`, but in a log with gaps at least "
            "the cleaner's checkpoint, or the begin of the last segment without one, and after the markers of "
            "transactions that were open there",
        ),
        Column("state_complete_from", TIMESTAMP, "as `history_complete_from`, for that offset"),
    )
    UNSTREAMABLE: ClassVar[str] = "compaction changes its rows"
    HAS_ROW_PER_PARTITION: ClassVar[bool] = True

    @classmethod
    def is_read_by_default(cls, topic: str) -> bool:
        return topic in (OFFSETS_TOPIC, TRANSACTION_TOPIC)
