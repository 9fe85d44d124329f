"""The columns of the tables, and that Arrow and Spark mean the same by them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kcoord.spark.options import TABLES
from kcoord.spark.tables.schemas import arrow_schema, spark_schema

PLACE = "log string, log_topic string, log_partition int, log_offset bigint, log_timestamp timestamp, "
HEADERS = "headers array<struct<key:string,value:binary>>"
# As the documentation tells users; whoever changes one breaks their jobs.
COLUMNS = {
    "messages": "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    f"timestampType int, {HEADERS}, log string",
    "records": f"{PLACE}record_type int, record_version int, record_name string, group_id string, topic string, "
    "partition int, member_id string, transactional_id string, key_json string, value_json string, key binary, "
    f"value binary, {HEADERS}, producer_id bigint, producer_epoch int, leader_epoch int, is_tombstone boolean",
    "offset_commits": f"{PLACE}group_id string, topic string, partition int, committed_offset bigint, "
    "leader_epoch int, metadata string, commit_timestamp timestamp, expire_timestamp timestamp, topic_id string, "
    "producer_id bigint, is_tombstone boolean",
    "group_metadata": f"{PLACE}group_id string, kind string, record_name string, epoch int, assignment_epoch int, "
    "protocol_type string, protocol string, leader string, state_timestamp timestamp, member_count int, "
    "metadata_hash bigint, cause string, is_tombstone boolean",
    "members": f"{PLACE}group_id string, kind string, record_name string, member_id string, instance_id string, "
    "rack_id string, client_id string, client_host string, epoch int, rebalance_timeout_ms int, "
    "session_timeout_ms int, subscribed_topics array<string>, subscribed_regex string, assignor string, "
    "is_tombstone boolean",
    "assignments": f"{PLACE}group_id string, kind string, record_name string, member_id string, role string, "
    "epoch int, previous_epoch int, state string, topic_id string, topic string, partitions array<int>, "
    "pending_partitions array<int>, is_tombstone boolean",
    "transactions": f"{PLACE}transactional_id string, producer_id bigint, previous_producer_id bigint, "
    "next_producer_id bigint, producer_epoch int, next_producer_epoch int, timeout_ms int, status string, "
    "partitions array<struct<topic:string,partitions:array<int>>>, last_update_timestamp timestamp, "
    "start_timestamp timestamp, client_transaction_version int, is_tombstone boolean",
    "_corrupt": "log string, log_topic string, log_partition int, file string, position bigint, size_bytes bigint, "
    "log_offset bigint, reason string",
    "_history": "log string, log_topic string, log_partition int, log_start_offset bigint, end_offset bigint, "
    "cleaned_offset bigint, complete_from_offset bigint, history_complete_from timestamp",
}


def columns(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def test_every_table_has_its_columns() -> None:
    assert set(COLUMNS) == set(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_spark_is_told_these_columns(table: str) -> None:
    schema = spark_schema(table)
    assert columns(schema) == COLUMNS[table]
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


def test_what_is_no_table() -> None:
    with pytest.raises(KeyError):
        arrow_schema("offsets")
    with pytest.raises(KeyError):
        spark_schema("offsets")
