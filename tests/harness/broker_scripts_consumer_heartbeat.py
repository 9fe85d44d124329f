"""Scripts about consumer groups: what a heartbeat is checked for, epochs, and reconciliation."""

from __future__ import annotations

from typing import Any

from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import Member, described, heartbeat, join_heartbeat, new_topic, owned
from tests.harness.schema_json import ZERO_UUID
from tests.harness.script_steps import wait_for_coordinator

UNKNOWN_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAZQ"


def validation(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "chv-topic")
    g = "chv"
    topics = ["chv-topic"]
    own: list[dict[str, Any]] = [{"topicId": s.topic_ids["chv-topic"], "partitions": [0]}]
    cases: dict[str, dict[str, Any]] = {
        "an empty group id": join_heartbeat("", "A", topics),
        "an empty member id when joining": join_heartbeat("chv-nameless", "", topics),
        "an empty member id with epoch 1": heartbeat(g, "", 1),
        "an empty member id when leaving": heartbeat(g, "", -1),
        "an empty member id when leaving for a while": heartbeat(g, "", -2, instanceId="one"),
        "epoch 0 without a rebalance timeout": join_heartbeat(g, "A", topics, rebalanceTimeoutMs=-1),
        "epoch 0 with null partitions": join_heartbeat(g, "A", topics, topicPartitions=None),
        "epoch 0 with partitions": join_heartbeat(g, "A", topics, topicPartitions=own),
        "epoch 0 without a subscription": join_heartbeat(g, "A", None),
        "epoch -2 without an instance id": heartbeat(g, "A", -2),
        "epoch -3": heartbeat(g, "A", -3),
        "the least epoch": heartbeat(g, "A", -(2**31)),
        "an empty instance id": join_heartbeat(g, "A", topics, instanceId=""),
        "an empty rack id": join_heartbeat(g, "A", topics, rackId=""),
        "an unknown assignor": join_heartbeat(g, "A", topics, serverAssignor="sticky"),
        "an empty assignor": join_heartbeat(g, "A", topics, serverAssignor=""),
        "an assignor in upper case": join_heartbeat(g, "A", topics, serverAssignor="Uniform"),
        "an unknown assignor and an unknown group": heartbeat("chv-nobody", "A", 1, serverAssignor="sticky"),
        "an unknown assignor and no rebalance timeout": join_heartbeat(
            g, "A", topics, rebalanceTimeoutMs=-1, serverAssignor="x"
        ),
        "an unknown assignor when leaving": heartbeat(g, "A", -1, serverAssignor="sticky"),
        "epoch 1 of an unknown group": heartbeat("chv-nobody", "A", 1),
        "leaving an unknown group": heartbeat("chv-nobody", "A", -1),
        "leaving an unknown group for a while": heartbeat("chv-nobody", "A", -2, instanceId="one"),
        "the largest epoch of an unknown group": heartbeat("chv-nobody", "A", 2**31 - 1),
    }
    for version in (0, 1):
        for step, request in cases.items():
            s.call(step, "ConsumerGroupHeartbeat", version, request)
    for step, regex in (("an invalid regex", "["), ("a look-ahead", "a(?=b)"), ("a back reference", "(a)\\1")):
        s.call(step, "ConsumerGroupHeartbeat", 1, join_heartbeat(g, "A", None, subscribedTopicRegex=regex))
    described(s, g, "chv-nobody", "chv-nameless", step="what all that left")


def join_and_leave(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "chj-topic", 3)
    g = "chj"
    a = Member(s, g, "A")
    a.join(["chj-topic"])
    described(s, g)
    described(s, g, version=0)
    a.beat()
    a.owns()
    a.beat("says all again", rebalanceTimeoutMs=30000, subscribedTopicNames=["chj-topic"], topicPartitions=a.assigned)
    a.beat("says all but what it owns", rebalanceTimeoutMs=30000, subscribedTopicNames=["chj-topic"])
    a.beat("says all but the timeout", subscribedTopicNames=["chj-topic"], topicPartitions=a.assigned)
    a.beat("owns less than it was given", topicPartitions=owned(s, chj_topic=[0]))
    a.beat("owns nothing", topicPartitions=[])
    a.beat("owns a partition that does not exist", topicPartitions=owned(s, chj_topic=[0, 99]))
    a.beat("owns a topic that does not exist", topicPartitions=[{"topicId": UNKNOWN_TOPIC_ID, "partitions": [0]}])
    a.beat("changes its rebalance timeout", rebalanceTimeoutMs=1234)
    a.beat("says the same rebalance timeout", rebalanceTimeoutMs=1234)
    a.beat("tells its rack", rackId="rack-1")
    a.beat("names an assignor", serverAssignor="uniform")
    described(s, g)
    a.version = 0
    a.beat("heartbeats with v0")
    a.version = 1
    a.join(["chj-topic"], "joins again with epoch 0")
    described(s, g, step="after joining again")
    a.leave()
    described(s, g, step="the empty group")
    a.leave("leaves again")
    a.beat("heartbeats after leaving", memberEpoch=1)
    a.join(["chj-topic"], "comes back")
    a.leave("leaves with a subscription and an epoch nobody asks for")
    b = Member(s, g, "", version=0)
    b.name = "B"
    b.join(["chj-topic"], "joins with v0 and without an id")
    b.owns()
    described(s, g, step="a member with an id made by the server")
    b.leave()
    c = Member(s, g, "C", version=0)
    c.join(["chj-topic"], "joins with v0 and an id of its own")
    c.leave()
    d = Member(s, g, "a rather long member id, with blanks and ünïcode")
    d.name = "D"
    d.join([], "joins without topics")
    described(s, g, step="a member without topics")
    d.leave()


def two_members(s: ConsumerSession) -> None:
    """Revocation step by step: what one gives up the other gets, and never before."""
    wait_for_coordinator(s)
    new_topic(s, "ch2-topic", 4)
    g = "ch2"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["ch2-topic"])
    a.owns()
    before = a.assigned
    b.join(["ch2-topic"])
    described(s, g, step="B waits for what A has")
    b.beat("heartbeats and still waits")
    b.owns("owns nothing and still waits")
    a.beat("hears of it")
    described(s, g, step="A is to revoke")
    a.beat("heartbeats without saying what it owns")
    a.beat("still owns all", topicPartitions=before)
    a.beat(
        "says all, still owning all",
        rebalanceTimeoutMs=30000,
        subscribedTopicNames=["ch2-topic"],
        topicPartitions=before,
    )
    b.beat("waits on")
    a.beat(
        "gave up one of two",
        topicPartitions=[{"topicId": before[0]["topicId"], "partitions": before[0]["partitions"][:3]}],
    )
    b.beat("waits for both")
    a.owns("gave up both")
    described(s, g, step="A is done")
    a.beat()
    b.beat("gets its share")
    described(s, g, step="both are done")
    b.owns()
    a.owns()
    described(s, g, step="stable")
    b.leave()
    described(s, g, step="after B left")
    a.beat("gets all back")
    a.owns()
    described(s, g, step="stable with A alone")
    a.leave()


def three_members(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "ch3-topic", 6)
    g = "ch3"
    a, b, c = (Member(s, g, name) for name in "ABC")
    a.join(["ch3-topic"])
    a.owns()
    b.join(["ch3-topic"])
    a.beat("hears of B")
    c.join(["ch3-topic"], "joins while A revokes")
    described(s, g, step="two wait for A")
    a.beat("has not revoked yet", topicPartitions=owned(s, ch3_topic=[0, 1, 2, 3, 4, 5]))
    a.owns("revoked for B, is told to for C")
    described(s, g, step="A revokes again or is done")
    b.beat()
    c.beat()
    a.owns()
    b.owns()
    c.owns()
    b.owns()
    c.owns()
    a.owns()
    described(s, g, step="stable with three")
    b.leave()
    a.owns()
    c.owns()
    a.owns()
    described(s, g, step="stable with two")
    c.leave("leaves before it was told anything")
    a.leave()
    described(s, g, step="empty")


def more_members_than_partitions(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "chm-topic", 1)
    g = "chm"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["chm-topic"])
    b.join(["chm-topic"], "joins and gets nothing")
    a.owns()
    b.owns()
    described(s, g, step="one of two has something to do")
    a.leave()
    b.owns("takes over")
    b.owns()
    described(s, g, step="B alone")


def leaving_while_reconciling(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "chw-topic", 4)
    g = "chw"
    a, b, c = (Member(s, g, name) for name in "ABC")
    a.join(["chw-topic"])
    b.join(["chw-topic"])
    a.beat("is told to revoke")
    a.leave("leaves without revoking")
    described(s, g, step="A is gone")
    b.beat("gets what A had")
    b.owns()
    described(s, g, step="B has all")
    c.join(["chw-topic"])
    b.beat("is told to revoke")
    c.leave("leaves while waiting")
    described(s, g, step="C is gone")
    b.beat("has not revoked", topicPartitions=owned(s, chw_topic=[0, 1, 2, 3]))
    b.owns("has revoked meanwhile")
    b.owns()
    described(s, g, step="B has all again")


def lost_responses(s: ConsumerSession) -> None:
    """A member that did not hear of its new epoch repeats the old one; what it says it owns decides."""
    wait_for_coordinator(s)
    new_topic(s, "chl-topic", 4)
    g = "chl"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["chl-topic"])
    a.beat("repeats the join's epoch 0 with what it owns", memberEpoch=0, topicPartitions=a.assigned)
    a.join(["chl-topic"], "repeats the join")
    b.join(["chl-topic"])
    a.beat("is told to revoke")
    a.owns("revoked, and is told its epoch")
    epoch = a.epoch
    kept = a.partitions("chl-topic")
    whole = owned(s, chl_topic=[0, 1, 2, 3])

    def old(step: str, **fields: Any) -> None:
        a.beat(f"repeats its previous epoch {step}", memberEpoch=epoch - 1, **fields)

    old("with what it has", topicPartitions=owned(s, chl_topic=kept))
    old("with a part", topicPartitions=owned(s, chl_topic=kept[:1]))
    old("with nothing", topicPartitions=[])
    old("with more than it has", topicPartitions=whole)
    old("with a partition of another topic", topicPartitions=[{"topicId": UNKNOWN_TOPIC_ID, "partitions": [0]}])
    old(
        "with another topic but none of its partitions",
        topicPartitions=[{"topicId": UNKNOWN_TOPIC_ID, "partitions": []}],
    )
    old("with the zero topic id", topicPartitions=[{"topicId": ZERO_UUID, "partitions": []}])
    old("without telling what it has")
    old(
        "with all fields",
        topicPartitions=owned(s, chl_topic=kept),
        rebalanceTimeoutMs=30000,
        subscribedTopicNames=["chl-topic"],
    )
    a.beat("says an epoch before the previous one", memberEpoch=epoch - 2, topicPartitions=[])
    a.beat("says an epoch above", memberEpoch=epoch + 1, topicPartitions=[])
    a.beat("says a far too large epoch", memberEpoch=2**31 - 1, topicPartitions=[])
    described(s, g, step="nothing of this changed anything")
    a.beat("goes on", memberEpoch=epoch)
    b.beat("gets its share")
    b.beat("repeats its previous epoch with nothing", memberEpoch=b.epoch - 1, topicPartitions=[])
    b.beat("repeats epoch 1", memberEpoch=1, topicPartitions=[])
    described(s, g, step="both")


def unknown_members(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "chu-topic", 2)
    g = "chu"
    a = Member(s, g, "A")
    a.join(["chu-topic"])
    stranger = Member(s, g, "X")
    for epoch in (1, 7, -1):
        stranger.beat(f"speaks with epoch {epoch}", memberEpoch=epoch)
    stranger.beat("speaks with epoch -2 and an instance id", memberEpoch=-2, instanceId="one")
    stranger.beat("speaks with epoch 1 and an instance id", memberEpoch=1, instanceId="one")
    stranger.beat("leaves with an instance id", memberEpoch=-1, instanceId="one")
    a.beat("the member gives itself an instance id", instanceId="one")
    a.beat("the member leaves with an unknown instance id", memberEpoch=-1, instanceId="two")
    described(s, g)
    a.beat("leaves for a while without being static", memberEpoch=-2, instanceId="one")
    a.beat("an epoch below zero that is none", memberEpoch=-5)


def rejoining(s: ConsumerSession) -> None:
    """A known member may start over with epoch 0 at any moment (KAFKA-19233)."""
    wait_for_coordinator(s)
    new_topic(s, "chr-topic", 4)
    new_topic(s, "chr-other", 1)
    g = "chr"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["chr-topic"])
    a.join(["chr-topic"], "joins again when stable")
    described(s, g, step="A alone")
    b.join(["chr-topic"])
    b.join(["chr-topic"], "joins again while waiting")
    a.beat("is told to revoke")
    a.join(["chr-topic"], "joins again instead of revoking")
    described(s, g, step="A started over")
    b.beat()
    b.join(["chr-topic"], "joins again with its share")
    a.owns()
    b.owns()
    described(s, g, step="both stable")
    a.join(["chr-topic", "chr-other"], "joins again with one more topic")
    a.owns()
    b.owns()
    a.owns()
    described(s, g, step="one more topic")
    a.join(["chr-other"], "joins again with the other topic alone")
    b.owns()
    a.owns()
    b.owns()
    described(s, g, step="a topic each")


HEARTBEAT_SCRIPTS = {
    "consumer_validation": validation,
    "consumer_join_and_leave": join_and_leave,
    "consumer_two_members": two_members,
    "consumer_three_members": three_members,
    "consumer_more_members_than_partitions": more_members_than_partitions,
    "consumer_leaving_while_reconciling": leaving_while_reconciling,
    "consumer_lost_responses": lost_responses,
    "consumer_unknown_members": unknown_members,
    "consumer_rejoining": rejoining,
}
