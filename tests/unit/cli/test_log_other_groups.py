"""Groups of the newer protocols in `kcoord log state` and `diff`: every fact of their records, and no more."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.serde import encode_record
from kcoord.protocol.records import consumer_group_current_member_assignment as current
from kcoord.protocol.records import consumer_group_target_assignment_member as target
from kcoord.protocol.records import share_group_current_member_assignment as share_current
from kcoord.protocol.records import streams_group_current_member_assignment as streams_current
from kcoord.protocol.records import streams_group_target_assignment_member as streams_target
from kcoord.protocol.records.consumer_group_member_metadata import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from kcoord.protocol.records.consumer_group_metadata import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from kcoord.protocol.records.consumer_group_regular_expression import (
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
)
from kcoord.protocol.records.consumer_group_target_assignment_metadata import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.share_group_member_metadata import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from kcoord.protocol.records.share_group_metadata import ShareGroupMetadataKey, ShareGroupMetadataValue
from kcoord.protocol.records.streams_group_member_metadata import (
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
)
from kcoord.protocol.records.streams_group_metadata import StreamsGroupMetadataKey, StreamsGroupMetadataValue
from kcoord.protocol.records.streams_group_topology import StreamsGroupTopologyKey, StreamsGroupTopologyValue
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchBuilder
from tests.unit.cli.rig import OFFSETS, START_MS, run, run_json, stopped

Pair = tuple[Message, Message | None]
# Where the log ends before anything is appended.
END = 10


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return stopped(tmp_path)


def append(data: Path, *records: Pair) -> None:
    """One batch per record, so that there is a point after each."""
    segment = data / OFFSETS / f"{0:020d}.log"
    end = END + sum(1 for _ in (data / "appended").open()) if (data / "appended").exists() else END
    with segment.open("ab") as file, (data / "appended").open("a") as count:
        for key, value in records:
            builder = BatchBuilder()
            builder.append(START_MS + 9000, *encode_record(key, value))
            file.write(builder.build(end, 0))
            count.write("\n")
            end += 1


def topic_id(data: Path) -> str:
    topics = {topic["topic"]: topic["topic_id"] for topic in run_json("state", data)["topics"]}
    return str(topics["orders"])


def id_bytes(data: Path) -> bytes:
    return base64.urlsafe_b64decode(topic_id(data) + "==")


def member(member_id: str, client_id: str = "app", **fields: Any) -> Pair:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None, rack_id=None, client_id=client_id, client_host="/10.0.0.1",
        subscribed_topic_names=["orders"], subscribed_topic_regex=None, server_assignor=None, **fields,
    )  # fmt: skip
    return ConsumerGroupMemberMetadataKey("new", member_id), value


def epoch(number: int) -> Pair:
    return ConsumerGroupMetadataKey("new"), ConsumerGroupMetadataValue(number)


def has(data: Path, member_id: str, member_epoch: int, *partitions: int, pending: int = -1) -> Pair:
    topic = id_bytes(data)
    value = current.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member_epoch,
        previous_member_epoch=member_epoch - 1,
        state=1 if pending >= 0 else 0,
        assigned_partitions=[current.TopicPartitions(topic, list(partitions))],
        partitions_pending_revocation=[current.TopicPartitions(topic, [pending])] if pending >= 0 else [],
    )
    return current.ConsumerGroupCurrentMemberAssignmentKey("new", member_id), value


def is_to_have(data: Path, member_id: str, *partitions: int) -> Pair:
    value = target.ConsumerGroupTargetAssignmentMemberValue([target.TopicPartition(id_bytes(data), list(partitions))])
    return target.ConsumerGroupTargetAssignmentMemberKey("new", member_id), value


def consumer_group(data: Path) -> None:
    """Offsets 10 to 19: two members, of whom the first is to give a partition to the second."""
    pattern = ConsumerGroupRegularExpressionKey("new", "ord.*")
    append(
        data,
        member("m1"),
        epoch(1),
        (ConsumerGroupTargetAssignmentMetadataKey("new"), ConsumerGroupTargetAssignmentMetadataValue(1, START_MS)),
        is_to_have(data, "m1", 0, 1),
        has(data, "m1", 1, 0, 1),
        member("m2", "other"),
        epoch(2),
        is_to_have(data, "m1", 0),
        has(data, "m1", 1, 0, pending=1),
        (pattern, ConsumerGroupRegularExpressionValue(["orders"], 4, START_MS)),
        (OffsetCommitKey("new", "orders", 0), OffsetCommitValue(42)),
    )


def test_a_consumer_group(data: Path) -> None:
    topic = topic_id(data)
    consumer_group(data)
    document = run_json("state", data)
    assert [group["group"] for group in document["groups"]] == ["workers"]
    [group] = document["other_groups"]
    assert (group["group"], group["kind"], group["epoch"], group["assignment_epoch"]) == ("new", "consumer", 2, 1)
    assert [(row["topic"], row["partition"], row["offset"]) for row in group["offsets"]] == [("orders", 0, 42)]
    assert group["regular_expressions"] == [
        {"regular_expression": "ord.*", "topics": ["orders"], "version": 4, "timestamp": START_MS}
    ]
    one, two = group["members"]
    assert (one["member_id"], one["client_id"], one["subscribed_topic_names"]) == ("m1", "app", ["orders"])
    assert (one["member_epoch"], one["previous_member_epoch"], one["state"]) == (1, 0, "unrevoked_partitions")
    assigned = one["assignment"]["assigned_partitions"]
    assert [(part["topic"], part["topic_id"], part["partitions"]) for part in assigned] == [("orders", topic, [0])]
    assert one["assignment"]["partitions_pending_revocation"][0]["partitions"] == [1]
    assert one["target"]["topic_partitions"][0]["partitions"] == [0]
    assert (two["member_id"], two["member_epoch"], two["assignment"], two["target"]) == ("m2", None, None, None)
    [early] = run_json("state", data, "--as-of", "15", "-g", "new")["other_groups"]
    assert (early["epoch"], [m["member_id"] for m in early["members"]]) == (1, ["m1"])
    assert early["members"][0]["assignment"]["assigned_partitions"][0]["partitions"] == [0, 1]
    # Before the group's own record there is a member of it, and no epoch.
    [first] = run_json("state", data, "--as-of", "11")["other_groups"]
    assert first["epoch"] is None and [m["member_id"] for m in first["members"]] == ["m1"]
    assert run_json("state", data, "--as-of", "10")["other_groups"] == []


def test_the_table(data: Path) -> None:
    consumer_group(data)
    result = run("state", data, "-g", "new")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and max(map(len, lines)) <= 80
    text = " ".join(result.stdout.split())
    assert "new: a consumer group, epoch 2, assignment of epoch 1" in lines
    assert "member m1 of app at /10.0.0.1, epoch 1, unrevoked partitions, subscribed to orders," in text
    assert "assigned orders-0; partitions pending revocation orders-1" in text
    assert "/ord.*/ matches orders" in text
    assert ["orders", "0", "42"] in [line.split()[:3] for line in lines]
    assert lines[-1] == "1 group"
    early = " ".join(run("state", data, "--as-of", "18").stdout.split())
    assert "assigned orders-0 orders-1, target orders-0" in early


def test_what_changed(data: Path) -> None:
    consumer_group(data)
    [change] = run_json("diff", data, "15")["groups"]
    assert (change["group"], change["kind"], change["change"]) == ("new", "consumer", "changed")
    assert change["fields"]["epoch"] == {"from": 1, "to": 2}
    assert change["members_joined"] == ["m2"] and change["members_left"] == []
    assert change["members_reassigned"] == ["m1"]
    assert change["members_changed"] == [
        {"member_id": "m1", "fields": {"state": {"from": "stable", "to": "unrevoked_partitions"}}}
    ]
    assert [(row["topic"], row["change"], row["to"]) for row in change["offsets"]] == [("orders", "appeared", 42)]
    [appeared] = run_json("diff", data, "10")["groups"]
    assert (appeared["kind"], appeared["change"]) == ("consumer", "appeared")
    assert appeared["members_joined"] == ["m1", "m2"]
    text = run("diff", data, "15").stdout
    assert "new (consumer group): changed" in text and "  epoch 1 -> 2" in text and "  member m2 joined" in text
    assert "member m1: state stable -> unrevoked_partitions" in text
    assert run_json("diff", data, "end")["groups"] == []


def test_state_after_members_leave(data: Path) -> None:
    consumer_group(data)
    key = member("m1")[0]
    append(data, (has(data, "m1", 0)[0], None), (is_to_have(data, "m1")[0], None), (key, None))
    [group] = run_json("state", data)["other_groups"]
    assert [m["member_id"] for m in group["members"]] == ["m2"]
    [change] = run_json("diff", data, "21")["groups"]
    assert change["members_left"] == ["m1"]
    append(
        data,
        (member("m2")[0], None),
        (ConsumerGroupRegularExpressionKey("new", "ord.*"), None),
        (ConsumerGroupTargetAssignmentMetadataKey("new"), None),
        (ConsumerGroupMetadataKey("new"), None),
        (OffsetCommitKey("new", "orders", 0), None),
    )
    document = run_json("state", data)
    assert document["other_groups"] == [] and [g["group"] for g in document["groups"]] == ["workers"]
    [change] = run_json("diff", data, "21")["groups"]
    assert change["change"] == "went" and change["members_left"] == ["m1", "m2"]


def test_share_and_streams_groups(data: Path) -> None:
    parts = [share_current.TopicPartitions(id_bytes(data), [1])]
    tasks = [streams_current.TaskIds("0", [0, 1])]
    append(
        data,
        (ShareGroupMetadataKey("pool"), ShareGroupMetadataValue(7)),
        (
            ShareGroupMemberMetadataKey("pool", "s1"),
            ShareGroupMemberMetadataValue(None, "app", "/10.0.0.2", ["orders"]),
        ),
        (
            share_current.ShareGroupCurrentMemberAssignmentKey("pool", "s1"),
            share_current.ShareGroupCurrentMemberAssignmentValue(7, 6, 0, parts),
        ),
        (StreamsGroupMetadataKey("flow"), StreamsGroupMetadataValue(3, 0, 2)),
        (StreamsGroupTopologyKey("flow"), StreamsGroupTopologyValue(2)),
        (
            StreamsGroupMemberMetadataKey("flow", "t1"),
            StreamsGroupMemberMetadataValue(None, None, "app", "/10.0.0.3", 1000, 2, "process"),
        ),
        (
            streams_current.StreamsGroupCurrentMemberAssignmentKey("flow", "t1"),
            streams_current.StreamsGroupCurrentMemberAssignmentValue(3, 2, 2, active_tasks=tasks),
        ),
        (
            streams_target.StreamsGroupTargetAssignmentMemberKey("flow", "t1"),
            streams_target.StreamsGroupTargetAssignmentMemberValue([streams_target.TaskIds("0", [0])]),
        ),
    )
    flow, pool = run_json("state", data)["other_groups"]
    assert (pool["kind"], pool["epoch"], pool["members"][0]["member_epoch"]) == ("share", 7, 7)
    assert pool["members"][0]["assignment"]["assigned_partitions"][0]["topic"] == "orders"
    assert (flow["kind"], flow["epoch"], flow["validated_topology_epoch"]) == ("streams", 3, 2)
    assert flow["topology"] == {"epoch": 2, "subtopologies": []}
    [task] = flow["members"]
    assert (task["process_id"], task["topology_epoch"], task["state"]) == ("process", 2, "unrevoked_tasks")
    assert task["target"]["active_tasks"] == [{"subtopology_id": "0", "partitions": [0]}]
    text = " ".join(run("state", data).stdout.split())
    assert "pool: a share group, epoch 7" in text and "subscribed to orders, assigned orders-1" in text
    assert "flow: a streams group, epoch 3" in text and "assigned 0-0 0-1, target 0-0" in text
    kinds = {change["group"]: change["kind"] for change in run_json("diff", data, "10")["groups"]}
    assert kinds == {"pool": "share", "flow": "streams"}


def test_an_id_that_goes_to_a_group_of_another_kind(data: Path) -> None:
    append(data, (ShareGroupMetadataKey("x"), ShareGroupMetadataValue(1)))
    append(data, (ShareGroupMetadataKey("x"), None), (ConsumerGroupMetadataKey("x"), ConsumerGroupMetadataValue(5)))
    [group] = run_json("state", data)["other_groups"]
    assert (group["kind"], group["epoch"]) == ("consumer", 5)
    [change] = run_json("diff", data, "11")["groups"]
    assert change["fields"]["kind"] == {"from": "share", "to": "consumer"}
