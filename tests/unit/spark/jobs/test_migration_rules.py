"""Rules of a migration, and what they make of groups, topics and conflicts: without Spark."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.serde import decode_record, encode_record
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.share_group_metadata import ShareGroupMetadataKey, ShareGroupMetadataValue
from kcoord.spark.jobs.migrate import decide, detail_records, write_lines
from kcoord.spark.jobs.migration_details import DETAILS, detail
from kcoord.spark.jobs.migration_rules import BadRules, Rules, Verdict, load_rules, parse_rules

TOML = r"""
[[cluster]]
name = "east"
logs = "east/.*"
[[group]]
match = "test-.*"
drop = true
[[group]]
match = "(?P<name>.*)-v1"
cluster = "east"
rename = 'shop.\g<name>'
[[group]]
match = "(.*)-v1"
rename = '\1'
[[topic]]
match = "tmp.*"
drop = true
[[topic]]
match = "orders"
rename = "shop.orders"
[[conflict]]
match = "billing"
winner = "east"
[[conflict]]
match = "b.*"
winner = "newest"
"""


def rules(text: str = TOML) -> Rules:
    import tomllib

    return parse_rules(tomllib.loads(text))


@pytest.mark.parametrize(
    ("cluster", "group", "name", "why"),
    [
        ("east", "test-1", None, "group rule 1"),
        ("east", "pay-v1", "shop.pay", "group rule 2"),
        ("west", "pay-v1", "pay", "group rule 3"),
        ("west", "pay-v1x", "pay-v1x", ""),
        ("west", "a-test-1", "a-test-1", ""),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_counts(
    cluster: str, group: str, name: str | None, why: str
) -> None:
    assert rules().group(cluster, group) == Verdict(name, why)


def test_names_that_cannot_be() -> None:
    assert rules().group("west", "-v1").problem == "group rule 3: the new name has 0 bytes"
    found = parse_rules({"topic": [{"match": "(.*)", "rename": "a b"}]}).topic("east", "orders")
    assert found == Verdict("orders", "topic rule 1", "topic rule 1: 'a b' is not a topic name")
    # A name that stays is not looked at: it is there already.
    assert parse_rules({}).topic("east", "odd name") == Verdict("odd name", "")


def test_logs_are_separate_clusters_unless_a_rule_joins_them() -> None:
    assert [rules().cluster_of(log) for log in ("east/broker-1", "east/broker-2", "west")] == [
        "east",
        "east",
        "west",
    ]


def test_what_no_rule_matches_may_be_dropped() -> None:
    only = parse_rules({"unmatched": "drop", "group": [{"match": "pay"}]})
    assert only.group("east", "pay") == Verdict("pay", "group rule 1")
    assert only.group("east", "other") == Verdict(None, "no rule matches")


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "rules are a table"),
        ({"groups": []}, "there is no groups; there are unmatched, cluster, group, topic, conflict"),
        ({"unmatched": "no"}, "unmatched is keep or drop, not 'no'"),
        ({"group": {"match": "a"}}, "group is a list of tables: [[group]]"),
        ({"group": ["a"]}, "group rule 1 is not a table"),
        ({"group": [{"match": "a"}, {"rename": "b"}]}, "group rule 2 needs match, a text"),
        (
            {"group": [{"match": "a", "to": "b"}]},
            "group rule 1 has no to; there are match, cluster, rename, drop",
        ),
        (
            {"topic": [{"match": "("}]},
            "topic rule 1: match '(': missing ), unterminated subpattern at position 0",
        ),
        (
            {"topic": [{"match": "a", "rename": "\\1"}]},
            "topic rule 1: rename '\\\\1': invalid group reference 1",
        ),
        ({"topic": [{"match": "a", "rename": "\\g<x>"}]}, "unknown group name 'x'"),
        ({"topic": [{"match": "a", "rename": "b", "drop": True}]}, "topic rule 1 has both rename and drop"),
        ({"topic": [{"match": "a", "drop": "yes"}]}, "topic rule 1: drop is true or false, not 'yes'"),
        ({"conflict": [{"match": "a"}]}, "conflict rule 1 needs winner, a text"),
        ({"cluster": [{"name": "a", "logs": 3}]}, "cluster rule 1 needs logs, a text"),
    ],
)
def test_rules_that_are_refused(document: Any, text: str) -> None:
    with pytest.raises(BadRules) as caught:
        parse_rules(document)
    assert text in str(caught.value)


def test_rules_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(TOML)
    assert load_rules(str(tmp_path / "a.toml")) == rules()
    (tmp_path / "a.json").write_text(json.dumps({"group": [{"match": "a", "drop": True}]}))
    assert load_rules(str(tmp_path / "a.json")).group("east", "a").name is None
    for name, text in (("bad.toml", "[[group"), ("bad.json", "{"), ("wrong.toml", "a = 1")):
        (tmp_path / name).write_text(text)
        with pytest.raises(BadRules, match=name):
            load_rules(str(tmp_path / name))


# --- conflicts


def source(cluster: str, group: str, commit_ms: int | None = 5, wrong: bool = False) -> dict[str, Any]:
    return {"cluster": cluster, "group_id": group, "commit_ms": commit_ms, "wrong": wrong, "why": "why"}


def actions(new_group: str, *sources: dict[str, Any]) -> list[str]:
    return [action for _, _, _, action, _ in decide(new_group, list(sources), rules())]


def test_groups_without_a_rival() -> None:
    assert decide("pay", [source("west", "pay")], rules()) == [("west", "pay", "pay", "kept", "why")]
    assert actions("pay", source("west", "pay-v1")) == ["renamed"]
    assert actions("pay", source("west", "pay", wrong=True)) == ["conflict"]


def test_two_groups_of_one_name_are_a_conflict_unless_a_rule_names_the_winner() -> None:
    found = decide("pay", [source("east", "pay"), source("west", "pay-v1")], rules())
    text = "2 groups would be pay: pay of east, pay-v1 of west"
    assert found == [
        ("east", "pay", "pay", "conflict", text),
        ("west", "pay-v1", "pay", "conflict", text),
    ]
    assert actions("billing", source("east", "billing"), source("west", "billing")) == ["kept", "dropped"]
    assert actions("bank", source("east", "bank", 5), source("west", "bank-v1", 6)) == ["dropped", "renamed"]
    assert actions("bank", source("east", "bank", None), source("west", "bank", 0)) == ["dropped", "kept"]


def test_rules_for_conflicts_that_do_not_help() -> None:
    found = decide("billing", [source("north", "billing"), source("west", "billing")], rules())
    assert [row[3] for row in found] == ["conflict", "conflict"]
    assert found[0][4].endswith("; conflict rule 1 (east) fits 0 of them")
    assert actions("bank", source("east", "bank", 5), source("west", "bank", 5)) == ["conflict", "conflict"]


# --- records


def details(key: Any, value: Any, cluster: str = "west") -> dict[str, Any]:
    row = detail(rules(), cluster, 77, *encode_record(key, value))
    assert row is not None
    return dict(zip(DETAILS.names, row, strict=True))


def migrated(row: dict[str, Any]) -> list[tuple[int, Any, Any]]:
    return [(time, *decode_record(*encode_record(key, value))) for time, key, value in detail_records(row)]


def test_offsets_lose_what_is_the_old_clusters() -> None:
    row = details(OffsetCommitKey("pay-v1", "orders", 3), OffsetCommitValue(9, 4, "note", 50, -1, bytes(range(16))))
    assert (row["new_group"], row["new_topic"], row["is_dropped"], row["why"]) == (
        "pay", "shop.orders", False, "group rule 3",
    )  # fmt: skip
    [(time, key, value)] = migrated(row)
    assert (time, key.group, key.topic, key.partition) == (50, "pay", "shop.orders", 3)
    assert (value.offset, value.leader_epoch, value.metadata, value.commit_timestamp) == (9, -1, "note", 50)
    assert value.topic_id == bytes(16)
    expiring = details(OffsetCommitKey("pay", "orders", 3), OffsetCommitValue(9, -1, "", 50, 90))
    assert migrated(expiring)[0][2].expire_timestamp == 90
    assert details(OffsetCommitKey("pay", "tmp1", 3), OffsetCommitValue(9))["is_dropped"]


def test_groups_keep_their_generation_and_are_empty() -> None:
    row = details(GroupMetadataKey("pay-v1"), GroupMetadataValue("connect", 12, "p", "m", 60, []))
    [(time, key, value)] = migrated(row)
    assert (time, key.group, value.protocol_type, value.generation) == (60, "pay", "connect", 12)
    assert (value.protocol, value.leader, value.members, value.current_state_timestamp) == (
        None,
        None,
        [],
        60,
    )
    share = details(ShareGroupMetadataKey("pay-v1"), ShareGroupMetadataValue(3))
    assert share["kind"] == "share" and migrated(share) == []


def test_lines_for_kafkas_tool() -> None:
    file = io.StringIO()
    assert write_lines([("pay", "orders", 0, 5), ("a,b", "orders", 1, 6)], file) == 2
    assert file.getvalue() == 'pay,orders,0,5\n"a,b",orders,1,6\n'
