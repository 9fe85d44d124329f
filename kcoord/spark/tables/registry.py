"""The tables of the pipeline. A new table is registered here, and nowhere else."""

from __future__ import annotations

from typing import Final

from kcoord.spark.tables.assignments import AssignmentsTable
from kcoord.spark.tables.corrupt import CorruptTable
from kcoord.spark.tables.group_metadata import GroupMetadataTable
from kcoord.spark.tables.history import HistoryTable
from kcoord.spark.tables.members import MembersTable
from kcoord.spark.tables.messages import MessagesTable
from kcoord.spark.tables.offset_commits import OffsetCommitsTable
from kcoord.spark.tables.records import RecordsTable
from kcoord.spark.tables.table import Table
from kcoord.spark.tables.topics import TopicsTable
from kcoord.spark.tables.transactions import TransactionsTable

# In the order of docs/spark-tables.md.
REGISTERED: Final[tuple[type[Table], ...]] = (
    OffsetCommitsTable,
    GroupMetadataTable,
    MembersTable,
    AssignmentsTable,
    TransactionsTable,
    TopicsTable,
    RecordsTable,
    MessagesTable,
    CorruptTable,
    HistoryTable,
)
# By their names.
TABLES: Final[dict[str, type[Table]]] = {table.NAME: table for table in REGISTERED}
# What is read without the option `table`.
DEFAULT: Final[type[Table]] = OffsetCommitsTable
