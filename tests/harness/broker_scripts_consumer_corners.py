"""Scripts about consumer groups: several things that happen at once."""

from __future__ import annotations

from tests.harness.broker_scripts_groups import with_ids
from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import (
    EXPIRY_PAUSE_S,
    SHORT_TIMEOUT_MS,
    ClassicMember,
    Member,
    assignment,
    configure_group,
    delete_topic,
    described,
    follow,
    grow_topic,
    listed,
    new_topic,
    owned,
    settle_all,
)
from tests.harness.script_steps import commit_request, wait_for_coordinator

# Resolved regular expressions come back a moment after they were asked for.
RESOLVE_PAUSE_S = 0.7


def becoming_static(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "ckb-topic", 2)
    g = "ckb"
    a = Member(s, g, "A")
    a.join(["ckb-topic"])
    a.instance = "one"
    a.join(["ckb-topic"], "joins again, with an instance id")
    a.owns()
    described(s, g, step="A is static")
    a.join(["ckb-topic"], "joins again without it", instanceId=None)
    described(s, g, step="A is static still")
    a.leave("leaves for a while", epoch=-2)
    a.beat("is away and heartbeats without its instance id", memberEpoch=-2, instanceId=None)
    a.join(["ckb-topic"], "is away and joins without its instance id", instanceId=None)
    described(s, g, step="back, or not")
    a.leave("leaves for a while", epoch=-2)
    a.leave("leaves for a while again", epoch=-2)
    a.leave("leaves for good while it is away")
    described(s, g, step="empty")


def away_members(s: ConsumerSession) -> None:
    """What can be done in the name of, and to the group of, a static member that is away."""
    wait_for_coordinator(s)
    new_topic(s, "cka-topic", 2)
    g = "cka"
    a = Member(s, g, "A", instance="one")
    a.join(["cka-topic"])
    epoch = a.epoch
    a.leave("leaves for a while", epoch=-2)
    for of in (epoch, epoch - 1, 0, -2, -1):
        request = commit_request(g, "cka-topic", generationIdOrMemberEpoch=of, memberId="A", groupInstanceId="one")
        s.call(f"A commits with epoch {of}", "OffsetCommit", 9, with_ids(s, request))
        group = {"groupId": g, "memberId": "A", "memberEpoch": of, "topics": None}
        s.call(f"A fetches with epoch {of}", "OffsetFetch", 9, {"groups": [group]})
    s.call("nobody commits", "OffsetCommit", 9, commit_request(g, "cka-topic"))
    listed(s, g)
    k = ClassicMember(s, g, "K", ["cka-topic"], member_id="K")
    k.join("joins with the classic protocol")
    k.sync()
    described(s, g, step="K waits for what A keeps")
    k.beat()
    a.join(["cka-topic"], "comes back", serverAssignor="range")
    follow(a, k)
    described(s, g, step="both")
    a.leave("leaves for a while", epoch=-2)
    k.leave()
    described(s, g, step="A is expected")
    listed(s, g)
    s.call("delete", "DeleteGroups", 2, {"groupsNames": [g]})
    a.leave("leaves for good")
    listed(s, g)


def away_by_regex(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "ckr-topic", 2)
    g = "ckr"
    a = Member(s, g, "A", instance="one")
    a.join(None, subscribedTopicRegex="ckr-.*")
    a.beat_until("gets the topic", lambda r: r["assignment"] is not None)
    a.leave("leaves for a while", epoch=-2)
    x = Member(s, g, "X", instance="one")
    x.join(None, "comes back by the same regex", subscribedTopicRegex="ckr-.*")
    x.owns()
    described(s, g, step="as before")
    x.leave("leaves for a while", epoch=-2)
    y = Member(s, g, "Y", instance="one")
    y.join(["ckr-topic"], "comes back by name", subscribedTopicRegex="")
    y.owns()
    described(s, g, step="by name")
    y.leave()


def several_regexes(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cks-one", 2)
    new_topic(s, "cks-two", 2)
    g = "cks"
    a, b, c = (Member(s, g, name) for name in "ABC")
    a.join(None, subscribedTopicRegex="cks-o.*")
    s.pause(RESOLVE_PAUSE_S)
    settle_all(a)
    b.join(["cks-one"], "joins by the name of the same topic")
    settle_all(a, b)
    described(s, g, step="one by regex, one by name")
    b.beat("wants it by regex too", subscribedTopicRegex="cks-o.*")
    settle_all(a, b)
    described(s, g, step="by name and by regex")
    b.beat("drops the name", subscribedTopicNames=[])
    settle_all(a, b)
    described(s, g, step="both by regex")
    b.beat("changes to another regex, too early to be resolved", subscribedTopicRegex="cks-t.*")
    described(s, g, step="another regex")
    settle_all(a, b)
    s.pause(10.5)
    b.beat("asks for it")
    s.pause(RESOLVE_PAUSE_S)
    settle_all(a, b)
    described(s, g, step="a topic each")
    c.join(None, "joins by a regex that matches nothing", subscribedTopicRegex="nothing-.*")
    s.pause(RESOLVE_PAUSE_S)
    settle_all(a, b, c)
    described(s, g, step="one that matches nothing")
    a.beat("changes to the regex of B", subscribedTopicRegex="cks-t.*")
    settle_all(a, b, c)
    described(s, g, step="nobody wants the first")
    b.leave()
    c.leave()
    a.leave()
    described(s, g, step="empty")


def no_more_time(s: ConsumerSession) -> None:
    """Giving up a part does not buy time for the rest."""
    wait_for_coordinator(s)
    new_topic(s, "ckn-topic", 4)
    g = "ckn"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["ckn-topic"], rebalanceTimeoutMs=2 * SHORT_TIMEOUT_MS)
    b.join(["ckn-topic"])
    a.beat("is told to revoke two")
    s.pause(1.5)
    a.beat("gave up one", topicPartitions=owned(s, ckn_topic=[0, 1, 2]))
    s.pause(1.5)
    a.beat("changes its timeout", topicPartitions=owned(s, ckn_topic=[0, 1, 2]), rebalanceTimeoutMs=60000)
    described(s, g, step="not yet over")
    s.pause(2.0)
    described(s, g, step="over")
    a.beat("comes too late")


def changing_targets(s: ConsumerSession) -> None:
    """What is to be revoked changes before it is."""
    wait_for_coordinator(s)
    new_topic(s, "ckt-topic", 4)
    g = "ckt"
    every = owned(s, ckt_topic=[0, 1, 2, 3])
    a, b, c, d = (Member(s, g, name) for name in "ABCD")
    a.join(["ckt-topic"])
    b.join(["ckt-topic"])
    a.beat("is told to revoke for B", topicPartitions=every)
    b.leave("leaves before it got anything")
    described(s, g, step="A is still to revoke")
    a.beat("still owns all", topicPartitions=every)
    described(s, g, step="a new target")
    a.owns("has revoked for nobody")
    a.owns()
    described(s, g, step="A alone")
    b.join(["ckt-topic"], "comes back")
    a.beat("is told to revoke again", topicPartitions=every)
    c.join(["ckt-topic"])
    d.join(["ckt-topic"])
    a.beat("still owns all", topicPartitions=every)
    described(s, g, step="three wait")
    b.owns()
    c.owns()
    d.owns()
    a.owns("has revoked what it was told to")
    described(s, g, step="A has more to revoke, or not")
    settle_all(a, b, c, d)
    described(s, g, step="a partition each")
    a.beat("wants nothing any more", subscribedTopicNames=[])
    b.owns()
    described(s, g, step="A is to revoke")
    a.beat(
        "wants it again before it revoked", subscribedTopicNames=["ckt-topic"], topicPartitions=owned(s, ckt_topic=[0])
    )
    settle_all(a, b, c, d)
    described(s, g, step="all have something")


def topics_change_while_revoking(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "ckg-topic", 2)
    new_topic(s, "ckg-other", 2)
    g = "ckg"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["ckg-topic"])
    b.join(["ckg-topic"])
    a.beat("is told to revoke")
    grow_topic(s, "ckg-topic", 4)
    b.beat("hears of new partitions")
    described(s, g, step="new partitions")
    a.beat("still owns all", topicPartitions=owned(s, ckg_topic=[0, 1]))
    a.owns("has revoked")
    settle_all(a, b)
    described(s, g, step="four partitions")
    b.beat("changes to the other topic", subscribedTopicNames=["ckg-other"])
    delete_topic(s, "ckg-other")
    a.owns("hears of it")
    described(s, g, step="the other topic is gone")
    settle_all(a, b)
    described(s, g, step="A has all that is left")


def many_members(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "ckm-topic", 10)
    come_and_go(s, "ckm-range", "ckm-topic", "range", "ABCDE")


def even_shares(s: ConsumerSession) -> None:
    """Uniform with as many partitions as let everybody have the same number."""
    wait_for_coordinator(s)
    new_topic(s, "cku-topic", 12)
    come_and_go(s, "cku", "cku-topic", "uniform", "ABCD")


def uneven_shares(s: ConsumerSession) -> None:
    """Uniform where some members have one more than others, and who they are is the assignor's choice."""
    wait_for_coordinator(s)
    new_topic(s, "cko-topic", 10)
    come_and_go(s, "cko", "cko-topic", "uniform", "ABCDE")


def come_and_go(s: ConsumerSession, group: str, topic: str, assignor: str, names: str) -> None:
    """All join, the second and the fourth leave, two others join."""
    members = [Member(s, group, name) for name in names]
    for member in members:
        member.join([topic], serverAssignor=assignor)
    settle_all(*members)
    described(s, group, step="all are there")
    gone = [members.pop(3), members.pop(1)]
    for member in gone:
        member.leave()
    settle_all(*members)
    described(s, group, step="two are gone")
    late = [Member(s, group, name) for name in "FG"]
    for member in late:
        member.join([topic], serverAssignor=assignor)
    settle_all(*members, *late)
    described(s, group, step="two others are there")


def empty_groups(s: ConsumerSession) -> None:
    """What changes while nobody is in the group."""
    wait_for_coordinator(s)
    new_topic(s, "cke-topic", 2)
    g = "cke"
    a = Member(s, g, "A")
    a.join(["cke-topic"])
    a.leave()
    grow_topic(s, "cke-topic", 3)
    described(s, g, step="after the topic grew")
    a.join(["cke-topic"], "comes back")
    described(s, g, step="with the new partition")
    a.leave()
    delete_topic(s, "cke-topic")
    a.join(["cke-topic"], "comes back after the topic was deleted")
    described(s, g, step="nothing to assign")
    a.leave()
    b = Member(s, g, "B", instance="one")
    b.join([], "comes without topics")
    described(s, g, step="a member without topics")


def downgrade_to_several(s: ConsumerSession) -> None:
    """More than one classic member is left, in the middle of a rebalance."""
    wait_for_coordinator(s)
    new_topic(s, "ckd-topic", 6)
    g = "ckd"
    a = Member(s, g, "A")
    a.join(["ckd-topic"], serverAssignor="range")
    k, m = (ClassicMember(s, g, name, ["ckd-topic"], member_id=name) for name in ("K", "L"))
    k.join()
    k.sync()
    follow(a, k)
    m.join()
    m.sync()
    k.beat("is told to rejoin")
    k.owned = {"ckd-topic": [3, 4, 5]}
    k.join("is told to revoke")
    described(s, g, step="in the middle")
    a.leave("leaves, and the group is classic")
    s.call("as a classic group", "DescribeGroups", 6, {"groups": [g]}, on="admin")
    k.beat()
    m.beat()
    k.sync()
    waiting = m.send_join("joins and waits")
    s.pause(0.2)
    k.join("joins")
    m.joined(waiting.answer())
    shares = {"K": assignment({"ckd-topic": [0, 1, 2]}), "L": assignment({"ckd-topic": [3, 4, 5]})}
    leader, follower = (m, k) if s.last_step()["response"]["leader"] == "L" else (k, m)
    leader.sync(shares, "syncs as the leader")
    follower.sync()
    s.call("stable", "DescribeGroups", 6, {"groups": [g]}, on="admin")


def sessions_end_together(s: ConsumerSession) -> None:
    """Everybody in a group of both kinds falls silent."""
    wait_for_coordinator(s)
    new_topic(s, "ckz-topic", 2)
    g = "ckz"
    values = {"consumer.session.timeout.ms": str(SHORT_TIMEOUT_MS), "consumer.heartbeat.interval.ms": "100"}
    configure_group(s, g, dict(values))
    k = ClassicMember(s, g, "K", ["ckz-topic"], member_id="K")
    k.session_timeout_ms = SHORT_TIMEOUT_MS
    a, b = Member(s, g, "A"), Member(s, g, "B", instance="one")
    a.join(["ckz-topic"], serverAssignor="range")
    k.join()
    k.sync()
    s.pause(0.5)
    b.join(["ckz-topic"], serverAssignor="range")
    described(s, g, step="three members")
    s.pause(2 * EXPIRY_PAUSE_S)
    listed(s, g, "nobody is left")
    described(s, g, step="nobody is left")


CORNER_SCRIPTS = {
    "consumer_becoming_static": becoming_static,
    "consumer_away_members": away_members,
    "consumer_away_by_regex": away_by_regex,
    "consumer_several_regexes": several_regexes,
    "consumer_no_more_time": no_more_time,
    "consumer_changing_targets": changing_targets,
    "consumer_topics_change_while_revoking": topics_change_while_revoking,
    "consumer_many_members": many_members,
    "consumer_even_shares": even_shares,
    "consumer_uneven_shares": uneven_shares,
    "consumer_empty_groups": empty_groups,
    "consumer_downgrade_to_several": downgrade_to_several,
    "consumer_sessions_end_together": sessions_end_together,
}
