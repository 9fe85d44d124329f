"""Scripts about consumer groups: subscriptions, topics that come and go, assignors, regular expressions, static members."""

from __future__ import annotations

from typing import Any

from tests.harness.consumer_session import ConsumerSession
from tests.harness.consumer_steps import (
    Member,
    delete_topic,
    described,
    grow_topic,
    new_topic,
    owned,
    settle_all,
)
from tests.harness.script_steps import wait_for_coordinator

# A group's regular expressions are resolved anew at most this often.
REGEX_PAUSE_S = 10.5


def learn_internal_topic(s: ConsumerSession) -> None:
    """Has the session know the topic's id, which differs from broker to broker."""
    with s.unrecorded():
        request = {"topics": [{"name": "__consumer_offsets"}], "allowAutoTopicCreation": False}
        s.call("wait", "Metadata", 12, request)


def subscriptions(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "css-one", 2)
    new_topic(s, "css-two", 1)
    g = "css"
    a = Member(s, g, "A")
    a.join(["css-one"])
    a.owns()
    a.beat("names the same topic", subscribedTopicNames=["css-one"])
    a.beat("names it twice", subscribedTopicNames=["css-one", "css-one"])
    a.beat("adds a topic", subscribedTopicNames=["css-two", "css-one"])
    a.beat("names both in another order", subscribedTopicNames=["css-one", "css-two"])
    a.owns()
    described(s, g, step="two topics")
    both = a.assigned
    a.beat("drops a topic", subscribedTopicNames=["css-two"])
    described(s, g, step="one topic is to be revoked")
    a.beat("still owns both", topicPartitions=both)
    a.owns("has revoked it")
    described(s, g, step="one topic")
    a.beat("drops a topic and tells at once that it is gone", subscribedTopicNames=["css-one"], topicPartitions=[])
    a.owns()
    described(s, g, step="the other topic")
    a.beat("wants a topic that does not exist", subscribedTopicNames=["css-one", "css-none"])
    a.beat("wants only that", subscribedTopicNames=["css-none"])
    a.owns()
    described(s, g, step="no topic")
    a.beat("wants none", subscribedTopicNames=[])
    a.owns()
    described(s, g, step="no subscription")
    a.beat("wants one with an odd name", subscribedTopicNames=["", "a/b", ".."])
    a.owns()
    learn_internal_topic(s)
    a.beat("wants an internal one", subscribedTopicNames=["__consumer_offsets"])
    a.owns()
    a.beat("wants a real one again", subscribedTopicNames=["css-two"])
    a.owns()
    described(s, g, step="a topic again")


def different_subscriptions(s: ConsumerSession) -> None:
    """Members that want different topics."""
    wait_for_coordinator(s)
    new_topic(s, "csd-one", 2)
    new_topic(s, "csd-two", 2)
    for assignor in ("uniform", "range"):
        g = f"csd-{assignor}"
        a, b, c = (Member(s, g, name) for name in "ABC")
        a.join(["csd-one"], serverAssignor=assignor)
        b.join(["csd-one", "csd-two"], serverAssignor=assignor)
        settle_all(a, b)
        described(s, g, step="one has one topic, one has both")
        c.join(["csd-two"], serverAssignor=assignor)
        settle_all(a, b, c)
        described(s, g, step="a third with the other topic")
        b.leave()
        settle_all(a, c)
        described(s, g, step="a topic each")


def topics_come_and_go(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    g = "cst"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["cst-topic"], "joins for a topic that does not exist yet")
    described(s, g, step="nothing to assign")
    new_topic(s, "cst-topic", 1)
    a.beat("after the topic was made")
    a.owns()
    described(s, g, step="its partition")
    new_topic(s, "cst-unrelated", 1)
    a.beat("after an unrelated topic was made")
    grow_topic(s, "cst-topic", 3)
    a.beat("after the topic grew")
    a.owns()
    b.join(["cst-topic", "cst-second"])
    settle_all(a, b)
    described(s, g, step="two members")
    new_topic(s, "cst-second", 1)
    settle_all(a, b)
    described(s, g, step="a second topic for one of them")
    delete_topic(s, "cst-second")
    b.beat("after the second topic was deleted")
    b.beat("once more")
    described(s, g, step="the second topic is gone")
    settle_all(a, b)
    b.leave()
    settle_all(a)
    delete_topic(s, "cst-topic")
    a.beat("after the topic was deleted")
    described(s, g, step="nothing left")
    a.owns()
    new_topic(s, "cst-topic", 2)
    a.beat("after the topic was made anew")
    a.owns()
    described(s, g, step="the new topic of that name")


def deleted_while_reconciling(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "csx-topic", 2)
    g = "csx"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["csx-topic"])
    b.join(["csx-topic"])
    a.beat("is told to revoke")
    delete_topic(s, "csx-topic")
    b.beat("after the topic was deleted")
    described(s, g, step="while A owns partitions of no topic")
    a.owns()
    settle_all(a, b)
    described(s, g, step="nobody has anything")


def assignors(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "csa-one", 3)
    new_topic(s, "csa-two", 3)
    g = "csa"
    a, b, c = (Member(s, g, name) for name in "ABC")
    a.join(["csa-one"], serverAssignor="range")
    described(s, g, step="range")
    b.join(["csa-one"])
    settle_all(a, b)
    described(s, g, step="range with two members, one of which did not ask for it")
    b.beat("asks for uniform", serverAssignor="uniform")
    described(s, g, step="a tie")
    c.join(["csa-one"], serverAssignor="uniform")
    described(s, g, step="most want uniform")
    settle_all(a, b, c)
    described(s, g, step="a partition each")
    a.beat("asks for uniform too", serverAssignor="uniform")
    described(s, g, step="a change of the assignor alone")
    c.leave()
    b.leave()
    settle_all(a)
    a.beat("asks for range again", serverAssignor="range")
    described(s, g, step="range again")
    g = "csa-range"
    topics = ["csa-one", "csa-two"]
    a, b, c = (Member(s, g, name) for name in "ABC")
    a.join(topics, serverAssignor="range")
    b.join(topics, serverAssignor="range")
    settle_all(a, b)
    described(s, g, step="the same numbers of both topics")
    c.join(["csa-two"], serverAssignor="range")
    settle_all(a, b, c)
    described(s, g, step="a third member for one of them")


def range_of_static_members(s: ConsumerSession) -> None:
    """Range goes by instance ids first."""
    wait_for_coordinator(s)
    new_topic(s, "csr-topic", 7)
    g = "csr"
    a = Member(s, g, "A")
    b = Member(s, g, "B", instance="z")
    c = Member(s, g, "C", instance="y")
    a.join(["csr-topic"], serverAssignor="range")
    b.join(["csr-topic"], serverAssignor="range")
    c.join(["csr-topic"], serverAssignor="range")
    settle_all(a, b, c)
    described(s, g)


def racks(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "csk-topic", 4)
    g = "csk"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(["csk-topic"], rackId="one")
    b.join(["csk-topic"], rackId="two")
    settle_all(a, b)
    described(s, g)
    a.beat("moves to another rack", rackId="three")
    described(s, g, step="after the move")


def regular_expressions(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "cre-one", 2)
    new_topic(s, "cre-two", 2)
    new_topic(s, "xcre-one", 1)
    g = "cre"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(None, "joins by regex", subscribedTopicRegex="cre-.*")
    a.beat_until("gets what it matches", lambda r: r["assignment"] is not None)
    a.owns()
    described(s, g, step="both topics and no other")
    described(s, g, step="both topics and no other", version=0)
    a.beat("says the same regex", subscribedTopicRegex="cre-.*")
    # Range, since uniform's choice between two topics hangs on their ids.
    b.join(None, "joins by the same regex", subscribedTopicRegex="cre-.*", serverAssignor="range")
    described(s, g, step="known already")
    b.leave()
    settle_all(a)
    a.beat("an invalid one", subscribedTopicRegex="(")
    a.beat("one that RE2 lacks", subscribedTopicRegex="(?<!a)b")
    a.beat("none any more", subscribedTopicRegex="")
    a.owns()
    described(s, g, step="no subscription")
    a.leave()
    described(s, g, step="empty")


def matching(s: ConsumerSession) -> None:
    """The whole name has to match."""
    wait_for_coordinator(s)
    new_topic(s, "crm-one", 1)
    new_topic(s, "crm-one-more", 1)
    regexes = ("crm-one", "crm", "rm-one", "^crm-one$", "crm-(one|two)(-more)?", "(?i)CRM-ONE", ".*crm-one", "crm.one")
    for number, regex in enumerate(regexes):
        matches(s, f"crm-{number}", regex)


def matches(s: ConsumerSession, group: str, regex: str) -> None:
    a = Member(s, group, "A")
    a.join(None, f"joins by {regex}", subscribedTopicRegex=regex)
    for _ in range(3):
        s.pause(0.2)
        with s.unrecorded():
            a.beat("waits")
    described(s, group, step=f"what {regex} matched")
    a.leave()


def matching_internal_topics(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    learn_internal_topic(s)
    matches(s, "cri", "__consumer_off.*")


def names_and_regex(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "crn-one", 1)
    new_topic(s, "crn-two", 1)
    g = "crn"
    a = Member(s, g, "A")
    a.join(["crn-one"], "joins by name and regex", subscribedTopicRegex="crn-t.*")
    a.beat_until("gets both", lambda r: len(a.assigned) == 2)
    a.owns()
    described(s, g, step="both")
    a.beat("drops the name", subscribedTopicNames=[])
    a.owns()
    described(s, g, step="the regex alone")
    a.beat("drops the regex for a name", subscribedTopicNames=["crn-one"], subscribedTopicRegex="")
    a.owns()
    described(s, g, step="the name alone")


def empty_regex(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    g = "crx"
    a = Member(s, g, "A")
    a.join(None, "joins with an empty regex", subscribedTopicRegex="")
    described(s, g)
    a.join(None, "joins with an invalid one", subscribedTopicRegex="[")
    a.join([], "joins with an empty regex and no names", subscribedTopicRegex="")
    described(s, g)
    a.leave()


def regex_and_new_topics(s: ConsumerSession) -> None:
    """What matches is looked up again when there are new topics, but not more than every ten seconds."""
    wait_for_coordinator(s)
    new_topic(s, "crt-one", 1)
    g = "crt"
    a, b = Member(s, g, "A"), Member(s, g, "B")
    a.join(None, subscribedTopicRegex="crt-.*")
    a.beat_until("gets the topic", lambda r: r["assignment"] is not None)
    new_topic(s, "crt-two", 1)
    a.owns("too early for a new topic")
    s.pause(0.5)
    a.beat("still too early")
    b.join(None, "joins by another regex, too early", subscribedTopicRegex="crt-t.*")
    described(s, g, step="nothing of that is resolved")
    s.pause(REGEX_PAUSE_S)
    a.beat("asks for it")
    s.pause(0.5)
    settle_all(a, b)
    described(s, g, step="a topic each")
    delete_topic(s, "crt-two")
    settle_all(a, b)
    described(s, g, step="one topic is gone")
    b.leave()
    settle_all(a)
    a.beat("changes its regex", subscribedTopicRegex="crt-o.*")
    described(s, g, step="a regex that is not resolved")
    s.pause(REGEX_PAUSE_S)
    a.beat("asks for it")
    s.pause(0.5)
    settle_all(a)
    described(s, g, step="resolved")
    a.leave()


def regex_refresh(s: ConsumerSession) -> None:
    """For a broker that looks up what regular expressions match every ten seconds, new topics or not."""
    wait_for_coordinator(s)
    new_topic(s, "crr-one", 1)
    g = "crr"
    a = Member(s, g, "A")
    a.join(None, subscribedTopicRegex="crr-.*")
    a.beat_until("gets the topic", lambda r: r["assignment"] is not None)
    a.owns()
    s.pause(REGEX_PAUSE_S)
    a.beat("has it looked up again")
    s.pause(0.5)
    a.beat("hears of no change")
    described(s, g)
    a.leave()


def static_members(s: ConsumerSession) -> None:
    wait_for_coordinator(s)
    new_topic(s, "csm-topic", 4)
    g = "csm"
    a, b = Member(s, g, "A", instance="one"), Member(s, g, "B", instance="two")
    a.join(["csm-topic"])
    b.join(["csm-topic"])
    settle_all(a, b)
    described(s, g, step="two static members")
    a.beat("heartbeats without its instance id", instanceId=None)
    a.beat("heartbeats as another instance", instanceId="two")
    a.beat("heartbeats as an unknown instance", instanceId="three")
    x = Member(s, g, "X", instance="one")
    x.join(["csm-topic"], "joins as an instance that is there")
    a.join(["csm-topic"], "joins again as itself")
    a.owns()
    described(s, g, step="as before")
    a.leave("leaves for a while", epoch=-2)
    described(s, g, step="A is away")
    b.owns()
    a.beat("heartbeats after that", memberEpoch=-2)
    a.beat("heartbeats with its epoch after that", memberEpoch=2)
    x.join(["csm-topic"], "comes back as A's instance")
    described(s, g, step="X is there for A")
    x.owns()
    b.owns()
    a.beat("the old one heartbeats", memberEpoch=2)
    a.beat("the old one heartbeats without its instance id", memberEpoch=2, instanceId=None)
    a.leave("the old one leaves")
    a.leave("the old one leaves for a while", epoch=-2)
    a.join(["csm-topic"], "the old one joins")
    x.beat("leaves as another instance", memberEpoch=-1, instanceId="two")
    x.beat("leaves as an unknown instance", memberEpoch=-1, instanceId="three")
    x.leave("leaves for good")
    described(s, g, step="X is gone")
    settle_all(b)
    described(s, g, step="B has all")
    b.leave("leaves for a while", epoch=-2)
    described(s, g, step="nobody is there, one is expected")
    c = Member(s, g, "C")
    c.join(["csm-topic"], "a dynamic member joins meanwhile")
    settle_all(c)
    described(s, g, step="C waits for what B keeps")
    b.join(["csm-topic"], "comes back under its own id")
    settle_all(b, c)
    described(s, g, step="both are there")
    b.beat("leaves by its member id alone", memberEpoch=-1, instanceId=None)
    described(s, g, step="C alone")


def static_member_changes(s: ConsumerSession) -> None:
    """Coming back with another subscription is a rebalance; with the same one it is none."""
    wait_for_coordinator(s)
    new_topic(s, "csn-one", 2)
    new_topic(s, "csn-two", 2)
    g = "csn"
    a, b = Member(s, g, "A", instance="one"), Member(s, g, "B")
    a.join(["csn-one"])
    b.join(["csn-one", "csn-two"])
    settle_all(a, b)
    described(s, g, step="before")
    a.leave("leaves for a while", epoch=-2)
    x = Member(s, g, "X", instance="one")
    x.join(["csn-one"], "comes back as it was", rebalanceTimeoutMs=20000)
    described(s, g, step="no rebalance")
    x.leave("leaves for a while", epoch=-2)
    y = Member(s, g, "Y", instance="one")
    y.join(["csn-two"], "comes back with another topic")
    settle_all(y, b)
    described(s, g, step="rebalanced")
    y.leave("leaves for a while", epoch=-2)
    b.beat("changes meanwhile", subscribedTopicNames=["csn-one"])
    settle_all(b)
    described(s, g, step="while Y is away")
    z = Member(s, g, "Z", instance="one")
    z.join(["csn-two"], "comes back with an assignor and a rack", serverAssignor="range", rackId="r")
    settle_all(z, b)
    described(s, g, step="after")
    z.join(["csn-two"], "tries an instance id of its own", instanceId="other")
    described(s, g, step="after that")


def leaving_while_revoking(s: ConsumerSession) -> None:
    """A static member that goes for a while in the middle of a revocation."""
    wait_for_coordinator(s)
    new_topic(s, "csw-topic", 4)
    g = "csw"
    a, b = Member(s, g, "A", instance="one"), Member(s, g, "B")
    a.join(["csw-topic"])
    b.join(["csw-topic"])
    a.beat("is told to revoke")
    described(s, g, step="revoking")
    a.leave("leaves for a while", epoch=-2)
    described(s, g, step="away")
    b.beat()
    described(s, g, step="B has what A was to give up")
    x = Member(s, g, "X", instance="one")
    x.join(["csw-topic"], "comes back")
    settle_all(x, b)
    described(s, g, step="both")
    other: dict[str, Any] = {"topicPartitions": owned(s, csw_topic=[0, 1, 2, 3])}
    x.beat("claims all", **other)
    described(s, g, step="as before")


SUBSCRIPTION_SCRIPTS = {
    "consumer_subscriptions": subscriptions,
    "consumer_different_subscriptions": different_subscriptions,
    "consumer_topics_come_and_go": topics_come_and_go,
    "consumer_deleted_while_reconciling": deleted_while_reconciling,
    "consumer_assignors": assignors,
    "consumer_range_of_static_members": range_of_static_members,
    "consumer_racks": racks,
    "consumer_regular_expressions": regular_expressions,
    "consumer_regex_matching": matching,
    "consumer_regex_internal_topics": matching_internal_topics,
    "consumer_names_and_regex": names_and_regex,
    "consumer_empty_regex": empty_regex,
    "consumer_regex_and_new_topics": regex_and_new_topics,
    "consumer_static_members": static_members,
    "consumer_static_member_changes": static_member_changes,
    "consumer_static_leaving_while_revoking": leaving_while_revoking,
}
