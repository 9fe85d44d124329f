"""Scripts about consumer groups that have members of the classic protocol. They may name themselves here."""

from __future__ import annotations

from tests.harness.broker_scripts_groups import fetch_request
from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import (
    EXPIRY_PAUSE_S,
    SHORT_TIMEOUT_MS,
    ClassicMember,
    Member,
    assignment,
    described,
    follow,
    grow_topic,
    listed,
    new_topic,
    subscription,
)
from tests.harness.script_steps import b64, commit_request, wait_for_coordinator


def classic_members_join(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cmj-topic", 6)
    g = "cmj"
    a = Member(s, g, "A")
    a.join(["cmj-topic"], serverAssignor="range")
    a.owns()
    k = ClassicMember(s, g, "K", ["cmj-topic"], member_id="K")
    for version in (0, 3, 4, 9):
        nameless = ClassicMember(s, f"cmj-nameless-{version}", "N", ["cmj-topic"])
        Member(s, nameless.group, "A").join(["cmj-topic"])
        nameless.join(f"joins without an id, version {version}", version=version)
        described(s, nameless.group)
    k.join("joins under a name of its own")
    described(s, g, step="K waits")
    k.sync(step="learns that it has nothing yet")
    k.beat()
    follow(a, k)
    k.join("joins again to get what is free")
    k.sync()
    described(s, g, step="stable")
    k.beat("heartbeats with an old generation", generationId=k.generation - 1)
    k.beat("heartbeats with a later generation", generationId=k.generation + 1)
    k.beat("heartbeats as an instance", groupInstanceId="one")
    k.sync(step="syncs with an old generation", generationId=k.generation - 1)
    k.sync(step="syncs with another protocol type", protocolType="connect")
    k.sync(step="syncs with another protocol", protocolName="roundrobin")
    k.sync(step="syncs without naming a protocol", protocolType=None, protocolName=None)
    k.sync({"K": assignment({"cmj-topic": [0]})}, "syncs with an assignment of its own")
    k.join("joins with another type", protocolType="connect")
    k.join("joins with malformed metadata", protocols=[{"name": "range", "metadata": b64(b"meta")}])
    k.join("joins with a short session", sessionTimeoutMs=999)
    m = ClassicMember(s, g, "L", ["cmj-topic"], member_id="L")
    m.protocols = ("roundrobin",)
    m.join("joins with a protocol that K does not know")
    m.protocols = ("roundrobin", "range")
    m.join("joins with one that K knows too")
    m.sync()
    follow(a, k, m)
    described(s, g, step="three members")
    k.beat("K speaks the new protocol's heartbeat, as a classic member cannot")
    n = Member(s, g, "K")
    n.epoch = k.generation
    n.beat("speaks the consumer protocol all at once")
    described(s, g, step="K has changed sides")
    n.join(["cmj-topic"], "joins with the consumer protocol")
    described(s, g, step="K has changed sides for good")
    k.beat("heartbeats as before")
    grow_topic(s, "cmj-topic", 9)
    follow(a, n, m)
    described(s, g, step="after the topic grew")


def classic_timeouts(s: ConsumerSession) -> None:
    """Classic members of a consumer group that do not rejoin, sync or heartbeat in time."""
    wait_for_coordinator(s)
    new_topic(s, "cmo-topic", 2)
    for what in ("session", "join", "sync"):
        g = f"cmo-{what}"
        a = Member(s, g, "A")
        k = ClassicMember(s, g, "K", ["cmo-topic"], member_id="K")
        k.session_timeout_ms = SHORT_TIMEOUT_MS if what == "session" else 30000
        k.rebalance_timeout_ms = 30000 if what == "session" else SHORT_TIMEOUT_MS
        a.join(["cmo-topic"], serverAssignor="range")
        a.owns()
        k.join()
        if what != "sync":
            k.sync()
            a.owns()
        if what == "join":
            a.beat("changes its subscription", subscribedTopicNames=[])
            k.beat("is told to rejoin")
        described(s, g, step="before")
        s.pause(EXPIRY_PAUSE_S)
        described(s, g, step="after")
        k.beat("comes too late")


def classic_member_changes(s: ConsumerSession) -> None:
    """Classic members that join again with something new to say."""
    wait_for_coordinator(s)
    new_topic(s, "cxc-one", 2)
    new_topic(s, "cxc-two", 2)
    g = "cxc"
    a = Member(s, g, "A")
    a.join(["cxc-one"], serverAssignor="range")
    k = ClassicMember(s, g, "K", ["cxc-one"], member_id="K")
    k.join()
    k.sync()
    follow(a, k)
    described(s, g, step="one topic")
    k.join("joins again with nothing new")
    k.join("joins again and does not sync first")
    k.sync()
    described(s, g, step="no rebalance")
    k.topics = ["cxc-one", "cxc-two"]
    k.join("joins again with one more topic")
    k.sync()
    follow(a, k)
    described(s, g, step="two topics for K")
    k.owned = {"cxc-one": [1], "cxc-two": [0, 1]}
    metadata = subscription(k.topics, 3, k.owned, rackId="rack-1", generationId=k.generation)
    k.join("tells its rack", protocols=[{"name": "range", "metadata": b64(metadata)}])
    k.sync()
    k.rebalance_timeout_ms = 20000
    k.join("changes its rebalance timeout")
    k.sync()
    k.session_timeout_ms = 20000
    k.join("changes its session timeout")
    k.sync()
    k.protocols = ("cooperative-sticky", "range")
    k.join("supports one protocol more")
    k.sync()
    k.protocols = ("cooperative-sticky",)
    k.join("supports another protocol only")
    k.sync()
    described(s, g, step="much has changed")
    a.beat("leaves the other topic to itself", subscribedTopicNames=["cxc-two"])
    k.owned = {"cxc-one": [1], "cxc-two": [0, 1]}
    follow(a, k)
    described(s, g, step="after the change of A")
    for version in (0, 1, 5, 7):
        k.join(f"joins with version {version}", version=version)
    k.topics = []
    k.join("wants nothing any more")
    k.sync()
    follow(a, k)
    described(s, g, step="A has it all")


def classic_static_members(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cxs-topic", 4)
    g = "cxs"
    a = Member(s, g, "A")
    a.join(["cxs-topic"], serverAssignor="range")
    k = ClassicMember(s, g, "K", ["cxs-topic"], instance="one")
    k.join("joins as an instance, without an id")
    k.sync()
    follow(a, k)
    described(s, g, step="mixed")
    old = ClassicMember(s, g, "K", ["cxs-topic"], member_id=k.id, instance="one")
    old.generation, old.protocol, old.owned = k.generation, k.protocol, k.owned
    k.join("joins again under its id")
    k.sync()
    k.id = ""
    k.join("comes back without an id")
    k.sync()
    described(s, g, step="another member id, no rebalance")
    old.beat("the old one heartbeats")
    old.sync(step="the old one syncs")
    old.join("the old one joins")
    old.leave("the old one leaves")
    request = commit_request(
        g, "cxs-topic", generationIdOrMemberEpoch=old.generation, memberId=old.id, groupInstanceId="one"
    )
    s.call("the old one commits", "OffsetCommit", 8, request)
    request = commit_request(
        g, "cxs-topic", 2, generationIdOrMemberEpoch=k.generation, memberId=k.id, groupInstanceId="one"
    )
    s.call("the new one commits", "OffsetCommit", 8, request)
    stranger = ClassicMember(s, g, "X", ["cxs-topic"], member_id="X", instance="two")
    stranger.join("an unknown instance with an id")
    stranger.beat("an unknown instance", generationId=3)
    s.call("its offsets", "OffsetFetch", 9, fetch_request(g, "cxs-topic", s, (2,)))
    n = Member(s, g, "N", instance="one")
    n.join(["cxs-topic"], "the instance changes to the consumer protocol", serverAssignor="range")
    follow(a, n)
    described(s, g, step="no classic member left")
    k.beat("the classic one heartbeats")
    n.leave("leaves for a while", epoch=-2)
    k = ClassicMember(s, g, "K", ["cxs-topic"], instance="one")
    k.join("the instance that is away comes back with the classic protocol")
    k.sync()
    follow(a, k)
    described(s, g, step="mixed again")
    instance = {"memberId": "", "groupInstanceId": "one"}
    s.call("K leaves by its instance id", "LeaveGroup", 5, {"groupId": g, "members": [instance]})
    described(s, g, step="A alone")


def leaving_together(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cxl-topic", 2)
    g = "cxl"
    a, b = Member(s, g, "A"), Member(s, g, "B", instance="two")
    k, m = (ClassicMember(s, g, name, ["cxl-topic"], member_id=name) for name in ("K", "L"))
    a.join(["cxl-topic"], serverAssignor="range")
    b.join(["cxl-topic"], serverAssignor="range")
    k.join()
    k.sync()
    m.join()
    m.sync()
    described(s, g, step="two of each kind")
    request = {
        "groupId": g,
        "members": [
            {"memberId": "L"},
            {"memberId": "X"},
            {"memberId": "B", "groupInstanceId": "two"},
            {"memberId": "B", "groupInstanceId": "three"},
            {"memberId": "X", "groupInstanceId": "two"},
        ],
    }
    s.call("one of each kind leaves", "LeaveGroup", 5, request)
    described(s, g, step="one of each kind")
    s.call("A leaves as classic members do", "LeaveGroup", 3, {"groupId": g, "members": [{"memberId": "A"}]})
    listed(s, g, "a classic group")
    k.beat()
    k.join("joins again")
    k.sync({"K": assignment({"cxl-topic": [0, 1]})}, "syncs as the leader")
    b.join(["cxl-topic"], "comes back", serverAssignor="range")
    request = {"groupId": g, "members": [{"memberId": "K"}, {"memberId": "B", "groupInstanceId": "two"}]}
    s.call("all leave at once", "LeaveGroup", 5, request)
    described(s, g, step="empty")


def downgrade_with_regex(s: ConsumerSession) -> None:
    """What a group of both kinds leaves behind when it becomes classic."""
    wait_for_coordinator(s)
    new_topic(s, "cxr-topic", 2)
    g = "cxr"
    a = Member(s, g, "A", instance="one")
    a.join(None, subscribedTopicRegex="cxr-.*", serverAssignor="range")
    a.beat_until("gets the topic", lambda r: r["assignment"] is not None)
    k = ClassicMember(s, g, "K", ["cxr-topic"], member_id="K")
    k.join()
    k.sync()
    follow(a, k)
    described(s, g, step="mixed")
    a.leave("leaves for a while", epoch=-2)
    described(s, g, step="still mixed")
    k.beat()
    n = ClassicMember(s, g, "N", ["cxr-topic"], instance="one")
    n.join("replaces the only member of the consumer protocol")
    listed(s, g, "a classic group")
    s.call("as a classic group", "DescribeGroups", 6, {"groups": [g]}, on="admin")
    n.beat()
    k.beat()
    n.sync()
    k.sync()


MIXED_SCRIPTS = {
    "consumer_classic_members_join": classic_members_join,
    "consumer_classic_timeouts": classic_timeouts,
    "consumer_classic_member_changes": classic_member_changes,
    "consumer_classic_static_members": classic_static_members,
    "consumer_leaving_together": leaving_together,
    "consumer_downgrade_with_regex": downgrade_with_regex,
}
