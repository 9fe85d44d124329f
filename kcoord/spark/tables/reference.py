"""Prints docs/spark-tables.md from what the tables declare.

python -m kcoord.spark.tables.reference > docs/spark-tables.md
"""

from __future__ import annotations

from kcoord.spark.tables.registry import DEFAULT, REGISTERED
from kcoord.spark.tables.table import PLACE, Column, Table

HEAD = f"""# Tables and their columns

The values of `option("table", ...)` of [format("kcoord")](spark.md); `{DEFAULT.NAME}` is the default. Any value may be
null. Times are UTC. This page is printed by `python -m kcoord.spark.tables.reference`; a test compares it.

| table | a row is | from |
|---|---|---|
"""
PLACE_HEAD = """
Tables whose columns begin with *place* begin with these, which locate the record:

"""
COLUMNS_HEAD = "| column | type | |\n|---|---|---|\n"


def markdown() -> str:
    """The whole page."""
    rows = "".join(f"| [`{table.NAME}`](#{table.NAME}) | {table.ROW} | {_topics(table)} |\n" for table in REGISTERED)
    return HEAD + rows + PLACE_HEAD + _columns(PLACE) + "".join(_section(table) for table in REGISTERED)


def _topics(table: type[Table]) -> str:
    return table.TOPICS_IN_WORDS or ", ".join(f"`{topic}`" for topic in table.TOPICS) or "any topic"


def _section(table: type[Table]) -> str:
    begins_with_place = table.COLUMNS[: len(PLACE)] == PLACE
    columns = table.COLUMNS[len(PLACE) :] if begins_with_place else table.COLUMNS
    notes = ["It begins with *place*."] if begins_with_place else []
    if table.UNSTREAMABLE:
        notes.append(f"It cannot be streamed: {table.UNSTREAMABLE}.")
    if table.HAS_NEWEST:
        notes.append("It takes the option `newest`.")
    words = " ".join(notes)
    return f"\n## {table.NAME}\n\n" + (f"{words}\n\n" if words else "") + _columns(columns)


def _columns(columns: tuple[Column, ...]) -> str:
    return COLUMNS_HEAD + "".join(f"| `{one.name}` | `{one.type}` | {one.words} |\n" for one in columns)


if __name__ == "__main__":
    print(markdown(), end="")
