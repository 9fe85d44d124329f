"""What large groups and long subscriptions must not make a request do again and again."""

from __future__ import annotations

from kcoord.core.groups.consumer import ConsumerGroup
from kcoord.core.groups.members import ConsumerMember, sorted_unique
from kcoord.core.groups.store import GroupStore
from kcoord.core.outcome import LogId, Now
from kcoord.core.topics.group_topics import KNOWN_NAMES_MAX
from kcoord.protocol import apis
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.harness.engine import Client, open_memory_engine
from tests.unit.engine.test_engine_limits import create

NOW = Now(1000, 1_700_000_000_000)
LOG = LogId("__consumer_offsets", 0)


def member(name: str, topics: list[str]) -> ConsumerMember:
    made = ConsumerMember(name)
    made.topic_names = topics
    return made


def test_a_record_of_a_known_group_needs_no_hash_of_its_id() -> None:
    asked: list[str] = []

    def log_of(group_id: str) -> LogId:
        asked.append(group_id)
        return LOG

    store = GroupStore(log_of)
    store.consumer_groups["k"] = ConsumerGroup("k", LOG)
    store.touch("k", 7)
    assert asked == [] and store.last_log is LOG
    assert store.consumer_groups["k"].end_offset == store.last_end_offset == 7
    store.touch("nobody", 8)
    assert asked == ["nobody"] and store.last_end_offset == 8


def test_names_that_are_sorted_are_not_sorted_again() -> None:
    for names in ([], ["a"], ["a", "b", "c"]):
        assert sorted_unique(names) is names
    assert sorted_unique(["b", "a"]) == ["a", "b"]
    assert sorted_unique(["a", "a", "b"]) == ["a", "b"]


def test_a_member_with_the_same_names_leaves_their_counts_alone() -> None:
    group = ConsumerGroup("g", LOG)
    group.put_member(member("m", ["a", "b"]))
    group.put_member(member("n", ["b", "c"]))
    group.put_member(group.members["m"].copy())
    # A name that was counted anew would stand at the end.
    assert list(group.name_counts.items()) == [("a", 1), ("b", 2), ("c", 1)]
    group.put_member(member("m", ["b", "d"]))
    assert group.name_counts == {"b": 2, "c": 1, "d": 1}
    group.remove_member("n")
    assert group.name_counts == {"b": 1, "d": 1}


def test_topics_are_those_of_the_remaining_members() -> None:
    group = ConsumerGroup("g", LOG)
    first, second = member("m", ["a", "b"]), member("n", ["b", "c"])
    group.put_member(first)
    group.put_member(second)
    assert sorted(group.subscribed_topics_after([first], None)) == ["b", "c"]
    assert sorted(group.subscribed_topics_after([first, second], None)) == []
    assert sorted(group.subscribed_topics_after([first], member("m", ["b", "d"]))) == ["b", "c", "d"]
    assert sorted(group.subscribed_topics_after([], member("o", ["e"]))) == ["a", "b", "c", "e"]


def test_members_with_the_same_names_share_their_ids_until_topics_change() -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    create(client, "a")
    topics = engine.core.group_topics
    ids = topics.topic_ids(["a", "b"])
    assert len(ids) == 1
    assert topics.topic_ids(["a", "b"]) is ids
    create(client, "b")
    assert len(topics.topic_ids(["a", "b"])) == 2
    assert topics.topic_ids(["b"]) == [engine.core.topics.topics["b"].topic_id]


def test_lists_of_names_that_alternate_are_looked_up_once() -> None:
    engine = open_memory_engine(NOW)
    create(Client(engine), "a")
    topics = engine.core.group_topics
    lists = [["a"], ["a", "b"], ["b"]]
    first = [topics.topic_ids(list(names)) for names in lists]
    assert [topics.topic_ids(list(names)) for names in lists] == first
    assert all(topics.topic_ids(list(names)) is ids for names, ids in zip(lists, first, strict=True))
    # Too many names: they are looked up again.
    assert topics.topic_ids(["c"] * (KNOWN_NAMES_MAX + 1)) == []
    again = topics.topic_ids(["a"])
    assert again == first[0] and again is not first[0]


def test_only_what_an_assignor_sees_of_a_member_makes_the_builder_look_at_it() -> None:
    group = ConsumerGroup("g", LOG)
    group.put_member(member("m", ["a"]))
    assert group.changed_members == {"m": True}
    group.changed_members = {}
    moved = group.members["m"].copy()
    moved.member_epoch = 7
    moved.assigned = {b"t" * 16: {0: 7}}
    group.put_member(moved)
    assert group.changed_members == {}
    for name, value in (
        ("topic_names", ["b"]),
        ("topic_regex", "c.*"),
        ("instance_id", "i"),
        ("rack_id", "r"),
    ):
        changed = group.members["m"].copy()
        setattr(changed, name, value)
        group.put_member(changed)
        assert group.changed_members == {"m": True}, name
        group.changed_members = {}
    group.remove_member("m")
    assert group.changed_members == {"m": True}


def test_a_topic_of_nobody_does_not_make_a_group_compute_in_full() -> None:
    engine = open_memory_engine(NOW)
    client = Client(engine)
    create(client, "a")
    for name in ("m", "n"):
        request = ConsumerGroupHeartbeatRequest("g", name, 0, None, None, 60_000, ["a"], topic_partitions=[])
        client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request, NOW)
    group = engine.core.groups.consumer_groups["g"]
    builder = group.builder
    assert builder is not None and group.assignment_epoch < group.epoch
    create(client, "b")
    assert group.builder is builder
