"""The table `topics`."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord.log.record_plain import uuid_text
from kcoord.log.serde import encode_metadata_record
from kcoord.protocol.records.config_record import ConfigRecord
from kcoord.protocol.records.partition_change_record import PartitionChangeRecord
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.remove_topic_record import RemoveTopicRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.spark.tables.checks import check_record
from kcoord.spark.tables.topics import TopicsTable
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError
from tests.data.known import LOGS
from tests.unit.spark.log_rig import rows as rows_of_logs
from tests.unit.spark.table_rig import METADATA, PLACE, add_bytes, rows, stored

TOPIC_ID = bytes(range(16))
HEAD = {**PLACE, "log_topic": "__cluster_metadata", "log_partition": 0, "topic_id": uuid_text(TOPIC_ID)}


def changes(*messages: Message, names: dict[bytes, str]) -> list[dict[str, Any]]:
    decoder = TopicsTable(topic_names=names)
    for message in messages:
        add_bytes(decoder, None, encode_metadata_record(message), METADATA)
    return rows(decoder)


def test_each_change_is_a_row() -> None:
    found = changes(
        TopicRecord("orders", TOPIC_ID),
        PartitionRecord(3, TOPIC_ID),
        PartitionChangeRecord(3, TOPIC_ID),
        ConfigRecord(2, "orders", "retention.ms", "1"),
        RemoveTopicRecord(TOPIC_ID),
        names={TOPIC_ID: "orders"},
    )
    assert found == [
        {**HEAD, "topic": "orders", "partition": None, "change": "created"},
        {**HEAD, "topic": "orders", "partition": 3, "change": "partition_added"},
        {**HEAD, "topic": "orders", "partition": 3, "change": "partition_changed"},
        {**HEAD, "topic": "orders", "partition": None, "change": "deleted"},
    ]


def test_a_topic_without_a_known_name() -> None:
    [row] = changes(RemoveTopicRecord(TOPIC_ID), names={})
    assert row["topic"] is None


def test_an_unknown_version_is_damage() -> None:
    """As `_corrupt` reports it. `records` shows such a record as bytes."""
    value = bytearray(encode_metadata_record(RemoveTopicRecord(TOPIC_ID)))
    value[2] = 100
    record, header = stored(None, bytes(value))
    with pytest.raises(DecodeError, match="metadata record type 9 of unknown version 100"):
        TopicsTable().add(METADATA, record, header)
    with pytest.raises(DecodeError, match="metadata record type 9 of unknown version 100"):
        check_record(METADATA.log_topic, record, header)


def test_the_topics_of_a_broker() -> None:
    found = rows_of_logs(LOGS, "topics")
    assert {row["topic"] for row in found if row["change"] == "deleted"} == {"doomed", "gone"}
    created = {row["topic_id"]: row["topic"] for row in found if row["change"] == "created"}
    assert "orders" in created.values()
    # Every other change has the id only.
    assert all(row["topic"] == created[row["topic_id"]] for row in found)
