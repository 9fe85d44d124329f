"""Kafka's own command line tools against the server, and its log dumper on the server's files.

What they must print was taken from a real broker: `pytest tests/interop/test_tools.py --target=kafka` passes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kcoord.protocol import apis
from tests.interop import tools
from tests.interop.conftest import Target
from tests.interop.dump import dump


@pytest.fixture(scope="module")
def at(target: Target) -> list[str]:
    """The arguments that name the server."""
    return ["--bootstrap-server", target.bootstrap]


def create(at: list[str], topic: str, partitions: int = 1) -> None:
    made = tools.run(tools.TOPICS, *at, "--create", "--topic", topic, "--partitions", str(partitions))
    assert made.code == 0, made


def fill(at: list[str], topic: str, count: int) -> None:
    sent = tools.run(tools.CONSOLE_PRODUCER, *at, "--topic", topic, stdin="".join(f"line {i}\n" for i in range(count)))
    assert sent.code == 0, sent


def consume(at: list[str], topic: str, group: str, count: int) -> tools.Result:
    arguments = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", str(count)]
    return tools.run(tools.CONSOLE_CONSUMER, *at, *arguments, "--timeout-ms", "20000")


def offsets(at: list[str], group: str) -> dict[str, list[str]]:
    """[committed, end, lag] by "topic-partition"."""
    described = tools.run(tools.GROUPS, *at, "--describe", "--group", group, "--offsets")
    assert described.code == 0, described
    return {
        f"{row['TOPIC']}-{row['PARTITION']}": [row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]]
        for row in described.table()
    }


def reset(at: list[str], group: str, *arguments: str) -> dict[str, str]:
    """The table of new offsets by "topic-partition"."""
    done = tools.run(tools.GROUPS, *at, "--reset-offsets", "--group", group, *arguments)
    assert done.code == 0, done
    assert "Error" not in done.out, done
    return {f"{row['TOPIC']}-{row['PARTITION']}": row["NEW-OFFSET"] for row in done.table()}


def test_topics(at: list[str]) -> None:
    create(at, "tools-topics", 2)
    again = tools.run(tools.TOPICS, *at, "--create", "--topic", "tools-topics")
    assert again.code == 1
    assert "Topic 'tools-topics' already exists." in again.out
    fine = tools.run(tools.TOPICS, *at, "--create", "--topic", "tools-topics", "--if-not-exists")
    assert fine.code == 0, fine
    more = tools.run(tools.TOPICS, *at, "--alter", "--topic", "tools-topics", "--partitions", "3")
    assert more.code == 0, more
    fewer = tools.run(tools.TOPICS, *at, "--alter", "--topic", "tools-topics", "--partitions", "1")
    assert fewer.code == 1, fewer
    described = tools.run(tools.TOPICS, *at, "--describe", "--topic", "tools-topics")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1", described.out), described
    assert len(re.findall(r"Leader: 1\s+Replicas: 1\s+Isr: 1", described.out)) == 3, described
    assert "tools-topics" in tools.run(tools.TOPICS, *at, "--list").lines
    assert tools.run(tools.TOPICS, *at, "--delete", "--topic", "tools-topics").code == 0
    assert "tools-topics" not in tools.run(tools.TOPICS, *at, "--list").lines
    assert tools.run(tools.TOPICS, *at, "--describe", "--topic", "tools-topics").code == 1


def test_configs(at: list[str]) -> None:
    create(at, "tools-configs")
    entity = ["--entity-type", "topics", "--entity-name", "tools-configs"]
    settings = "retention.ms=5000,cleanup.policy=compact"
    changed = tools.run(tools.CONFIGS, *at, "--alter", *entity, "--add-config", settings)
    assert "Completed updating config for topic tools-configs." in changed.out, changed
    shown = tools.run(tools.CONFIGS, *at, "--describe", *entity).out
    assert "retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000" in shown
    assert "cleanup.policy=compact" in shown
    tools.run(tools.CONFIGS, *at, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in tools.run(tools.CONFIGS, *at, "--describe", *entity).out
    refused = tools.run(tools.CONFIGS, *at, "--alter", *entity, "--add-config", "retention.ms=soon")
    assert refused.code == 1, refused


def test_verifiable_producer_and_consumer(at: list[str]) -> None:
    create(at, "tools-verify", 3)
    sent = tools.run(tools.VERIFIABLE_PRODUCER, *at, "--topic", "tools-verify", "--max-messages", "500", "--acks", "-1")
    events = [json.loads(line) for line in sent.lines]
    assert sum(event["name"] == "producer_send_success" for event in events) == 500
    assert next(event for event in events if event["name"] == "tool_data")["acked"] == 500
    arguments = ["--topic", "tools-verify", "--group-id", "tools-verify", "--max-messages", "500"]
    got = tools.run(tools.VERIFIABLE_CONSUMER, *at, *arguments)
    events = [json.loads(line) for line in got.lines]
    read = [event for event in events if event["name"] == "records_consumed"]
    assert sum(event["count"] for event in read) == 500
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert commits
    assert all(event["success"] for event in commits)


def test_performance_tools(at: list[str]) -> None:
    create(at, "tools-perf", 2)
    arguments = ["--topic", "tools-perf", "--num-records", "20000", "--record-size", "200", "--throughput", "-1"]
    sent = tools.run(tools.PRODUCER_PERFORMANCE, *at, *arguments)
    assert re.match(r"20000 records sent, [\d.]+ records/sec", sent.lines[-1]), sent
    got = tools.run(tools.CONSUMER_PERFORMANCE, *at, "--topic", "tools-perf", "--num-records", "20000")
    assert got.lines[-1].split(", ")[4] == "20000", got


def test_an_empty_group(at: list[str]) -> None:
    create(at, "tools-empty", 2)
    fill(at, "tools-empty", 10)
    got = consume(at, "tools-empty", "tools-empty", 10)
    assert sorted(got.lines) == sorted(f"line {i}" for i in range(10)), got
    assert "tools-empty" in tools.run(tools.GROUPS, *at, "--list").lines
    states = {row["GROUP"]: row["STATE"] for row in tools.run(tools.GROUPS, *at, "--list", "--state").table()}
    assert states["tools-empty"] == "Empty"
    types = {row["GROUP"]: row["TYPE"] for row in tools.run(tools.GROUPS, *at, "--list", "--type").table()}
    assert types["tools-empty"] == "Classic"
    listing = {row["GROUP"]: row for row in tools.run(tools.GROUP_LISTING, *at, "--list").table()}
    assert listing["tools-empty"] == {"GROUP": "tools-empty", "TYPE": "Classic", "PROTOCOL": "consumer"}
    committed = offsets(at, "tools-empty")
    assert sum(int(row[0]) for row in committed.values()) == 10
    assert {row[2] for row in committed.values()} == {"0"}
    members = tools.run(tools.GROUPS, *at, "--describe", "--group", "tools-empty", "--members")
    assert members.table() == []
    assert "Consumer group 'tools-empty' has no active members." in members.err
    state = tools.run(tools.GROUPS, *at, "--describe", "--group", "tools-empty", "--state").lines[1].split()
    assert state[-3:] == ["-", "Empty", "0"], state


def test_a_stable_group(at: list[str]) -> None:
    create(at, "tools-stable", 2)
    fill(at, "tools-stable", 6)
    group = ["--group", "tools-stable"]
    options = ["--topic", "tools-stable", *group, "--from-beginning"]
    options += ["--consumer-property", "auto.commit.interval.ms=200"]
    with tools.running(tools.CONSOLE_CONSUMER, *at, *options):
        listed = tools.until(
            "a stable group",
            lambda: tools.run(tools.GROUPS, *at, "--list", "--state", "stable"),
            lambda result: "tools-stable" in result.out,
        )
        assert [row["STATE"] for row in listed.table() if row["GROUP"] == "tools-stable"] == ["Stable"]
        tools.until(
            "commits",
            lambda: tools.run(tools.GROUPS, *at, "--describe", *group),
            lambda result: len(result.table()) == 2 and all(row["LAG"] == "0" for row in result.table()),
        )
        rows = tools.run(tools.GROUPS, *at, "--describe", *group).table()
        assert {row["CLIENT-ID"] for row in rows} == {"console-consumer"}
        assert {row["HOST"] for row in rows} == {"/127.0.0.1"}
        assert len({row["CONSUMER-ID"] for row in rows}) == 1
        members = tools.run(tools.GROUPS, *at, "--describe", *group, "--members", "--verbose").table()
        assert [(row["#PARTITIONS"], row["CURRENT-ASSIGNMENT"]) for row in members] == [("2", "tools-stable:0,1")]
        state = tools.run(tools.GROUPS, *at, "--describe", *group, "--state").lines[1].split()
        assert state[-3:] == ["range", "Stable", "1"], state
        refused = tools.run(tools.GROUPS, *at, "--reset-offsets", *group, "--all-topics", "--to-earliest", "--execute")
        assert "Assignments can only be reset if the group 'tools-stable' is inactive" in refused.out, refused
        refused = tools.run(tools.GROUPS, *at, "--delete", *group)
        assert "GroupNotEmptyException" in refused.out, refused
        refused = tools.run(tools.GROUPS, *at, "--delete-offsets", *group, "--topic", "tools-stable")
        assert "GroupSubscribedToTopicException" in refused.out, refused


def test_reset_offsets(at: list[str], tmp_path: Path) -> None:
    create(at, "tools-reset")
    fill(at, "tools-reset", 10)
    assert len(consume(at, "tools-reset", "tools-reset", 10).lines) == 10
    topic = ["--topic", "tools-reset"]

    def new(*arguments: str) -> str:
        return reset(at, "tools-reset", *topic, *arguments)["tools-reset-0"]

    assert new("--to-earliest", "--dry-run") == "0"
    assert offsets(at, "tools-reset")["tools-reset-0"] == ["10", "10", "0"]
    assert new("--to-earliest", "--execute") == "0"
    assert offsets(at, "tools-reset")["tools-reset-0"] == ["0", "10", "10"]
    assert new("--shift-by", "4", "--execute") == "4"
    assert new("--shift-by", "-100", "--dry-run") == "0"
    assert new("--to-offset", "7", "--dry-run") == "7"
    assert new("--to-latest", "--dry-run") == "10"
    assert new("--to-current", "--dry-run") == "4"
    assert new("--to-datetime", "2020-01-01T00:00:00.000", "--dry-run") == "0"
    assert new("--by-duration", "PT1H", "--dry-run") == "0"
    arguments = ["--reset-offsets", "--group", "tools-reset", *topic, "--to-current", "--export", "--dry-run"]
    exported = tools.run(tools.GROUPS, *at, *arguments)
    assert exported.lines == ["tools-reset,0,4"], exported
    plan = tmp_path / "plan.csv"
    plan.write_text("tools-reset,0,6\n")
    assert reset(at, "tools-reset", "--from-file", str(plan), "--execute") == {"tools-reset-0": "6"}
    assert offsets(at, "tools-reset")["tools-reset-0"] == ["6", "10", "4"]
    rest = consume(at, "tools-reset", "tools-reset", 4)
    assert rest.lines == [f"line {i}" for i in range(6, 10)], rest


def test_deletion(at: list[str]) -> None:
    create(at, "tools-delete", 2)
    fill(at, "tools-delete", 4)
    consume(at, "tools-delete", "tools-delete", 4)
    assert set(offsets(at, "tools-delete")) == {"tools-delete-0", "tools-delete-1"}
    done = tools.run(tools.GROUPS, *at, "--delete-offsets", "--group", "tools-delete", "--topic", "tools-delete:1")
    assert "Request succeeded for deleting offsets from group tools-delete." in done.out, done
    assert set(offsets(at, "tools-delete")) == {"tools-delete-0"}
    done = tools.run(tools.GROUPS, *at, "--delete", "--group", "tools-delete", "--group", "tools-nobody")
    assert "These consumer groups were deleted successfully: 'tools-delete'" in done.out, done
    assert "* Group 'tools-nobody' could not be deleted" in done.out, done
    assert "GroupIdNotFoundException" in done.out, done
    assert "tools-delete" not in tools.run(tools.GROUPS, *at, "--list").lines


def test_offsets_and_deleted_records(at: list[str], tmp_path: Path) -> None:
    create(at, "tools-offsets")
    fill(at, "tools-offsets", 5)
    topic = ["--topic", "tools-offsets"]
    assert tools.run(tools.GET_OFFSETS, *at, *topic).lines == ["tools-offsets:0:5"]
    plan = tmp_path / "records.json"
    part = {"topic": "tools-offsets", "partition": 0, "offset": 3}
    plan.write_text(json.dumps({"partitions": [part], "version": 1}))
    done = tools.run(tools.DELETE_RECORDS, *at, "--offset-json-file", str(plan))
    assert "low_watermark: 3" in done.out, done
    assert tools.run(tools.GET_OFFSETS, *at, *topic, "--time", "earliest").lines == ["tools-offsets:0:3"]


def test_log_dirs(at: list[str]) -> None:
    create(at, "tools-dirs", partitions=2)
    fill(at, "tools-dirs", 5)
    described = tools.run(tools.LOG_DIRS, *at, "--describe", "--topic-list", "tools-dirs")
    assert described.code == 0, described
    (broker,) = json.loads(described.lines[-1])["brokers"]
    (log_dir,) = broker["logDirs"]
    assert log_dir["error"] is None and Path(log_dir["logDir"]).is_absolute()
    partitions = {p["partition"]: p for p in log_dir["partitions"]}
    assert sorted(partitions) == ["tools-dirs-0", "tools-dirs-1"]
    assert sum(p["size"] for p in partitions.values()) > 0
    assert all(p["offsetLag"] == 0 and not p["isFuture"] for p in partitions.values())


def test_cluster_tools(at: list[str], target: Target) -> None:
    assert re.match(r"Cluster ID: [\w-]{22}$", tools.run(tools.CLUSTER, "cluster-id", *at).lines[0])
    shown = tools.run(tools.API_VERSIONS, *at).out
    assert shown.startswith(f"{target.bootstrap} (id: 1 ")
    for line in ("Produce(0): 0 to 13 [usable: 13]", "JoinGroup(11): 0 to 9 [usable: 9]", "OffsetFetch(9): 1 to 10"):
        assert line in shown, line


def test_features_are_described(at: list[str]) -> None:
    lines = tools.run(tools.FEATURES, *at, "describe").lines
    found = {line.split()[1]: " ".join(line.split()[2:]) for line in lines}
    levels = "SupportedMinVersion: {} SupportedMaxVersion: {} FinalizedVersionLevel: {} Epoch: "
    assert found["metadata.version"].startswith(levels.format("3.3-IV3", "4.3-IV0", "4.3-IV0"))
    expected = {"metadata.version", "transaction.version"}
    assert found["transaction.version"].startswith(levels.format(0, 2, 2))
    if apis.APIS[apis.CONSUMER_GROUP_HEARTBEAT].served:
        expected.add("group.version")
        assert found["group.version"].startswith(levels.format(0, 1, 1))
    assert set(found) == expected


def test_configs_of_a_group(at: list[str]) -> None:
    group = ("--entity-type", "groups", "--entity-name", "tools-configs")
    session = "consumer.session.timeout.ms"
    done = tools.run(tools.CONFIGS, *at, "--alter", *group, "--add-config", f"{session}=50000")
    assert done.code == 0, done
    shown = tools.run(tools.CONFIGS, *at, "--describe", *group).out
    assert f"{session}=50000 " in shown and "heartbeat" not in shown
    shown = tools.run(tools.CONFIGS, *at, "--describe", "--all", *group).out
    assert "consumer.heartbeat.interval.ms=5000 " in shown
    done = tools.run(tools.CONFIGS, *at, "--alter", *group, "--add-config", f"{session}=70000")
    assert done.code != 0 and "group.consumer.max.session.timeout.ms" in done.out + done.err
    done = tools.run(tools.CONFIGS, *at, "--alter", *group, "--delete-config", session)
    assert done.code == 0, done
    assert session not in tools.run(tools.CONFIGS, *at, "--describe", *group).out


def test_log_dumper_reads_the_offsets_topic(at: list[str], target: Target) -> None:
    create(at, "tools-dump")
    fill(at, "tools-dump", 3)
    consume(at, "tools-dump", "tools-dump", 3)
    records = dump("--offsets-decoder", target.data / "__consumer_offsets-0" / f"{0:020d}.log")
    mine = [record for record in records if record["key"] and record["key"]["data"].get("group") == "tools-dump"]
    groups = [record["payload"]["data"] for record in mine if record["key"]["type"] == "2"]
    commits = [record["payload"]["data"] for record in mine if record["key"]["type"] == "1"]
    assert [group["generation"] for group in groups][-2:] == [1, 2]
    assert groups[-2]["members"][0]["clientId"] == "console-consumer"
    assert groups[-1]["members"] == []
    assert commits[-1]["offset"] == 3


def test_log_dumper_reads_the_metadata_and_the_data(at: list[str], target: Target) -> None:
    create(at, "tools-dump-data")
    fill(at, "tools-dump-data", 3)
    log = f"{0:020d}.log"
    metadata = dump("--cluster-metadata-decoder", target.data / "__cluster_metadata-0" / log)
    named = [record["payload"]["data"].get("name") for record in metadata if isinstance(record["payload"], dict)]
    assert "tools-dump-data" in named
    records = dump("--print-data-log", target.data / "tools-dump-data-0" / log)
    assert [record["payload"] for record in records] == ["line 0", "line 1", "line 2"]
