"""The columns of the tables, and that Arrow and Spark mean the same by them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kcoord.spark.reader.filters import NOT_BY_VALUE
from kcoord.spark.reader.row_filter import RowFilter
from kcoord.spark.tables.reference import markdown
from kcoord.spark.tables.registry import REGISTERED, TABLES
from kcoord.spark.tables.schemas import arrow_schema, spark_schema

ROOT = Path(__file__).resolve().parents[4]


def columns(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


@pytest.mark.parametrize("table", TABLES)
def test_spark_gets_the_declared_columns(table: str) -> None:
    schema = spark_schema(table)
    assert columns(schema) == ", ".join(f"{column.name} {column.type}" for column in TABLES[table].COLUMNS)
    assert all(field.nullable for field in schema.fields)


@pytest.mark.parametrize("table", TABLES)
def test_arrow_is_what_pyspark_makes_of_them(table: str) -> None:
    """Spark refuses a batch whose schema is not exactly that."""
    ours = arrow_schema(table)
    theirs = to_arrow_schema(spark_schema(table), timezone="UTC")
    assert theirs.equals(ours, check_metadata=True)
    # Names of list elements are not compared by the above.
    assert str(theirs) == str(ours)
    assert all(field.nullable for field in ours)


def test_the_comparison_would_find_a_difference() -> None:
    for other in (pa.timestamp("us", tz="+00:00"), pa.timestamp("ms", tz="UTC"), pa.timestamp("us")):
        theirs = to_arrow_schema(spark_schema("members"), timezone="UTC")
        at = theirs.get_field_index("log_timestamp")
        assert not theirs.equals(theirs.set(at, pa.field("log_timestamp", other)))


def test_the_page_of_the_documentation_is_what_the_tables_declare() -> None:
    """Print it anew: python -m kcoord.spark.tables.reference > docs/spark-tables.md"""
    assert (ROOT / "docs/spark-tables.md").read_text() == markdown()


def test_every_table_declares_what_it_needs() -> None:
    assert len(TABLES) == len(REGISTERED)
    fields = {field.name for field in dataclasses.fields(RowFilter)}
    for table in REGISTERED:
        assert table.NAME and table.ROW
        assert len(set(table.column_names())) == len(table.COLUMNS)
        for column in table.COLUMNS:
            assert column.words and column.narrows in {*NOT_BY_VALUE, *fields}, (table.NAME, column)


def test_options_are_checked_without_pyarrow_and_pyspark() -> None:
    code = "import sys, kcoord.spark.reader.options\n"
    code += "print([name for name in ('pyspark', 'pyarrow', 'pandas', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_no_table() -> None:
    with pytest.raises(KeyError):
        arrow_schema("offsets")
    with pytest.raises(KeyError):
        spark_schema("offsets")
