"""Scripts about consumer groups: listings, descriptions, deletion, configs, limits and timers."""

from __future__ import annotations

from typing import Any

from tests.harness.broker_scripts_groups import fetch_request
from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import (
    EXPIRY_PAUSE_S,
    GROUP_RESOURCE,
    SHORT_TIMEOUT_MS,
    ClassicMember,
    Member,
    classic_group,
    configure_group,
    delete_topic,
    described,
    heartbeat,
    join_heartbeat,
    listed,
    new_topic,
    settle_all,
)
from tests.harness.script_steps import (
    commit_request,
    join_request,
    stable_member,
    versions,
    wait_for_coordinator,
)

# What the assignment interval of four seconds is waited for.
INTERVAL_PAUSE_S = 4.5


def listings(s: ConsumerSession) -> None:
    """To be run on a broker without other groups."""
    wait_for_coordinator(s)
    new_topic(s, "cal-topic", 2)
    Member(s, "cal-stable", "A").join(["cal-topic"])
    gone = Member(s, "cal-empty", "A")
    gone.join(["cal-topic"])
    gone.leave()
    two = [Member(s, "cal-reconciling", name) for name in "AB"]
    for member in two:
        member.join(["cal-topic"])
    configure_group(s, "cal-assigning", {"consumer.assignment.interval.ms": "15000"})
    for name in "AB":
        Member(s, "cal-assigning", name).join(["cal-topic"])
    Member(s, "cal-idle", "A").join([])
    stable_member(s, "cal-classic", on="c")
    s.call("offsets without members", "OffsetCommit", 8, commit_request("cal-simple", "cal-topic"))
    for version in versions("ListGroups"):
        s.call("list all", "ListGroups", version, {})
    for version in (4, 5):
        for states in (["Stable"], ["reconciling"], ["ASSIGNING"], ["Empty"], ["Dead"], ["CompletingRebalance"]):
            s.call(f"list states {states}", "ListGroups", version, {"statesFilter": states})
        s.call("list two states", "ListGroups", version, {"statesFilter": ["Assigning", "Empty"]})
    for types in (["consumer"], ["Consumer"], ["classic"], ["consumer", "classic"], ["share"], ["nope"]):
        s.call(f"list types {types}", "ListGroups", 5, {"typesFilter": types})
    s.call("list state and type", "ListGroups", 5, {"statesFilter": ["Empty"], "typesFilter": ["consumer"]})
    s.call("list state and other type", "ListGroups", 5, {"statesFilter": ["Reconciling"], "typesFilter": ["classic"]})
    names = ["cal-stable", "cal-empty", "cal-reconciling", "cal-assigning", "cal-idle", "cal-classic", "cal-simple"]
    for version in (0, 1):
        s.call("describe all", "ConsumerGroupDescribe", version, {"groupIds": names})


def descriptions(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cad-topic", 2)
    new_topic(s, "cad-gone", 1)
    a = Member(s, "cad", "A", instance="one")
    a.join(["cad-topic", "cad-gone"], rackId="rack-1", serverAssignor="range")
    Member(s, "cad", "B").join(["cad-topic"])
    empty = Member(s, "cad-empty", "A")
    empty.join(["cad-topic"])
    empty.leave()
    stable_member(s, "cad-classic", on="c")
    every = ["cad", "cad-empty", "cad-classic", "cad-nobody", ""]
    for version in (0, 1):
        s.call("all kinds", "ConsumerGroupDescribe", version, {"groupIds": every})
        s.call("no groups", "ConsumerGroupDescribe", version, {"groupIds": []})
        s.call("the same twice", "ConsumerGroupDescribe", version, {"groupIds": ["cad", "cad-empty", "cad"]})
        request = {"groupIds": ["cad", "cad-nobody", "cad-classic"], "includeAuthorizedOperations": True}
        s.call("authorized operations", "ConsumerGroupDescribe", version, request)
    for version in versions("DescribeGroups"):
        s.call("as classic groups", "DescribeGroups", version, {"groups": every})
    request = {"groups": ["cad", "cad-empty"], "includeAuthorizedOperations": True}
    s.call("as classic groups, authorized operations", "DescribeGroups", 6, request)
    delete_topic(s, "cad-gone")
    described(s, "cad", step="after a topic was deleted, before anybody heard")
    for version in range(7):
        s.call("coordinator of the group", "FindCoordinator", version, {"key": "cad", "coordinatorKeys": ["cad"]})


def deletion(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cag-topic", 2)
    a = Member(s, "cag", "A", instance="one")
    a.join(["cag-topic"])
    b = Member(s, "cag", "B")
    b.join(None, "joins by regex", subscribedTopicRegex="cag-.*")
    s.pause(0.5)
    settle_all(a, b)
    commit = commit_request("cag", "cag-topic", generationIdOrMemberEpoch=a.epoch, memberId="A")
    s.call("A commits", "OffsetCommit", 9, commit)
    for version in versions("DeleteGroups"):
        s.call("delete with members", "DeleteGroups", version, {"groupsNames": ["cag"]})
    b.leave()
    a.leave("leaves for a while", epoch=-2)
    s.call("delete with a static member that is away", "DeleteGroups", 2, {"groupsNames": ["cag"]})
    a.leave()
    described(s, "cag", step="empty")
    s.call("delete when empty", "DeleteGroups", 2, {"groupsNames": ["cag", "cag-nobody", "cag"]})
    described(s, "cag", step="gone")
    listed(s, "cag", "no longer listed")
    s.call("its offsets", "OffsetFetch", 9, fetch_request("cag", "cag-topic", s))
    s.call("delete again", "DeleteGroups", 2, {"groupsNames": ["cag"]})
    a.join(["cag-topic"], "joins a new group of that name")
    described(s, "cag", step="anew")


def group_configs(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cao-topic", 2)
    g = "cao"
    a = Member(s, g, "A")
    a.join(["cao-topic"])
    for values in (
        {"consumer.heartbeat.interval.ms": "1000"},
        {"consumer.heartbeat.interval.ms": "99"},
        {"consumer.heartbeat.interval.ms": "15001"},
        {"consumer.heartbeat.interval.ms": "x"},
        {"consumer.session.timeout.ms": "999"},
        {"consumer.session.timeout.ms": "60001"},
        {"consumer.session.timeout.ms": "1000", "consumer.heartbeat.interval.ms": "1000"},
        {"consumer.session.timeout.ms": "50000"},
        {"consumer.assignment.interval.ms": "-1"},
        {"consumer.assignment.interval.ms": "15001"},
        {"consumer.assignment.interval.ms": "100"},
        {"consumer.assignor.offload.enable": "false"},
        {"consumer.assignor.offload.enable": "maybe"},
        {"consumer.unknown": "1"},
    ):
        configure_group(s, g, dict(values))
        a.beat("heartbeats after that")
    resources: dict[str, Any] = {
        "resources": [{"resourceType": GROUP_RESOURCE, "resourceName": g, "configurationKeys": None}]
    }
    s.call("what is set", "DescribeConfigs", 4, resources, on="admin")
    record = s.last_step()
    for result in record["response"]["results"]:
        result["configs"] = [entry for entry in result["configs"] if entry["name"].startswith("consumer.")]
    configure_group(s, g, {"consumer.heartbeat.interval.ms": None})
    a.beat("heartbeats after it was removed")
    configure_group(
        s, "cao-later", {"consumer.heartbeat.interval.ms": "2000"}, "configures a group that does not exist"
    )
    Member(s, "cao-later", "A").join(["cao-topic"])


def session_timeouts(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cat-topic", 2)
    g = "cat"
    configure_group(
        s, g, {"consumer.session.timeout.ms": str(SHORT_TIMEOUT_MS), "consumer.heartbeat.interval.ms": "100"}
    )
    a, b = Member(s, g, "A"), Member(s, g, "B", instance="one")
    a.join(["cat-topic"])
    b.join(["cat-topic"])
    settle_all(a, b)
    described(s, g, step="both are there")
    for _ in range(3):
        s.pause(0.5)
        with s.unrecorded():
            a.beat("keeps alive")
            b.beat("keeps alive")
    s.pause(0.5)
    a.beat("is still there")
    b.beat("is still there")
    b.leave("leaves for a while", epoch=-2)
    for _ in range(6):
        s.pause(0.5)
        with s.unrecorded():
            a.beat("keeps alive")
    described(s, g, step="the static member did not come back")
    settle_all(a)
    s.pause(EXPIRY_PAUSE_S)
    described(s, g, step="nobody heartbeats any more")
    a.beat("comes too late")
    a.join(["cat-topic"], "comes back")
    described(s, g, step="A is back")
    a.leave()


def rebalance_timeouts(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "car-topic", 2)
    g = "car"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["car-topic"], rebalanceTimeoutMs=SHORT_TIMEOUT_MS)
    b.join(["car-topic"])
    a.beat("is told to revoke")
    a.beat("goes on as if nothing had happened")
    described(s, g, step="revoking")
    s.pause(EXPIRY_PAUSE_S)
    described(s, g, step="A is fenced")
    a.beat("comes too late")
    b.beat("gets everything")
    b.owns()
    described(s, g, step="B alone")
    a.join(["car-topic"], "comes back", rebalanceTimeoutMs=SHORT_TIMEOUT_MS)
    b.beat("is told to revoke")
    b.owns("revokes")
    s.pause(EXPIRY_PAUSE_S)
    a.beat("waited longer than its timeout, which does not matter")
    a.owns()
    described(s, g, step="both")


def assignment_interval(s: ConsumerSession) -> None:
    """Assignments at least four seconds apart, but for the first."""
    wait_for_coordinator(s)
    new_topic(s, "cai-topic", 4)
    g = "cai"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["cai-topic"], "gets the first assignment at once")
    b.join(["cai-topic"], "comes too early for the next")
    described(s, g, step="assigning")
    listed(s, g)
    a.owns("hears nothing yet")
    b.owns("hears nothing yet")
    s.pause(INTERVAL_PAUSE_S)
    described(s, g, step="still assigning, until somebody heartbeats")
    a.owns("is told to revoke")
    described(s, g, step="reconciling")
    a.owns("has revoked")
    b.owns()
    b.owns()
    described(s, g, step="stable")
    s.pause(INTERVAL_PAUSE_S)
    b.leave("leaves, long after the last assignment")
    described(s, g, step="assigning again")
    a.owns("gets all at once")
    a.owns()
    b.join(["cai-topic"], "joins right after")
    b.leave("leaves before anything was assigned to it")
    described(s, g, step="two epochs without an assignment")
    s.pause(INTERVAL_PAUSE_S)
    a.owns()
    a.owns()
    described(s, g, step="with A alone")
    a.leave()
    b.join(["cai-topic"], "joins the empty group at once")
    described(s, g, step="the interval counts here too")


def limits(s: ConsumerSession) -> None:
    """For a broker with at most two members per group of either kind."""
    wait_for_coordinator(s)
    new_topic(s, "can-topic", 4)
    g = "can"
    a, b, c = Member(s, g, "A"), Member(s, g, "B", instance="one"), Member(s, g, "C")
    a.join(["can-topic"])
    b.join(["can-topic"])
    c.join(["can-topic"], "is one too many")
    c.beat("is unknown and one too many", memberEpoch=1)
    c.leave("leaves without having been there")
    a.join(["can-topic"], "joins again")
    a.owns()
    b.leave("leaves for a while", epoch=-2)
    x = Member(s, g, "X", instance="one")
    x.join(["can-topic"], "comes back for B in the full group")
    b.join(["can-topic"], "comes back as itself")
    c.version = 0
    c.id = ""
    c.join(["can-topic"], "is one too many, without an id")
    classic = ClassicMember(s, g, "K", ["can-topic"], member_id="K")
    classic.join("joins the full group with the classic protocol")
    a.leave()
    c.join(["can-topic"], "joins the place that is free")
    described(s, g)


def limits_of_conversion(s: ConsumerSession) -> None:
    """For a broker with at most two members per consumer group and one per classic group."""
    wait_for_coordinator(s)
    new_topic(s, "cam-topic", 2)
    group = classic_group(s, "cam", "cam-topic", {"P": [0, 1]})
    a = Member(s, "cam", "A")
    a.join(["cam-topic"], "joins and converts the group")
    described(s, "cam")
    group[0].beat()
    b = Member(s, "cam", "B")
    b.join(["cam-topic"], "is one too many")
    k = ClassicMember(s, "cam", "K", ["cam-topic"], member_id="K")
    k.join("is one too many")
    a.leave("leaves, and the group is classic again")
    listed(s, "cam")
    full = [Member(s, "cam-full", name) for name in "AB"]
    full[0].join(["cam-topic"])
    k2 = ClassicMember(s, "cam-full", "K", ["cam-topic"], member_id="K")
    k2.join("joins a consumer group")
    full[0].leave("leaves, and the group is classic")
    listed(s, "cam-full")


def many_requests(s: ConsumerSession) -> None:
    """What tools and clients of other protocols ask of consumer groups."""
    wait_for_coordinator(s)
    new_topic(s, "caq-topic", 2)
    g = "caq"
    a = Member(s, g, "A", instance="one")
    a.join(["caq-topic"])
    for version in versions("Heartbeat"):
        s.call("a classic heartbeat", "Heartbeat", version, {"groupId": g, "generationId": a.epoch, "memberId": "A"})
    for member in ("A", "X", ""):
        s.call(
            f"a classic heartbeat of {member!r}", "Heartbeat", 4, {"groupId": g, "generationId": 7, "memberId": member}
        )
    s.call(
        "a classic heartbeat by instance",
        "Heartbeat",
        4,
        {"groupId": g, "generationId": 1, "memberId": "A", "groupInstanceId": "one"},
    )
    s.call(
        "a classic heartbeat by unknown instance",
        "Heartbeat",
        4,
        {"groupId": g, "generationId": 1, "memberId": "A", "groupInstanceId": "no"},
    )
    for member in ("A", "X", ""):
        s.call(
            f"a classic sync of {member!r}", "SyncGroup", 5, {"groupId": g, "generationId": a.epoch, "memberId": member}
        )
    for version in versions("JoinGroup"):
        s.call("a classic join of a foreign type", "JoinGroup", version, join_request(g, protocolType="connect"))
        s.call("a classic join without protocols", "JoinGroup", version, join_request(g, protocols=[]))
    described(s, g, step="as before")
    s.call("a classic leave of a stranger", "LeaveGroup", 5, {"groupId": g, "members": [{"memberId": "X"}]})
    s.call(
        "a classic leave by unknown instance",
        "LeaveGroup",
        5,
        {"groupId": g, "members": [{"memberId": "", "groupInstanceId": "no"}]},
    )
    s.call(
        "a classic leave with the wrong member",
        "LeaveGroup",
        5,
        {"groupId": g, "members": [{"memberId": "X", "groupInstanceId": "one"}]},
    )
    s.call("a classic leave of nobody", "LeaveGroup", 5, {"groupId": g, "members": []})
    s.call(
        "a classic leave by instance",
        "LeaveGroup",
        5,
        {"groupId": g, "members": [{"memberId": "", "groupInstanceId": "one"}]},
    )
    described(s, g, step="empty")
    a.join(["caq-topic"])
    s.call("a classic leave by member id", "LeaveGroup", 1, {"groupId": g, "memberId": "A"})
    described(s, g, step="empty again")
    for version in versions("Heartbeat"):
        s.call(
            "a heartbeat to the empty group", "Heartbeat", version, {"groupId": g, "generationId": 1, "memberId": "A"}
        )
    classic = stable_member(s, "caq-classic", on="c")
    for request in (
        heartbeat("caq-classic", "A", 1),
        heartbeat("caq-classic", classic[0], 1),
        heartbeat("caq-classic", "A", -1),
    ):
        s.call("a consumer heartbeat to a classic group", "ConsumerGroupHeartbeat", 1, request)
    away = heartbeat("caq-classic", "A", -2, instanceId="one")
    s.call("a consumer heartbeat to a classic group", "ConsumerGroupHeartbeat", 1, away)
    s.call("a simple group", "OffsetCommit", 8, commit_request("caq-simple", "caq-topic"))
    s.call("epoch 1 to a simple group", "ConsumerGroupHeartbeat", 1, heartbeat("caq-simple", "A", 1))
    s.call("a join to a simple group", "ConsumerGroupHeartbeat", 1, join_heartbeat("caq-simple", "A", ["caq-topic"]))
    described(s, "caq-simple", "caq-classic")
    s.call("its offsets", "OffsetFetch", 9, fetch_request("caq-simple", "caq-topic", s))


ADMIN_SCRIPTS = {
    "consumer_descriptions": descriptions,
    "consumer_deletion": deletion,
    "consumer_group_configs": group_configs,
    "consumer_session_timeouts": session_timeouts,
    "consumer_rebalance_timeouts": rebalance_timeouts,
    "consumer_other_requests": many_requests,
}
