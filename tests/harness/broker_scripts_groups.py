"""Scripts about groups and offsets."""

from __future__ import annotations

from typing import Any

from tests.harness.schema_json import ZERO_UUID
from tests.harness.script_steps import (
    b64,
    commit_request,
    create_topic,
    join_request,
    protocol,
    stable_member,
    versions,
    wait_for_coordinator,
)
from tests.harness.session import Session


def list_groups(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "listing")
    for version in versions("ListGroups"):
        s.call("list when there are none", "ListGroups", version, {})
    s.call("a standalone commit makes an empty group", "OffsetCommit", 8, commit_request("list-empty", "listing"))
    stable_member(s, "list-stable", on="b")
    stable_member(s, "list-connect", on="c", protocolType="connect")
    first = s.call("a group that waits for its sync", "JoinGroup", 4, join_request("list-completing"), on="d")
    s.call("join", "JoinGroup", 4, join_request("list-completing", first["memberId"]), on="d")
    s.call("a group with a pending member only", "JoinGroup", 4, join_request("list-pending"), on="e")
    for version in versions("ListGroups"):
        s.call("list all", "ListGroups", version, {})
    for version in (4, 5):
        for states in (
            ["Stable"],
            ["stable"],
            ["EMPTY"],
            ["CompletingRebalance"],
            ["PreparingRebalance"],
            ["Dead"],
            ["Nope"],
            [""],
        ):
            s.call(f"list states {states}", "ListGroups", version, {"statesFilter": states})
        s.call("list two states", "ListGroups", version, {"statesFilter": ["Stable", "Empty", "Nope"]})
    for types in (
        ["classic"],
        ["Classic"],
        ["consumer"],
        ["share"],
        ["streams"],
        ["unknown"],
        ["nope"],
        ["classic", "consumer"],
    ):
        s.call(f"list types {types}", "ListGroups", 5, {"typesFilter": types})
    s.call("list state and type", "ListGroups", 5, {"statesFilter": ["Empty"], "typesFilter": ["classic"]})
    s.call("list state and other type", "ListGroups", 5, {"statesFilter": ["Empty"], "typesFilter": ["consumer"]})


def describe_groups(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "describing")
    for version in versions("DescribeGroups"):
        s.call("an unknown group", "DescribeGroups", version, {"groups": ["describe-nobody"]})
    s.call("commit", "OffsetCommit", 8, commit_request("describe-empty", "describing"))
    stable_member(s, "describe-stable", on="b", groupInstanceId=None)
    stable_member(s, "describe-connect", on="c", protocolType="connect")
    first = s.call(
        "first join", "JoinGroup", 5, join_request("describe-completing", groupInstanceId="static-1"), on="d"
    )
    assert first["errorCode"] == 0
    s.call("a group with a pending member only", "JoinGroup", 4, join_request("describe-pending"), on="e")
    names = ["describe-empty", "describe-stable", "describe-connect", "describe-completing", "describe-pending"]
    for version in versions("DescribeGroups"):
        s.call("all kinds", "DescribeGroups", version, {"groups": names})
    s.call("no groups", "DescribeGroups", 5, {"groups": []})
    s.call("the same twice", "DescribeGroups", 5, {"groups": ["describe-empty", "describe-empty"]})
    s.call("known, unknown, empty", "DescribeGroups", 6, {"groups": ["describe-empty", "describe-nobody", ""]})
    for version in (3, 5, 6):
        request = {"groups": ["describe-stable", "describe-nobody"], "includeAuthorizedOperations": True}
        s.call("authorized operations", "DescribeGroups", version, request)


def empty_group_id(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "nameless")
    for version in versions("JoinGroup"):
        s.call("join", "JoinGroup", version, join_request(""))
    for version in versions("SyncGroup"):
        s.call("sync", "SyncGroup", version, {"groupId": "", "generationId": 1, "memberId": "m"})
    for version in versions("Heartbeat"):
        s.call("heartbeat", "Heartbeat", version, {"groupId": "", "generationId": 1, "memberId": "m"})
    for version in versions("LeaveGroup"):
        s.call("leave", "LeaveGroup", version, {"groupId": "", "memberId": "m", "members": [{"memberId": "m"}]})
    for version in versions("OffsetFetch"):
        s.call("fetch before any commit", "OffsetFetch", version, fetch_request("", "nameless", s))
    for version in versions("OffsetCommit"):
        s.call("commit", "OffsetCommit", version, with_ids(s, commit_request("", "nameless", offset=version)))
    for version in versions("OffsetFetch"):
        s.call("fetch after the commits", "OffsetFetch", version, fetch_request("", "nameless", s))
    s.call("list", "ListGroups", 5, {"statesFilter": ["Nope"]})
    for version in versions("DescribeGroups"):
        s.call("describe", "DescribeGroups", version, {"groups": [""]})
    deletion = {"groupId": "", "topics": [{"name": "nameless", "partitions": [{"partitionIndex": 0}]}]}
    s.call("delete offsets", "OffsetDelete", 0, deletion)
    for version in versions("DeleteGroups"):
        s.call("delete the group", "DeleteGroups", version, {"groupsNames": [""]})
    s.call(
        "commit as a member",
        "OffsetCommit",
        8,
        commit_request("", "nameless", generationIdOrMemberEpoch=1, memberId="m"),
    )


def with_ids(s: Session, request: dict[str, Any]) -> dict[str, Any]:
    """Adds topic ids (used from v10) beside the names of an OffsetCommit."""
    for topic in request["topics"]:
        topic["topicId"] = s.topic_ids.get(topic["name"], ZERO_UUID)
    return request


def fetch_request(group: str, topic: str | None, s: Session, partitions: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """An OffsetFetch that fits every version; topic None asks for all."""
    topics: list[dict[str, Any]] | None = None
    if topic is not None:
        topics = [{"name": topic, "partitionIndexes": list(partitions)}]
    by_id = None if topics is None else [{**topics[0], "topicId": s.topic_ids.get(topic or "", ZERO_UUID)}]
    return {"groupId": group, "topics": topics, "groups": [{"groupId": group, "topics": by_id}]}


def offset_fetch(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "fetching", 3)
    create_topic(s, "fetching-two")
    for version in versions("OffsetFetch"):
        s.call(
            "an unknown group, one topic", "OffsetFetch", version, fetch_request("of-nobody", "fetching", s, (0, 1, 7))
        )
        if version >= 2:
            s.call("an unknown group, all topics", "OffsetFetch", version, fetch_request("of-nobody", None, s))
        no_topics = {"groupId": "of-nobody", "topics": [], "groups": [{"groupId": "of-nobody", "topics": []}]}
        s.call("an unknown group, no topics", "OffsetFetch", version, no_topics)
    commit = commit_request(
        "of-empty",
        "fetching",
        1,
        42,
        topics=[
            {
                "name": "fetching",
                "partitions": [
                    {"partitionIndex": 1, "committedOffset": 42, "committedLeaderEpoch": 0, "committedMetadata": "m"},
                    {"partitionIndex": 2, "committedOffset": 0, "committedMetadata": None},
                ],
            },
            {
                "name": "fetching-two",
                "partitions": [{"partitionIndex": 0, "committedOffset": 7, "committedMetadata": ""}],
            },
        ],
    )
    s.call("commit three partitions", "OffsetCommit", 8, commit)
    for version in versions("OffsetFetch"):
        s.call("one topic", "OffsetFetch", version, fetch_request("of-empty", "fetching", s, (0, 1, 2, 7, -1)))
        if version >= 2:
            s.call("all topics", "OffsetFetch", version, fetch_request("of-empty", None, s))
        s.call("an unknown topic", "OffsetFetch", version, fetch_request("of-empty", "of-no-such-topic", s))
        if version >= 7:
            s.call(
                "stable offsets",
                "OffsetFetch",
                version,
                {**fetch_request("of-empty", "fetching", s, (1,)), "requireStable": True},
            )
    twice = {"groupId": "of-empty", "topics": [{"name": "fetching", "partitionIndexes": [1, 1]}] * 2}
    s.call("the same partition twice", "OffsetFetch", 5, twice)
    for version in (8, 9, 10):
        topic = {"name": "fetching", "topicId": s.topic_ids["fetching"], "partitionIndexes": [1]}
        groups: list[dict[str, Any]] = [
            {"groupId": "of-empty", "topics": [topic]},
            {"groupId": "of-nobody", "topics": None},
            {"groupId": "", "topics": [topic]},
            {"groupId": "of-empty", "topics": None},
        ]
        s.call("several groups", "OffsetFetch", version, {"groups": groups})
        s.call("no groups", "OffsetFetch", version, {"groups": []})
    for version in (9, 10):
        for member, epoch in (("m", 1), (None, 1), ("m", -1), ("m", 0)):
            group = {"groupId": "of-empty", "memberId": member, "memberEpoch": epoch, "topics": None}
            s.call(
                f"an empty group with member {member} and epoch {epoch}", "OffsetFetch", version, {"groups": [group]}
            )
            s.call(
                "the same for an unknown group", "OffsetFetch", version, {"groups": [{**group, "groupId": "of-nobody"}]}
            )
    unknown = {
        "groupId": "of-empty",
        "topics": [
            {"topicId": "AAAAAAAAAAAAAAAAAAAAZQ", "partitionIndexes": [0, 1]},
            {"topicId": s.topic_ids["fetching"], "partitionIndexes": [1]},
            {"topicId": ZERO_UUID, "partitionIndexes": [0]},
        ],
    }
    s.call("unknown topic ids", "OffsetFetch", 10, {"groups": [unknown]})


def offset_commit(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "committing", 2)
    for version in versions("OffsetCommit"):
        s.call(
            "standalone", "OffsetCommit", version, with_ids(s, commit_request("oc-alone", "committing", offset=version))
        )
        s.call("an unknown topic", "OffsetCommit", version, with_ids(s, commit_request("oc-alone", "oc-no-such-topic")))
        s.call(
            "an unknown partition", "OffsetCommit", version, with_ids(s, commit_request("oc-alone", "committing", 9))
        )
        stranger: dict[str, Any] = {"generationIdOrMemberEpoch": 1, "memberId": "m"}
        s.call(
            "a generation of an unknown group",
            "OffsetCommit",
            version,
            with_ids(s, commit_request("oc-nobody", "committing", **stranger)),
        )
        s.call(
            "a generation of an empty group",
            "OffsetCommit",
            version,
            with_ids(s, commit_request("oc-alone", "committing", **stranger)),
        )
        s.call(
            "a member without generation",
            "OffsetCommit",
            version,
            with_ids(s, commit_request("oc-alone", "committing", memberId="m")),
        )
        s.call(
            "generation 0, no member",
            "OffsetCommit",
            version,
            with_ids(s, commit_request("oc-nobody", "committing", generationIdOrMemberEpoch=0)),
        )
        s.call(
            "no topics", "OffsetCommit", version, {"groupId": "oc-none", "generationIdOrMemberEpoch": -1, "topics": []}
        )
    for step, part in {
        "a negative offset": {"partitionIndex": 0, "committedOffset": -1},
        "a very negative offset": {"partitionIndex": 0, "committedOffset": -99},
        "a negative partition": {"partitionIndex": -1, "committedOffset": 1},
        "metadata of 4096 bytes": {"partitionIndex": 0, "committedOffset": 1, "committedMetadata": "x" * 4096},
        "metadata of 4097 bytes": {"partitionIndex": 0, "committedOffset": 1, "committedMetadata": "x" * 4097},
        "null metadata": {"partitionIndex": 0, "committedOffset": 1, "committedMetadata": None},
        "a leader epoch from the future": {"partitionIndex": 0, "committedOffset": 1, "committedLeaderEpoch": 99},
        "an offset beyond the log": {"partitionIndex": 1, "committedOffset": 10**15},
    }.items():
        request = commit_request("oc-odd", "committing", topics=[{"name": "committing", "partitions": [part]}])
        s.call(step, "OffsetCommit", 8, request)
        s.call("and what is stored", "OffsetFetch", 7, fetch_request("oc-odd", "committing", s, (0, 1)))
    mixed = commit_request(
        "oc-mixed",
        "committing",
        topics=[
            {
                "name": "committing",
                "partitions": [
                    {"partitionIndex": 0, "committedOffset": 1},
                    {"partitionIndex": 9, "committedOffset": 1},
                ],
            },
            {"name": "oc-no-such-topic", "partitions": [{"partitionIndex": 0, "committedOffset": 1}]},
            {"name": "", "partitions": [{"partitionIndex": 0, "committedOffset": 1}]},
        ],
    )
    s.call("good and bad together", "OffsetCommit", 8, mixed)
    ids = [
        {"topicId": s.topic_ids["committing"], "partitions": [{"partitionIndex": 0, "committedOffset": 3}]},
        {"topicId": "AAAAAAAAAAAAAAAAAAAAZQ", "partitions": [{"partitionIndex": 0, "committedOffset": 3}]},
        {"topicId": ZERO_UUID, "partitions": [{"partitionIndex": 0, "committedOffset": 3}]},
    ]
    s.call(
        "topic ids, two of them unknown",
        "OffsetCommit",
        10,
        {"groupId": "oc-ids", "generationIdOrMemberEpoch": -1, "topics": ids},
    )
    s.call("a retention time", "OffsetCommit", 2, commit_request("oc-kept", "committing", retentionTimeMs=60000))
    member, generation = stable_member(s, "oc-stable", on="b")
    commits: dict[str, dict[str, Any]] = {
        "as the member": {"generationIdOrMemberEpoch": generation, "memberId": member},
        "with an old generation": {"generationIdOrMemberEpoch": generation - 1, "memberId": member},
        "with a later generation": {"generationIdOrMemberEpoch": generation + 1, "memberId": member},
        "as a stranger": {"generationIdOrMemberEpoch": generation, "memberId": "stranger"},
        "with an unknown instance": {
            "generationIdOrMemberEpoch": generation,
            "memberId": member,
            "groupInstanceId": "i",
        },
        "standalone": {},
        "as the member without a generation": {"memberId": member},
        "with the generation but no member": {"generationIdOrMemberEpoch": generation},
    }
    for step, fields in commits.items():
        for version in (2, 6, 8, 9, 10):
            if version < 7 and "groupInstanceId" in fields:
                continue
            s.call(
                f"stable group: {step}",
                "OffsetCommit",
                version,
                with_ids(s, commit_request("oc-stable", "committing", **fields)),
            )
    internal = commit_request("oc-internal", "__consumer_offsets")
    s.call("offsets of an internal topic", "OffsetCommit", 8, internal)


def offset_delete(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "od-topic", 2)
    create_topic(s, "od-other")

    def delete(step: str, group: str, topic: str, *partitions: int) -> None:
        listed = [{"partitionIndex": p} for p in partitions]
        s.call(step, "OffsetDelete", 0, {"groupId": group, "topics": [{"name": topic, "partitions": listed}]})

    delete("an unknown group", "od-nobody", "od-topic", 0)
    s.call("commit", "OffsetCommit", 8, commit_request("od-empty", "od-topic"))
    delete("an empty group, stored and not stored and unknown", "od-empty", "od-topic", 0, 1, 9)
    s.call("what is left", "OffsetFetch", 7, fetch_request("od-empty", None, s))
    delete("an unknown topic", "od-empty", "od-no-such-topic", 0)
    s.call("no topics", "OffsetDelete", 0, {"groupId": "od-empty", "topics": []})
    subscription = bytes.fromhex("0000000000010008") + b"od-topic" + bytes.fromhex("ffffffff")
    member, generation = stable_member(s, "od-stable", on="b", protocols=[protocol("range", subscription)])
    as_member: dict[str, Any] = {"generationIdOrMemberEpoch": generation, "memberId": member}
    s.call("commit as member", "OffsetCommit", 8, commit_request("od-stable", "od-topic", **as_member))
    s.call("commit another topic", "OffsetCommit", 8, commit_request("od-stable", "od-other", **as_member))
    delete("a subscribed topic", "od-stable", "od-topic", 0)
    delete("a topic that is not subscribed", "od-stable", "od-other", 0)
    stable_member(s, "od-connect", on="c", protocolType="connect")
    delete("a running group of another protocol type", "od-connect", "od-topic", 0)
    stable_member(s, "od-garbage", on="d")
    delete("a running group whose subscription cannot be read", "od-garbage", "od-topic", 0)


def delete_groups(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "dg-topic")
    for version in versions("DeleteGroups"):
        s.call("an unknown group", "DeleteGroups", version, {"groupsNames": ["dg-nobody"]})
        s.call("commit", "OffsetCommit", 8, commit_request("dg-empty", "dg-topic"))
        s.call("an empty group", "DeleteGroups", version, {"groupsNames": ["dg-empty"]})
        s.call("once more", "DeleteGroups", version, {"groupsNames": ["dg-empty"]})
        s.call("no groups", "DeleteGroups", version, {"groupsNames": []})
    s.call("its offsets are gone", "OffsetFetch", 7, fetch_request("dg-empty", None, s))
    stable_member(s, "dg-stable", on="b")
    s.call("commit", "OffsetCommit", 8, commit_request("dg-empty", "dg-topic"))
    s.call(
        "a mixture with doubles",
        "DeleteGroups",
        2,
        {"groupsNames": ["dg-stable", "dg-empty", "dg-nobody", "dg-empty", ""]},
    )
    first = s.call("a pending member", "JoinGroup", 4, join_request("dg-pending"), on="c")
    s.call("a group with a pending member only", "DeleteGroups", 2, {"groupsNames": ["dg-pending"]})
    s.call(
        "join with the member id of the deleted group",
        "JoinGroup",
        4,
        join_request("dg-pending", first["memberId"]),
        on="c",
    )


def unknown_members(s: Session) -> None:
    wait_for_coordinator(s)
    member, generation = stable_member(s, "um-stable", on="b")
    cases: dict[str, tuple[str, int, str, str | None]] = {
        "an unknown group": ("um-nobody", 1, "m", None),
        "an unknown group, no member id": ("um-nobody", 1, "", None),
        "an unknown member": ("um-stable", generation, "m", None),
        "an empty member id": ("um-stable", generation, "", None),
        "an old generation": ("um-stable", generation - 1, member, None),
        "a later generation": ("um-stable", generation + 1, member, None),
        "generation -1": ("um-stable", -1, member, None),
        "an unknown instance": ("um-stable", generation, member, "instance"),
        "all right": ("um-stable", generation, member, None),
    }
    for step, (group, number, who, instance) in cases.items():
        request = {"groupId": group, "generationId": number, "memberId": who, "groupInstanceId": instance}
        for api in ("Heartbeat", "SyncGroup"):
            for version in versions(api):
                if instance is None or version >= 3:
                    s.call(f"{api}: {step}", api, version, request)
    for version in versions("LeaveGroup"):
        for group in ("um-nobody", "um-stable"):
            request = {
                "groupId": group,
                "memberId": "m",
                "members": [
                    {"memberId": "m"},
                    {"memberId": "", "groupInstanceId": "i"},
                    {"memberId": "m", "groupInstanceId": "i"},
                ],
            }
            s.call("leave as a stranger", "LeaveGroup", version, request)
    for version in (3, 4, 5):
        s.call("leave with no members", "LeaveGroup", version, {"groupId": "um-stable", "members": []})
    s.call(
        "leave twice in one request",
        "LeaveGroup",
        5,
        {"groupId": "um-stable", "members": [{"memberId": member, "reason": "done"}, {"memberId": member}]},
    )
    s.call(
        "heartbeat after leaving",
        "Heartbeat",
        4,
        {"groupId": "um-stable", "generationId": generation, "memberId": member},
    )
    s.call("describe after leaving", "DescribeGroups", 5, {"groups": ["um-stable"]})


def join_errors(s: Session) -> None:
    wait_for_coordinator(s)
    for version in versions("JoinGroup"):
        s.call("session timeout too small", "JoinGroup", version, join_request("je", sessionTimeoutMs=5999))
        s.call("session timeout too large", "JoinGroup", version, join_request("je", sessionTimeoutMs=1800001))
        s.call("no protocols", "JoinGroup", version, join_request("je", protocols=[]))
        s.call("no protocol type", "JoinGroup", version, join_request("je", protocolType=""))
        s.call("an unknown member id in a new group", "JoinGroup", version, join_request("je-new", "stranger"))
        if version >= 4:
            s.call("no member id", "JoinGroup", version, join_request(f"je-two-step-{version}"), on="e")
    member, generation = stable_member(s, "je-stable", on="b")
    for version in versions("JoinGroup"):
        s.call("another protocol type", "JoinGroup", version, join_request("je-stable", protocolType="connect"))
        s.call(
            "no common protocol", "JoinGroup", version, join_request("je-stable", protocols=[protocol("roundrobin")])
        )
        s.call("an unknown member id", "JoinGroup", version, join_request("je-stable", "stranger"))
        if version >= 5:
            s.call(
                "an unknown member id with an instance id",
                "JoinGroup",
                version,
                join_request("je-stable", "stranger", groupInstanceId="i"),
            )
    s.call("rebalance timeout 0", "JoinGroup", 1, join_request("je-zero", rebalanceTimeoutMs=0), on="c")
    s.call("rebalance timeout negative", "JoinGroup", 1, join_request("je-negative", rebalanceTimeoutMs=-1), on="d")
    for version in (5, 6, 9):
        for step, name in {
            "empty": "",
            "a dot": ".",
            "two dots": "..",
            "with a space": "a b",
            "too long": "x" * 250,
        }.items():
            s.call(
                f"instance id {step}",
                "JoinGroup",
                version,
                join_request(f"je-instance-{version}-{len(name)}", groupInstanceId=name),
                on=f"i{version}{len(name)}",
            )
    for version in (0, 3, 5):
        sync: dict[str, Any] = {"groupId": "je-stable", "generationId": generation, "memberId": member}
        s.call("sync again in the stable group", "SyncGroup", version, sync, on="b")
    choices: list[tuple[str | None, str | None]] = [("consumer", "range"), ("connect", "range"), ("consumer", "sticky")]
    choices += [(None, None), ("consumer", None), (None, "range")]
    for kind, chosen in choices:
        sync = {
            "groupId": "je-stable",
            "generationId": generation,
            "memberId": member,
            "protocolType": kind,
            "protocolName": chosen,
        }
        s.call(f"sync v5 saying {kind} and {chosen}", "SyncGroup", 5, sync, on="b")


def two_members(s: Session) -> None:
    """The whole dance of two members, with what each sees on the way."""
    wait_for_coordinator(s)
    g = "two"
    ask = s.call("A asks for a member id", "JoinGroup", 9, join_request(g, reason="because"), on="a")
    a = ask["memberId"]
    joined = s.call(
        "A joins",
        "JoinGroup",
        9,
        join_request(g, a, protocols=[protocol("range", b"A1"), protocol("sticky", b"A2")]),
        on="a",
    )
    s.call("A beats before its sync", "Heartbeat", 4, beat(g, joined, a), on="a")
    early = with_ids(
        s, commit_request(g, "no-topic", topics=[], generationIdOrMemberEpoch=joined["generationId"], memberId=a)
    )
    s.call("A commits nothing before its sync", "OffsetCommit", 8, early, on="a")
    s.call(
        "A joins again with the same protocols",
        "JoinGroup",
        9,
        join_request(g, a, protocols=[protocol("range", b"A1"), protocol("sticky", b"A2")]),
        on="a",
    )
    s.call("A syncs", "SyncGroup", 5, sync_request(g, joined, a, {a: b"all"}), on="a")
    s.call("A beats", "Heartbeat", 4, beat(g, joined, a), on="a")
    b = s.call(
        "B asks for a member id", "JoinGroup", 9, join_request(g, protocols=[protocol("sticky", b"B2")]), on="b"
    )["memberId"]
    s.call("A beats while B is only pending", "Heartbeat", 4, beat(g, joined, a), on="a")
    waiting = s.send(
        "B joins and waits",
        "JoinGroup",
        9,
        join_request(g, b, protocols=[protocol("sticky", b"B2"), protocol("range", b"B1")]),
        on="b",
    )
    s.call("A beats until it is told", "DescribeGroups", 6, {"groups": [g]}, on="c")
    s.call("A beats", "Heartbeat", 4, beat(g, joined, a), on="a")
    s.call("A syncs during the rebalance", "SyncGroup", 5, sync_request(g, joined, a, {}), on="a")
    second = s.call(
        "A rejoins",
        "JoinGroup",
        9,
        join_request(g, a, protocols=[protocol("range", b"A1"), protocol("sticky", b"A2")]),
        on="a",
    )
    waiting.answer()
    follower = s.send("B syncs first and waits", "SyncGroup", 5, sync_request(g, second, b, {}), on="b")
    s.call("A beats with the new generation", "Heartbeat", 4, beat(g, second, a), on="a")
    s.call("A beats with the old generation", "Heartbeat", 4, beat(g, joined, a), on="a")
    s.call("A syncs as leader", "SyncGroup", 5, sync_request(g, second, a, {a: b"for A", b: b"for B"}), on="a")
    follower.answer()
    s.call("described", "DescribeGroups", 6, {"groups": [g]}, on="c")
    s.call(
        "B, the follower, rejoins unchanged",
        "JoinGroup",
        9,
        join_request(g, b, protocols=[protocol("sticky", b"B2"), protocol("range", b"B1")]),
        on="b",
    )
    s.call("B fetches its assignment again", "SyncGroup", 5, sync_request(g, second, b, {}), on="b")
    s.call("B leaves", "LeaveGroup", 5, {"groupId": g, "members": [{"memberId": b, "reason": "going"}]}, on="b")
    s.call("A beats", "Heartbeat", 4, beat(g, second, a), on="a")
    third = s.call("A rejoins", "JoinGroup", 7, join_request(g, a), on="a")
    s.call("A syncs without an assignment for itself", "SyncGroup", 5, sync_request(g, third, a, {}), on="a")
    s.call("A leaves", "LeaveGroup", 0, {"groupId": g, "memberId": a}, on="a")
    s.call("described", "DescribeGroups", 6, {"groups": [g]}, on="c")
    s.call("a v0 join", "JoinGroup", 0, join_request(g), on="d")


def beat(group: str, joined: dict[str, Any], member: str, instance: str | None = None) -> dict[str, Any]:
    return {"groupId": group, "generationId": joined["generationId"], "memberId": member, "groupInstanceId": instance}


def sync_request(
    group: str, joined: dict[str, Any], member: str, shares: dict[str, bytes], instance: str | None = None
) -> dict[str, Any]:
    return {
        "groupId": group,
        "generationId": joined["generationId"],
        "memberId": member,
        "groupInstanceId": instance,
        "protocolType": "consumer",
        "protocolName": joined["protocolName"],
        "assignments": [{"memberId": who, "assignment": b64(share)} for who, share in shares.items()],
    }


def static_members(s: Session) -> None:
    wait_for_coordinator(s)
    create_topic(s, "static-topic")
    g = "static"
    first = s.call("A joins with an instance id", "JoinGroup", 9, join_request(g, groupInstanceId="one"), on="a")
    a = first["memberId"]
    s.call("A syncs", "SyncGroup", 5, sync_request(g, first, a, {a: b"all"}, "one"), on="a")
    s.call("A beats", "Heartbeat", 4, beat(g, first, a, "one"), on="a")
    s.call("A beats with another instance id", "Heartbeat", 4, beat(g, first, a, "two"), on="a")
    again = s.call("the same instance comes back", "JoinGroup", 9, join_request(g, groupInstanceId="one"), on="b")
    b = again["memberId"]
    s.call("the old one beats", "Heartbeat", 4, beat(g, first, a, "one"), on="a")
    s.call("the old one beats without its instance id", "Heartbeat", 4, beat(g, first, a), on="a")
    s.call("the old one syncs", "SyncGroup", 5, sync_request(g, first, a, {}, "one"), on="a")
    s.call("the old one joins", "JoinGroup", 9, join_request(g, a, groupInstanceId="one"), on="a")
    s.call(
        "the old one leaves",
        "LeaveGroup",
        5,
        {"groupId": g, "members": [{"memberId": a, "groupInstanceId": "one"}]},
        on="a",
    )
    fenced = commit_request(
        g, "static-topic", generationIdOrMemberEpoch=first["generationId"], memberId=a, groupInstanceId="one"
    )
    s.call("the old one commits", "OffsetCommit", 8, fenced, on="a")
    s.call(
        "the new one syncs and gets the old assignment", "SyncGroup", 5, sync_request(g, again, b, {}, "one"), on="b"
    )
    s.call("described", "DescribeGroups", 6, {"groups": [g]}, on="c")
    changed = s.call(
        "comes back with another subscription",
        "JoinGroup",
        9,
        join_request(g, groupInstanceId="one", protocols=[protocol("range", b"changed")]),
        on="d",
    )
    d = changed["memberId"]
    s.call("it syncs", "SyncGroup", 5, sync_request(g, changed, d, {d: b"changed"}, "one"), on="d")
    old_version = s.call(
        "comes back with a version before skipAssignment",
        "JoinGroup",
        8,
        join_request(g, groupInstanceId="one", protocols=[protocol("range", b"changed")]),
        on="e",
    )
    e = old_version["memberId"]
    s.call("it syncs", "SyncGroup", 5, sync_request(g, old_version, e, {e: b"again"}, "one"), on="e")
    s.call(
        "leaves by instance id alone",
        "LeaveGroup",
        5,
        {"groupId": g, "members": [{"memberId": "", "groupInstanceId": "one"}]},
        on="f",
    )
    s.call("described", "DescribeGroups", 6, {"groups": [g]}, on="c")
    s.call(
        "leaves again", "LeaveGroup", 5, {"groupId": g, "members": [{"memberId": "", "groupInstanceId": "one"}]}, on="f"
    )
    s.call(
        "an instance id with a member id nobody has",
        "JoinGroup",
        9,
        join_request(g, "stranger", groupInstanceId="one"),
        on="f",
    )


def find_coordinator(s: Session) -> None:
    wait_for_coordinator(s)
    for version in versions("FindCoordinator"):
        for kind, key in (
            (0, "fc-group"),
            (0, ""),
            (2, "fc-group"),
            (2, "g:AAAAAAAAAAAAAAAAAAAAZQ:0"),
            (3, "x"),
            (-1, "x"),
        ):
            if version == 0 and kind != 0:
                continue
            s.call(
                f"key type {kind}, key {key!r}",
                "FindCoordinator",
                version,
                {"key": key, "keyType": kind, "coordinatorKeys": [key]},
            )
    for version in (4, 5, 6):
        s.call("several keys", "FindCoordinator", version, {"keyType": 0, "coordinatorKeys": ["x", "", "y", "x"]})
        s.call("no keys", "FindCoordinator", version, {"keyType": 0, "coordinatorKeys": []})


GROUP_LISTING_SCRIPTS = {"list_groups": list_groups}
GROUP_SCRIPTS = {
    "describe_groups": describe_groups,
    "empty_group_id": empty_group_id,
    "offset_fetch": offset_fetch,
    "offset_commit": offset_commit,
    "offset_delete": offset_delete,
    "delete_groups": delete_groups,
    "unknown_members": unknown_members,
    "join_errors": join_errors,
    "two_members": two_members,
    "static_members": static_members,
    "find_coordinator": find_coordinator,
}
