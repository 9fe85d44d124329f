"""Scripts about the offsets of consumer groups."""

from __future__ import annotations

from typing import Any

from tests.harness.broker_scripts_groups import fetch_request, with_ids
from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import Member, described, new_topic, settle_all
from tests.harness.script_steps import commit_request, wait_for_coordinator


def commits(s: ConsumerSession) -> None:
    """OffsetCommit with member epochs of all kinds; older ones pass where the partition was theirs (KIP-1251)."""
    wait_for_coordinator(s)
    new_topic(s, "cac-topic", 4)
    new_topic(s, "cac-other", 1)
    g = "cac"
    a, b = Member(s, g, "A"), Member(s, g, "B")

    def commit(
        step: str, member: str, epoch: int, partitions: tuple[int, ...] = (0,), topic: str = "cac-topic", **fields: Any
    ) -> None:
        parts = [{"partitionIndex": p, "committedOffset": 10 + p, "committedMetadata": step[:20]} for p in partitions]
        request = commit_request(g, topic, topics=[{"name": topic, "partitions": parts}])
        request.update({"generationIdOrMemberEpoch": epoch, "memberId": member, **fields})
        for version in (9, 10):
            s.call(step, "OffsetCommit", version, with_ids(s, request))

    def fetched(step: str) -> None:
        s.call(step, "OffsetFetch", 9, fetch_request(g, "cac-topic", s, (0, 1, 2, 3)))

    commit("the group does not exist, epoch 1", "A", 1)
    commit("the group does not exist, epoch 0", "A", 0)
    a.join(["cac-topic"])
    for version in (2, 6, 7, 8):
        request = commit_request(g, "cac-topic", generationIdOrMemberEpoch=a.epoch, memberId="A")
        s.call("a version before 9", "OffsetCommit", version, request)
    commit("its epoch", "A", a.epoch, (0, 1))
    commit("its epoch, a partition that does not exist", "A", a.epoch, (0, 99))
    commit("its epoch, a topic that does not exist", "A", a.epoch, topic="cac-none")
    commit("its epoch, a topic it does not have", "A", a.epoch, topic="cac-other")
    commit("an epoch above", "A", a.epoch + 1)
    commit("epoch 0", "A", 0)
    commit("epoch -1", "A", -1)
    commit("epoch -2", "A", -2)
    commit("no member, epoch -1", "", -1)
    commit("no member, its epoch", "", a.epoch)
    commit("a stranger", "X", a.epoch)
    commit("an instance id that it does not have", "A", a.epoch, groupInstanceId="one")
    fetched("what was stored")
    b.join(["cac-topic"])
    a.beat("is told to revoke")
    epoch = a.epoch
    commit("while revoking, a partition it keeps", "A", epoch, (0,))
    commit("while revoking, a partition it gives up", "A", epoch, (3,))
    a.owns("revoked")
    commit("the previous epoch, a partition it kept", "A", epoch, (0,))
    commit("the previous epoch, a partition it gave up", "A", epoch, (3,))
    commit("the previous epoch, both kinds at once", "A", epoch, (1, 3))
    commit("the previous epoch, a partition that does not exist", "A", epoch, (99,))
    commit("epoch 0, a partition it kept", "A", 0, (0,))
    commit("epoch -1, a partition it kept", "A", -1, (0,))
    commit("its epoch, a partition it gave up", "A", a.epoch, (3,))
    settle_all(a, b)
    commit("B with its epoch", "B", b.epoch, (3,))
    commit("B with an epoch before it had the partition", "B", 1, (3,))
    commit("B with an epoch before it had the partition, and one it never had", "B", 1, (0, 3))
    commit("B with epoch 0", "B", 0, (3,))
    fetched("what was stored in the end")
    c = Member(s, g, "C")
    c.join([])
    settle_all(a, b, c)
    commit("after a rebalance that left its partitions alone, an old epoch", "B", b.epoch - 1, (3,))
    commit("the same, the first epoch it had them", "A", 1, (0, 1))
    commit("a member without partitions, its epoch", "C", c.epoch, (0,))
    commit("a member without partitions, an old epoch", "C", c.epoch - 1, (0,))
    for member in (a, b, c):
        member.leave()
    commit("an empty group, epoch 1", "A", 1)
    commit("an empty group, epoch -1", "", -1)
    commit("an empty group, a member and epoch -1", "A", -1)
    for version in (2, 8):
        s.call("an empty group, standalone", "OffsetCommit", version, commit_request(g, "cac-topic"))
        stranger = commit_request(g, "cac-topic", generationIdOrMemberEpoch=1, memberId="A")
        s.call("an empty group, epoch 1", "OffsetCommit", version, stranger)
    fetched("what was stored at last")


def commits_while_revoking(s: ConsumerSession) -> None:
    """An older epoch for a partition that waits for its revocation."""
    wait_for_coordinator(s)
    new_topic(s, "cav-topic", 4)
    g = "cav"
    a, b, c = (Member(s, g, name) for name in "ABC")
    a.join(["cav-topic"])
    first = a.epoch
    c.join([], "joins without topics")
    a.beat("moves on")
    b.join(["cav-topic"])
    a.beat("is told to revoke")
    for epoch in (first - 1, first, a.epoch, a.epoch + 1):
        for partition in (0, 3):
            request = commit_request(g, "cav-topic", partition, generationIdOrMemberEpoch=epoch, memberId="A")
            s.call(f"epoch {epoch}, partition {partition}", "OffsetCommit", 9, request)
    described(s, g)


def fetches(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "caf-topic", 4)
    g = "caf"
    a, b = Member(s, g, "A"), Member(s, g, "B")

    def fetch(step: str, member: str | None, epoch: int) -> None:
        topics = [{"name": "caf-topic", "topicId": s.topic_ids["caf-topic"], "partitionIndexes": [0, 3]}]
        for version in (9, 10):
            group = {"groupId": g, "memberId": member, "memberEpoch": epoch, "topics": topics}
            s.call(step, "OffsetFetch", version, {"groups": [group]})
        s.call(step, "OffsetFetch", 9, {"groups": [{**group, "topics": None}], "requireStable": True})

    fetch("the group does not exist", "A", 1)
    a.join(["caf-topic"])
    s.call(
        "A commits", "OffsetCommit", 9, commit_request(g, "caf-topic", generationIdOrMemberEpoch=a.epoch, memberId="A")
    )
    fetch("its epoch", "A", a.epoch)
    fetch("an epoch above", "A", a.epoch + 1)
    fetch("epoch 0", "A", 0)
    fetch("epoch -1", "A", -1)
    fetch("no member, epoch -1", None, -1)
    fetch("no member, epoch -2", None, -2)
    fetch("no member, its epoch", None, a.epoch)
    fetch("an empty member id, epoch -1", "", -1)
    fetch("a stranger", "X", 1)
    b.join(["caf-topic"])
    settle_all(a, b)
    fetch("an old epoch", "A", a.epoch - 1)
    fetch("its new epoch", "A", a.epoch)
    for version in (1, 2, 7, 8):
        s.call("a version without epochs", "OffsetFetch", version, fetch_request(g, "caf-topic", s, (0, 3)))
    several = [{"groupId": g, "memberId": "A", "memberEpoch": a.epoch, "topics": None}]
    several += [{"groupId": g, "memberId": "A", "memberEpoch": 1, "topics": None}]
    s.call("two of the same group", "OffsetFetch", 9, {"groups": several})
    a.leave()
    b.leave()
    fetch("an empty group, an old member", "A", a.epoch)
    fetch("an empty group, no member", None, -1)


def offset_deletion(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cax-topic", 2)
    new_topic(s, "cax-other", 1)
    new_topic(s, "cax-regex", 1)
    g = "cax"

    def delete(step: str, topic: str, *partitions: int) -> None:
        parts = [{"partitionIndex": p} for p in partitions]
        s.call(step, "OffsetDelete", 0, {"groupId": g, "topics": [{"name": topic, "partitions": parts}]})

    s.call("offsets without members", "OffsetCommit", 8, commit_request(g, "cax-other", offset=3))
    a = Member(s, g, "A")
    a.join(["cax-topic"], "joins a group that has offsets only")
    described(s, g)
    for topic in ("cax-topic", "cax-regex"):
        request = commit_request(g, topic, generationIdOrMemberEpoch=a.epoch, memberId="A")
        s.call(f"A commits for {topic}", "OffsetCommit", 9, request)
    delete("a subscribed topic", "cax-topic", 0, 1)
    delete("a topic that nobody wants", "cax-other", 0)
    delete("a topic that does not exist", "cax-none", 0)
    a.beat("subscribes by regex", subscribedTopicNames=[], subscribedTopicRegex="cax-r.*")
    a.beat_until("gets the other topic", lambda r: a.partitions("cax-regex") == [0], topicPartitions=[])
    delete("a topic that the regex matches", "cax-regex", 0)
    delete("a topic that was subscribed", "cax-topic", 0)
    a.leave()
    delete("an empty group", "cax-regex", 0)
    s.call("all that is left", "OffsetFetch", 9, fetch_request(g, None, s))


OFFSET_SCRIPTS = {
    "consumer_commits": commits,
    "consumer_commits_while_revoking": commits_while_revoking,
    "consumer_fetches": fetches,
    "consumer_offset_deletion": offset_deletion,
}
