"""Scripts about groups that change between the classic and the consumer protocol."""

from __future__ import annotations

from typing import Any

from tests.harness.broker_scripts_groups import fetch_request
from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import (
    EXPIRY_PAUSE_S,
    SHORT_TIMEOUT_MS,
    ClassicMember,
    Member,
    assignment,
    classic_group,
    configure_group,
    described,
    follow,
    listed,
    new_topic,
    settle_all,
    subscription,
)
from tests.harness.script_steps import b64, commit_request, join_request, stable_member, wait_for_coordinator


def upgrade(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cmu-topic", 6)
    g = "cmu"
    p, q = classic_group(s, g, "cmu-topic", {"P": [0, 1, 2], "Q": [3, 4, 5]})
    s.call(
        "P commits",
        "OffsetCommit",
        8,
        commit_request(g, "cmu-topic", 0, 5, generationIdOrMemberEpoch=p.generation, memberId=p.id),
    )
    a = Member(s, g, "A")
    a.join(["cmu-topic"], "joins and converts the group")
    described(s, g, step="mixed")
    described(s, g, step="mixed", version=0)
    s.call("as a classic group", "DescribeGroups", 6, {"groups": [g]}, on="admin")
    listed(s, g)
    a.beat("waits")
    p.beat("is told to rejoin")
    q.beat("is told to rejoin")
    p.sync(step="syncs instead")
    s.call(
        "P commits",
        "OffsetCommit",
        8,
        commit_request(g, "cmu-topic", 0, 6, generationIdOrMemberEpoch=p.generation, memberId=p.id),
    )
    p.owned = {"cmu-topic": [0, 1, 2]}
    p.join("rejoins with all it owns")
    p.sync(step="learns what to give up")
    described(s, g, step="P revokes")
    p.beat("is told to rejoin again")
    p.owned = {"cmu-topic": [0, 1]}
    p.join("rejoins without it")
    p.sync()
    p.beat()
    a.beat("gets a part")
    q.owned = {"cmu-topic": [3, 4]}
    q.join("rejoins having revoked")
    q.sync()
    q.beat()
    a.beat("gets the rest")
    a.owns()
    p.beat()
    q.beat()
    described(s, g, step="stable with two protocols")
    s.call("its offsets", "OffsetFetch", 9, fetch_request(g, "cmu-topic", s, (0, 1)))
    for version, epoch in ((8, q.generation), (9, q.generation), (8, q.generation - 1), (8, q.generation + 1), (8, 1)):
        request = commit_request(g, "cmu-topic", 3, generationIdOrMemberEpoch=epoch, memberId=q.id)
        s.call(f"Q commits with generation {epoch}", "OffsetCommit", version, request)
    for epoch in (q.generation, q.generation - 1):
        group: dict[str, Any] = {"groupId": g, "memberId": q.id, "memberEpoch": epoch, "topics": None}
        s.call(f"Q fetches with generation {epoch}", "OffsetFetch", 9, {"groups": [group]})
    q.leave()
    described(s, g, step="Q is gone")
    p.beat("is told to rejoin")
    p.leave()
    described(s, g, step="P is gone")
    a.owns()
    a.owns()
    described(s, g, step="A alone")


def upgrade_by_the_same_member(s: ConsumerSession) -> None:
    """Classic members that come back with the new protocol, one after the other."""
    wait_for_coordinator(s)
    new_topic(s, "cms-topic", 4)
    g = "cms"
    p, _ = classic_group(s, g, "cms-topic", {"P": [0, 1], "Q": [2, 3]})
    p.leave("leaves to be restarted")
    a = Member(s, g, "A")
    a.join(["cms-topic"], "is what P was, while the group rebalances")
    described(s, g, step="mixed")
    s.call("listed", "DescribeGroups", 6, {"groups": [g]}, on="admin")


def upgrade_in_every_state(s: ConsumerSession) -> None:
    """Range puts A before the members whose ids the server made, so that chance does not decide who gets what."""
    wait_for_coordinator(s)
    new_topic(s, "cmx-topic", 1)
    p = ClassicMember(s, "cmx-pending", "P", ["cmx-topic"])
    p.join("asks for a member id, no more")
    a = Member(s, "cmx-pending", "A")
    a.join(["cmx-topic"], "joins a group with a pending member", serverAssignor="range")
    described(s, "cmx-pending")
    p.join("joins with its id")

    p = ClassicMember(s, "cmx-completing", "P", ["cmx-topic"])
    p.join("asks for a member id")
    p.join("joins and does not sync")
    a = Member(s, "cmx-completing", "A")
    a.join(["cmx-topic"], "joins a group that waits for its leader's sync", serverAssignor="range")
    described(s, "cmx-completing")
    p.beat()
    p.sync({p.id: assignment({"cmx-topic": [0]})}, "syncs as the leader")
    p.join("rejoins")
    p.sync()

    p, q = (ClassicMember(s, "cmx-syncing", name, ["cmx-topic"]) for name in "PQ")
    p.join("asks for a member id")
    p.join()
    q.join("asks for a member id")
    pending = q.send_join()
    s.pause(0.1)
    p.join("joins again")
    q.joined(pending.answer())
    waiting = q.send_sync(step="syncs and waits")
    s.pause(0.1)
    a = Member(s, "cmx-syncing", "A")
    a.join(["cmx-topic"], "joins a group with a waiting sync", serverAssignor="range")
    waiting.answer()
    described(s, "cmx-syncing")

    (p,) = classic_group(s, "cmx-preparing", "cmx-topic", {"P": [0]})
    q = ClassicMember(s, "cmx-preparing", "Q", ["cmx-topic"])
    q.join("asks for a member id")
    pending = q.send_join("joins and waits")
    s.pause(0.1)
    a = Member(s, "cmx-preparing", "A")
    a.join(["cmx-topic"], "joins a group with a waiting join", serverAssignor="range")
    q.joined(pending.answer())
    described(s, "cmx-preparing")
    q.join("joins again")
    q.sync()


def upgrade_refused(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cmr-topic", 2)

    def group_with(name: str, metadata: bytes, share: bytes, **fields: Any) -> None:
        request = join_request(name, protocols=[{"name": "range", "metadata": b64(metadata)}], **fields)
        first = s.call("asks for a member id", "JoinGroup", 9, request, on=name)
        member = first["memberId"]
        joined = s.call("joins", "JoinGroup", 9, {**request, "memberId": member}, on=name)
        sync = {
            "groupId": name,
            "generationId": joined["generationId"],
            "memberId": member,
            "protocolType": joined["protocolType"],
            "protocolName": joined["protocolName"],
            "assignments": [{"memberId": member, "assignment": b64(share)}],
        }
        s.call("syncs", "SyncGroup", 5, sync, on=name)
        a = Member(s, name, "A")
        a.join(["cmr-topic"], f"joins {name}", serverAssignor="range")
        described(s, name)
        beat = {"groupId": name, "generationId": joined["generationId"], "memberId": member}
        s.call("the classic member afterwards", "Heartbeat", 4, beat, on=name)

    good = subscription(["cmr-topic"])
    share = assignment({"cmr-topic": [0, 1]})
    group_with("cmr-connect", good, share, protocolType="connect")
    group_with("cmr-garbage", b"meta", share)
    group_with("cmr-empty-metadata", b"", share)
    group_with("cmr-cut", good[:-3], share)
    group_with("cmr-assignment-garbage", good, b"assignment")
    group_with("cmr-user-data", good, assignment({"cmr-topic": [0, 1]}, user_data=b"mine"))
    group_with("cmr-empty-user-data", good, assignment({"cmr-topic": [0, 1]}, user_data=b""))
    group_with("cmr-subscription-user-data", subscription(["cmr-topic"], userData=b64(b"mine")), share)
    group_with("cmr-empty-assignment", good, b"")
    group_with("cmr-unknown-topic", subscription(["cmr-none"]), assignment({"cmr-none": [0]}))
    group_with("cmr-version-0", subscription(["cmr-topic"], 0), assignment({"cmr-topic": [0]}, 0))
    group_with(
        "cmr-version-3",
        subscription(["cmr-topic"], 3, {"cmr-topic": [0]}, rackId="r", generationId=1),
        assignment({"cmr-topic": [0]}, 3),
    )
    group_with("cmr-version-9", b"\x00\x09" + good[2:], share)


def upgrade_with_static_members(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cmt-topic", 4)
    g = "cmt"
    p = ClassicMember(s, g, "P", ["cmt-topic"], instance="one")
    p.join()
    p.sync({p.id: assignment({"cmt-topic": [0, 1, 2, 3]})}, "syncs as the leader")
    p.owned = {"cmt-topic": [0, 1, 2, 3]}
    a = Member(s, g, "A", instance="one")
    a.join(["cmt-topic"], "is the same instance with the other protocol")
    described(s, g, step="no classic member left")
    p.beat("the old one heartbeats")
    a.owns()
    a.owns()
    described(s, g, step="stable")
    b = Member(s, g, "B")
    b.join(["cmt-topic"])
    settle_all(a, b)
    described(s, g, step="two members")
    k = ClassicMember(s, g, "K", ["cmt-topic"], instance="one")
    k.join("is that instance with the classic protocol again")
    a.owns("the old one heartbeats")
    follow(k, b)
    described(s, g, step="mixed")
    b.leave("leaves, and the group is classic")
    listed(s, g)
    s.call("as a classic group", "DescribeGroups", 6, {"groups": [g]}, on="admin")


def downgrade(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cmd-topic", 4)
    g = "cmd"
    a = Member(s, g, "A")
    a.join(["cmd-topic"], serverAssignor="range")
    k = ClassicMember(s, g, "K", ["cmd-topic"], member_id="K")
    k.join()
    k.sync()
    a.owns()
    a.owns()
    k.join("joins again")
    k.sync()
    described(s, g, step="stable")
    request = commit_request(g, "cmd-topic", 3, generationIdOrMemberEpoch=k.generation, memberId="K")
    s.call("K commits", "OffsetCommit", 8, request)
    a.leave("leaves, and the group is classic")
    listed(s, g)
    described(s, g, step="no consumer group")
    s.call("a classic group", "DescribeGroups", 6, {"groups": [g]}, on="admin")
    a.beat("heartbeats after that")
    k.beat("is told to rejoin")
    k.owned = {"cmd-topic": [2, 3]}
    k.join("rejoins as the leader")
    k.sync({"K": assignment({"cmd-topic": [0, 1, 2, 3]})}, "syncs as the leader")
    k.beat()
    s.call("stable", "DescribeGroups", 6, {"groups": [g]}, on="admin")
    s.call("its offsets", "OffsetFetch", 9, fetch_request(g, "cmd-topic", s, (3,)))
    b = Member(s, g, "B")
    b.join(["cmd-topic"], "converts it again")
    described(s, g, step="a consumer group again")
    k.leave()
    described(s, g, step="B alone")


def downgrade_by_timeout(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cme-topic", 2)
    g = "cme"
    configure_group(
        s, g, {"consumer.session.timeout.ms": str(SHORT_TIMEOUT_MS), "consumer.heartbeat.interval.ms": "100"}
    )
    a = Member(s, g, "A")
    k = ClassicMember(s, g, "K", ["cme-topic"], member_id="K")
    a.join(["cme-topic"])
    k.join()
    k.sync()
    described(s, g, step="mixed")
    s.pause(EXPIRY_PAUSE_S)
    listed(s, g, "A's session is over")
    s.call("a classic group", "DescribeGroups", 6, {"groups": [g]}, on="admin")
    k.beat("is told to rejoin")
    k.join("rejoins")
    k.leave()


def empty_groups_convert(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cmy-topic", 2)
    to_classic = Member(s, "cmy-consumer", "A")
    to_classic.join(["cmy-topic"])
    request = commit_request("cmy-consumer", "cmy-topic", generationIdOrMemberEpoch=to_classic.epoch, memberId="A")
    s.call("A commits", "OffsetCommit", 9, request)
    to_classic.leave()
    k = ClassicMember(s, "cmy-consumer", "K", ["cmy-topic"])
    k.join("asks for a member id")
    listed(s, "cmy-consumer")
    k.join("joins, and the group is classic")
    k.sync({k.id: assignment({"cmy-topic": [0, 1]})}, "syncs as the leader")
    s.call("its offsets", "OffsetFetch", 9, fetch_request("cmy-consumer", "cmy-topic", s))
    described(s, "cmy-consumer")
    s.call("a classic group", "DescribeGroups", 6, {"groups": ["cmy-consumer"]}, on="admin")

    member, generation = stable_member(s, "cmy-classic", on="c")
    commit = commit_request("cmy-classic", "cmy-topic", generationIdOrMemberEpoch=generation, memberId=member)
    s.call("a commit", "OffsetCommit", 8, commit)
    s.call("the classic member leaves", "LeaveGroup", 5, {"groupId": "cmy-classic", "members": [{"memberId": member}]})
    s.call("empty", "DescribeGroups", 6, {"groups": ["cmy-classic"]}, on="admin")
    b = Member(s, "cmy-classic", "B")
    b.beat("comes with epoch 1", memberEpoch=1)
    b.join(["cmy-topic"], "joins, and the group is a consumer group")
    described(s, "cmy-classic")
    s.call("its offsets", "OffsetFetch", 9, fetch_request("cmy-classic", "cmy-topic", s))
    b.leave()
    k = ClassicMember(s, "cmy-classic", "K", ["cmy-topic"])
    k.join("joins with version 0", version=0)
    listed(s, "cmy-classic")

    s.call("offsets only", "OffsetCommit", 8, commit_request("cmy-simple", "cmy-topic"))
    c = Member(s, "cmy-simple", "C")
    c.join(["cmy-topic"], "joins a group of offsets only")
    described(s, "cmy-simple")
    c.leave()
    k = ClassicMember(s, "cmy-simple", "K", ["cmy-topic"], member_id="K")
    k.join("an unknown member joins the empty consumer group")
    listed(s, "cmy-simple")


def policy(s: ConsumerSession, prefix: str) -> None:
    """What group.consumer.migration.policy lets happen; empty groups convert whatever it says."""
    wait_for_coordinator(s)
    topic = f"{prefix}-topic"
    new_topic(s, topic, 2)
    (p,) = classic_group(s, f"{prefix}-up", topic, {"P": [0, 1]})
    a = Member(s, f"{prefix}-up", "A")
    a.join([topic], "joins a classic group")
    described(s, f"{prefix}-up")
    p.beat()
    p.join("rejoins")
    a.leave()
    listed(s, f"{prefix}-up")

    g = f"{prefix}-down"
    b = Member(s, g, "B")
    b.join([topic])
    k = ClassicMember(s, g, "K", [topic], member_id="K")
    k.join("joins a consumer group")
    k.sync()
    b.owns()
    described(s, g)
    b.leave("leaves")
    listed(s, g)
    described(s, g)
    k.join("joins what is left")

    g = f"{prefix}-replaced"
    c = Member(s, g, "C", instance="one")
    c.join([topic])
    c.owns()
    k = ClassicMember(s, g, "K", [topic], instance="one")
    k.join("replaces the only member, which is static")
    listed(s, g)
    described(s, g)

    g = f"{prefix}-empty"
    d = Member(s, g, "D")
    d.join([topic])
    d.leave()
    k = ClassicMember(s, g, "K", [topic])
    k.join("asks for a member id in an empty consumer group")
    k.join("joins it")
    listed(s, g)
    k.leave()
    d.join([topic], "joins the empty classic group")
    listed(s, g)


def policy_bidirectional(s: ConsumerSession) -> None:
    policy(s, "cpb")


def policy_upgrade(s: ConsumerSession) -> None:
    policy(s, "cpu")


def policy_downgrade(s: ConsumerSession) -> None:
    policy(s, "cpd")


def policy_disabled(s: ConsumerSession) -> None:
    policy(s, "cpx")


MIGRATION_SCRIPTS = {
    "consumer_upgrade": upgrade,
    "consumer_upgrade_by_the_same_member": upgrade_by_the_same_member,
    "consumer_upgrade_in_every_state": upgrade_in_every_state,
    "consumer_upgrade_refused": upgrade_refused,
    "consumer_upgrade_with_static_members": upgrade_with_static_members,
    "consumer_downgrade": downgrade,
    "consumer_downgrade_by_timeout": downgrade_by_timeout,
    "consumer_empty_groups_convert": empty_groups_convert,
    "consumer_policy_bidirectional": policy_bidirectional,
}
