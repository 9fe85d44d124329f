"""Rebalances through Spark: records and events of several groups and logs, and the ranking of what should not be."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from kcoord.core.cause import Cause
from kcoord.core.groups.cause_header import CAUSE_HEADER, encode_cause
from kcoord.log.serde import encode_record
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from kcoord.spark.jobs.rebalances import ranking, rebalances
from kcoord.spark.short.rebalances import RANKING, SCHEMA, table_of
from kcoord.spark.short.rebalances import ranking as short_ranking
from kcoord.spark.short.rebalances import rebalances as short_rebalances
from tests.spark.tables import arrow, at, frame, micros, same_rows, seconds_of
from tests.unit.cli.rig import assignment, subscription


def generation(
    offset: int, seconds: float, number: int, group: str = "g", cause: str = "", **members: tuple[int, ...]
) -> dict[str, Any]:
    """A classic group's record; a member `a1` is of the client `a`."""
    each = [
        MemberMetadata(
            name, client_id=name[0], client_host="/h", subscription=subscription("t"),
            assignment=assignment("t", *owned),
        )
        for name, owned in members.items()
    ]  # fmt: skip
    key, value = encode_record(GroupMetadataKey(group), GroupMetadataValue("consumer", number, "range", "", 0, each))
    headers = [(CAUSE_HEADER, encode_cause(Cause(cause, "m", "why")))] if cause else []
    return {
        "log_topic": "__consumer_offsets", "log_partition": 0, "log_offset": offset, "log_timestamp": at(seconds),
        "record_type": 2, "group_id": group, "key": key, "value": value, "headers": headers,
    }  # fmt: skip


def event(number: int, **more: Any) -> dict[str, Any]:
    document = {"version": 1, "group": "g", "protocol": "classic", "log": "__consumer_offsets-0", **more}
    return {
        "topic": "__group_events", "partition": 0, "offset": number, "timestamp": at(0),
        "value": json.dumps(document).encode(),
    }  # fmt: skip


def test_records_and_events_of_each_group_become_one_story(spark: SparkSession) -> None:
    records = [
        generation(5, 30, 5, a1=(0, 1)),
        generation(9, 50, 6, a1=(0,), b1=(1,)),
        generation(2, 1, 1, "h", "member_joined", a1=(0,)),
        generation(2, 1, 1, "h", "member_left", a1=(0,)) | {"log": "other"},
        # Not of groups, and of no group's log: neither is looked at.
        {"log_topic": "__consumer_offsets", "record_type": 1, "log_offset": 1, "group_id": "h", "key": b"?"},
        {"log_topic": "__transaction_state", "record_type": 2, "log_offset": 1, "group_id": "h", "key": b"?"},
    ]
    start_ms = round(at(0).timestamp() * 1000)
    events = [
        event(0, event="epoch_changed", epoch=4, time_ms=start_ms + 10_000, offset=3, cause="session_timeout",
              member="x", detail="late", members=2, partitions=2),
        event(1, event="rebalance_finished", epoch=4, time_ms=start_ms + 12_000, started_ms=start_ms + 10_000,
              offset=3, members=1, partitions=2),
        event(2, event="epoch_changed", epoch=5, time_ms=start_ms + 29_000, offset=5, cause="topics_changed",
              members=1, partitions=2),
        event(3, event="rebalance_finished", epoch=5, time_ms=start_ms + 30_000, started_ms=start_ms + 29_000,
              offset=5, members=1, partitions=2),
        event(4, epoch=1, log="elsewhere-0", offset=1),
        {**event(5), "value": b"\xff{"},
    ]  # fmt: skip
    found = rebalances(frame(spark, "records", records), frame(spark, "messages", events))
    same_rows(found, table_of(short_rebalances(arrow("records", records), arrow("messages", events)), SCHEMA))
    rows = {(row.log, row.group_id, row.to_epoch): row for row in found.collect()}
    told = {
        key[1:] if key[0] == "." else key: (
            row.from_epoch, seconds_of(row.started), row.duration_ms, row.cause, row.cause_source, row.cause_member,
            row.members_before, row.members_after, row.partitions_moved,
        )
        for key, row in rows.items()
    }  # fmt: skip
    assert told == {
        ("g", 4): (0, 10, 2000, "session_timeout", "events", "x", 2, 1, None),
        ("g", 5): (4, 29, 1000, "topics_changed", "events", None, 1, 1, None),
        # As a broker writes it: at the end, and without a cause that would say when it began.
        ("g", 6): (5, None, None, "member_joined", "derived", None, 1, 2, 1),
        ("h", 1): (None, 1, 0, "member_joined", "record", "m", None, 1, None),
        ("other", "h", 1): (None, 1, 0, "member_left", "record", "m", None, 1, None),
    }
    last = rows[(".", "g", 6)]
    assert [one.asDict() for one in last.members_joined] == [
        {"member_id": "b1", "instance_id": None, "client_id": "b", "client_host": "/h"}
    ]
    assert seconds_of(last.finished) == 50 and last.history_complete_from is None
    assert last.members_left == [] and last.partitions_after == 2
    assert [(one.epoch, seconds_of(one.at), one.cause) for one in last.causes] == [(6, 50, "member_joined")]


def test_storms_and_flapping_members(spark: SparkSession) -> None:
    """`b` of group g leaves and comes back twice within a minute; group h rebalances as often, an hour apart."""
    members: list[dict[str, tuple[int, ...]]] = [
        {"a1": (0,), "b1": (1,)}, {"a1": (0, 1)}, {"a1": (0,), "b2": (1,)}, {"a1": (0, 1)}, {"a1": (0,), "b3": (1,)}
    ]  # fmt: skip
    records = []
    for group, pause in (("g", 10), ("h", 3600)):
        for number, names in enumerate(members, 1):
            # Of group h another client comes each time.
            client = "b" if group == "g" else "bcd"[number // 2]
            each: dict[str, Any] = {name.replace("b", client): part for name, part in names.items()}
            records.append(generation(number, pause * number, number, group, **each))
    found = rebalances(frame(spark, "records", records)).cache()
    short = short_rebalances(arrow("records", records), arrow("messages", []))
    for gap_s, least, flaps in ((60, 3, 2), (7200, 5, 3), (5, 1, 1)):
        same_rows(ranking(found, gap_s, least, flaps), table_of(short_ranking(short, gap_s, least, flaps), RANKING))
    rows = [
        (row.finding, row.rank, row.group_id, row.member, seconds_of(row.first), row.duration_ms, row.rebalances,
         row.returns, row.partitions_moved)
        for row in ranking(found).orderBy("finding", "rank").collect()
    ]  # fmt: skip
    assert rows == [
        ("flapping_member", 1, "g", "b@/h", 20, 30_000, 4, 2, None),
        ("storm", 1, "g", None, 10, 40_000, 5, None, 4),
    ]
    assert [row.finding for row in ranking(found, 60, 6, 3).collect()] == []
    slow = ranking(found, 7200, 5, 3).orderBy("rank").collect()
    assert [(row.finding, row.rank, row.group_id, row.duration_ms) for row in slow] == [
        ("storm", 1, "h", 14_400_000), ("storm", 2, "g", 40_000)
    ]  # fmt: skip
    found.unpersist()


def test_a_rebalance_whose_beginning_is_gone_has_no_cause(spark: SparkSession) -> None:
    """Retention took the event with the cause, and compaction the records."""
    ended = event(7, event="rebalance_finished", epoch=4, time_ms=micros(at(12)) // 1000, offset=3, members=1)
    found = rebalances(frame(spark, "records", []), frame(spark, "messages", [ended]))
    same_rows(found, table_of(short_rebalances(arrow("records", []), arrow("messages", [ended])), SCHEMA))
    [row] = found.collect()
    assert (row.to_epoch, row.cause, row.causes, seconds_of(row.finished)) == (4, None, [], 12)
