"""The admin client. `tests/interop/test_admin_client.py` runs these tests against a real broker."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position

from kcoord import client
from kcoord.client.admin.admin import Admin
from kcoord.client.admin.results import (
    BROKER_RESOURCE,
    DELETE,
    EARLIEST,
    GROUP_RESOURCE,
    LATEST,
    MAX_TIMESTAMP,
    TOPIC_RESOURCE,
    CommittedOffset,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ListedOffset,
    NewTopic,
)
from kcoord.client.admin.spread import only
from kcoord.client.errors import (
    BrokerError,
    IllegalState,
    InvalidConfiguration,
    RequestTimedOut,
    UnknownMember,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from kcoord.client.partition import TopicPartition
from kcoord.protocol import errors
from tests.client.groups import FIRST_MS, WAIT_S, classic_member, consumer_member, make_topic, produce


def code_of(result: object) -> int:
    assert isinstance(result, BrokerError), result
    return result.code


# --- offsets of groups (KIP-88)


async def test_all_offsets_of_a_group_in_one_call(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        one, two = await make_topic(admin, "all-offsets", 2)
        assert await admin.list_group_offsets("all-offsets") == {}
        committed = await admin.alter_group_offsets("all-offsets", {two: CommittedOffset(7, "note", 0), one: 3})
        assert committed == {one: None, two: None}
        everything = {one: CommittedOffset(3), two: CommittedOffset(7, "note", 0)}
        assert await admin.list_group_offsets("all-offsets") == everything
        assert await admin.list_group_offsets("all-offsets", require_stable=True) == everything
        some = [two, TopicPartition("all-offsets", 9)]
        assert await admin.list_group_offsets("all-offsets", some) == {two: everything[two]}


async def test_offsets_of_several_groups(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        (one,) = await make_topic(admin, "several")
        await admin.alter_group_offsets("several", {one: 5})
        found = await admin.list_groups_offsets({"several": None, "no-such-group": None, "with-some": [one]})
        assert found == {"several": {one: CommittedOffset(5)}, "no-such-group": {}, "with-some": {}}


async def test_a_partition_that_does_not_exist(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        (one,) = await make_topic(admin, "half-known")
        missing = TopicPartition("half-known", 4)
        done = await admin.alter_group_offsets("half-known", {one: 1, missing: 1})
        assert done[one] is None and isinstance(done[missing], UnknownTopicOrPartition)


async def test_delete_offsets(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        one, two = await make_topic(admin, "delete-offsets", 2)
        await admin.alter_group_offsets("delete-offsets", {one: 1, two: 2})
        assert await admin.delete_group_offsets("delete-offsets", [one]) == {one: None}
        assert await admin.list_group_offsets("delete-offsets") == {two: CommittedOffset(2)}
        with pytest.raises(BrokerError) as caught:
            await admin.delete_group_offsets("no-such-group", [one])
        assert caught.value.code == errors.GROUP_ID_NOT_FOUND


async def test_stable_offsets_wait_for_a_transaction(bootstrap: str) -> None:
    """KIP-447: an open transaction hides the offset until the deadline, or until it ends."""
    async with Admin(bootstrap) as admin:
        (one,) = await make_topic(admin, "stable")
        await admin.alter_group_offsets("stable", {one: 1})
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "stable", "log_level": 0})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        settings = {"bootstrap.servers": bootstrap, "group.id": "stable", "log_level": 0}
        consumer = Consumer(settings)
        producer.send_offsets_to_transaction([Position("stable", 0, 9)], consumer.consumer_group_metadata(), WAIT_S)
        consumer.close()
        assert await admin.list_group_offsets("stable") == {one: CommittedOffset(1)}
        with pytest.raises(RequestTimedOut) as caught:
            await admin.list_group_offsets("stable", require_stable=True, timeout_s=1)
        assert isinstance(caught.value.__cause__, UnstableOffsetCommit)
        producer.commit_transaction(WAIT_S)
        stable = await admin.list_group_offsets("stable", require_stable=True)
        assert stable[one] == CommittedOffset(9)


# --- groups


async def test_a_classic_group(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        (one,) = await make_topic(admin, "classic")
        async with classic_member(bootstrap, "classic-group", "classic", "reader"):
            group = await admin.describe_group("classic-group")
            assert (group.type, group.state, group.protocol_type) == ("classic", "Stable", "consumer")
            (member,) = group.members
            assert (member.client_id, member.assignment, member.epoch) == ("reader", (one,), None)
            assert group.coordinator.node_id >= 0 and f"{group.coordinator.host}:{group.coordinator.port}" == bootstrap
            (listed,) = [it for it in await admin.list_groups() if it.group_id == "classic-group"]
            assert (listed.state, listed.type, listed.protocol_type) == ("Stable", "classic", "consumer")
            with pytest.raises(UnknownMember):
                await admin.alter_group_offsets("classic-group", {one: 1})
            assert code_of((await admin.delete_groups("classic-group"))["classic-group"]) == errors.NON_EMPTY_GROUP
            offsets = await admin.delete_group_offsets("classic-group", [one])
            assert code_of(offsets[one]) == errors.GROUP_SUBSCRIBED_TO_TOPIC


async def test_a_consumer_group(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        partitions = await make_topic(admin, "next-gen", 2)
        async with consumer_member(bootstrap, "next-gen-group", "next-gen", "reader"):
            group = await admin.describe_group("next-gen-group")
            assert (group.type, group.assignor) == ("consumer", "uniform")
            (member,) = group.members
            assert (member.client_id, member.target) == ("reader", tuple(partitions))
            assert member.subscription == ("next-gen",) and member.epoch == group.epoch == group.assignment_epoch
            listed = {it.group_id for it in await admin.list_groups(types=["consumer"])}
            assert "next-gen-group" in listed
            assert "next-gen-group" not in {it.group_id for it in await admin.list_groups(types=["classic"])}
            assert "next-gen-group" not in {it.group_id for it in await admin.list_groups(states=["Empty"])}


async def test_groups_that_do_not_exist(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        (one,) = await make_topic(admin, "some-exist")
        await admin.alter_group_offsets("exists", {one: 1})
        described = await admin.describe_groups("exists", "no-such-group")
        assert only(described, "exists").state == "Empty"
        assert code_of(described["no-such-group"]) == errors.GROUP_ID_NOT_FOUND
        deleted = await admin.delete_groups("exists", "no-such-group")
        assert deleted["exists"] is None and code_of(deleted["no-such-group"]) == errors.GROUP_ID_NOT_FOUND
        assert "exists" not in {it.group_id for it in await admin.list_groups()}


async def test_remove_members(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await make_topic(admin, "removal")
        async with classic_member(bootstrap, "removal-group", "removal", "reader"):
            (member,) = (await admin.describe_group("removal-group")).members
            removed = await admin.remove_members("removal-group", ["no-such-member", member.member_id])
            assert removed[member.member_id] is None
            assert isinstance(removed["no-such-member"], UnknownMember)
        assert await admin.remove_members("removal-group") == {}


# --- topics


async def test_topics(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        new = NewTopic("made", 2, configs={"cleanup.policy": "compact"})
        assert only(await admin.create_topics(new, validate_only=True), "made").partitions == 2
        assert "made" not in {it.name for it in await admin.list_topics()}
        made = only(await admin.create_topics(new), "made")
        assert (made.partitions, made.replication_factor) == (2, 1)
        both = await admin.create_topics(new, NewTopic("made-too", 1))
        assert code_of(both["made"]) == errors.TOPIC_ALREADY_EXISTS and only(both, "made-too").partitions == 1
        (listed,) = [it for it in await admin.list_topics() if it.name == "made"]
        assert (listed.partition_count, listed.topic_id, listed.is_internal) == (2, made.topic_id, False)
        assert await admin.create_partitions({"made": 3}) == {"made": None}
        assert code_of((await admin.create_partitions({"made": 2}))["made"]) == errors.INVALID_PARTITIONS
        described = await admin.describe_topics("made", "no-such-topic")
        assert [it.partition for it in only(described, "made").partitions] == [0, 1, 2]
        assert all(it.replicas == it.in_sync == (it.leader,) for it in only(described, "made").partitions)
        assert isinstance(described["no-such-topic"], UnknownTopicOrPartition)
        deleted = await admin.delete_topics("made", "no-such-topic")
        assert deleted["made"] is None and isinstance(deleted["no-such-topic"], UnknownTopicOrPartition)


async def test_offsets_of_partitions_and_deleted_records(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        one, empty = await make_topic(admin, "offsets", 2)
        produce(bootstrap, "offsets", {0: 5})
        latest = await admin.list_offsets({one: LATEST, empty: LATEST})
        assert (only(latest, one).offset, only(latest, empty).offset) == (5, 0)
        newest = await admin.list_offsets({one: MAX_TIMESTAMP})
        assert only(newest, one) == ListedOffset(4, FIRST_MS + 4000, 0)
        timed = await admin.list_offsets({one: FIRST_MS + 1500, empty: FIRST_MS})
        assert only(timed, one) == ListedOffset(2, FIRST_MS + 2000, 0)
        assert only(timed, empty).offset == -1
        assert await admin.delete_records({one: 3}) == {one: 3}
        assert only(await admin.list_offsets({one: EARLIEST}, read_committed=True), one).offset == 3
        missing = TopicPartition("offsets", 5)
        both = await admin.list_offsets({one: EARLIEST, missing: EARLIEST})
        assert only(both, one).offset == 3 and isinstance(both[missing], UnknownTopicOrPartition)
        refused = await admin.delete_records({one: 99})
        assert code_of(refused[one]) == errors.OFFSET_OUT_OF_RANGE


async def test_times_of_records(bootstrap: str) -> None:
    """Inside a batch, before a marker, at the end, and in batches larger than an answer for many partitions."""
    async with Admin(bootstrap) as admin:
        one, marked, empty, large, larger = await make_topic(admin, "times", 5)
        produce(bootstrap, "times", {0: 5})
        produce(bootstrap, "times", {3: 2, 4: 2}, value=bytes(200_000))
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "times", "log_level": 0})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("times", b"x", partition=1, timestamp=FIRST_MS)
        producer.commit_transaction(WAIT_S)
        assert await admin.first_timestamps({one: 2, marked: 0, empty: 0, large: 1, larger: 0}) == {
            one: FIRST_MS + 2000, marked: FIRST_MS, empty: None, large: FIRST_MS + 1000, larger: FIRST_MS,
        }  # fmt: skip
        assert await admin.first_timestamps({one: 5, marked: 1}) == {one: None, marked: None}
        beyond = await admin.first_timestamps({one: 9, TopicPartition("times", 7): 0})
        assert code_of(beyond[one]) == errors.OFFSET_OUT_OF_RANGE
        assert isinstance(beyond[TopicPartition("times", 7)], UnknownTopicOrPartition)


async def entry_with(admin: Admin, resource: ConfigResource, name: str, value: str) -> ConfigEntry:
    """The entry of a configuration once it has this value: a broker shows a change a moment after its answer."""
    async with asyncio.timeout(WAIT_S):
        while (entry := only(await admin.describe_configs(resource), resource)[name]).value != value:
            await asyncio.sleep(0.02)
    return entry


async def test_configs(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await make_topic(admin, "configs")
        topic = ConfigResource(TOPIC_RESOURCE, "configs")
        assert await admin.alter_configs({topic: [ConfigChange("retention.ms", "1234")]}) == {topic: None}
        entry = await entry_with(admin, topic, "retention.ms", "1234")
        assert (entry.value, entry.source, entry.is_default) == ("1234", "topic", False)
        assert await admin.alter_configs({topic: [ConfigChange("retention.ms", operation=DELETE)]}) == {topic: None}
        assert (await entry_with(admin, topic, "retention.ms", str(7 * 24 * 3_600_000))).is_default
        bad = await admin.alter_configs({topic: [ConfigChange("retention.ms", "soon")]})
        assert code_of(bad[topic]) == errors.INVALID_CONFIG
        group = ConfigResource(GROUP_RESOURCE, "configs-group")
        await admin.alter_configs({group: [ConfigChange("consumer.session.timeout.ms", "50000")]})
        found = await entry_with(admin, group, "consumer.session.timeout.ms", "50000")
        assert (found.value, found.source) == ("50000", "group")
        node = (await admin.describe_cluster()).nodes[0]
        broker = ConfigResource(BROKER_RESOURCE, str(node.node_id))
        assert "num.partitions" in only(await admin.describe_configs(broker), broker)
        with pytest.raises(InvalidConfiguration):
            await admin.describe_configs(ConfigResource("tpoic", "configs"))


async def test_log_dirs(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        (one,) = await make_topic(admin, "log-dirs")
        produce(bootstrap, "log-dirs", {0: 3})
        found = await admin.describe_log_dirs()
        sizes = {it.partition: it.size_bytes for node in found for path in only(found, node) for it in path.replicas}
        assert sizes[one] > 0


# --- transactions and the cluster


async def test_transactions(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        (one,) = await make_topic(admin, "txn")
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "txn-id", "log_level": 0})
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("txn", b"x", partition=0)
        assert producer.flush(WAIT_S) == 0
        (listed,) = await admin.list_transactions(states=["Ongoing"], pattern="txn-.*")
        described = await admin.describe_transactions("txn-id", "no-such-id")
        found = only(described, "txn-id")
        assert (found.producer_id, found.state, found.partitions) == (listed.producer_id, "Ongoing", (one,))
        assert found.coordinator == listed.coordinator and found.start_ms > 0
        assert code_of(described["no-such-id"]) == errors.TRANSACTIONAL_ID_NOT_FOUND
        (active,) = only(await admin.describe_producers(one), one)
        assert (active.producer_id, active.transaction_start_offset) == (found.producer_id, 0)
        latest = await admin.list_offsets({one: LATEST}, read_committed=True)
        assert only(latest, one).offset == 0
        await admin.abort_transaction(one, active.producer_id, active.producer_epoch, active.coordinator_epoch)
        (active,) = only(await admin.describe_producers(one), one)
        assert active.transaction_start_offset == -1
        fenced = only(await admin.fence_producers("txn-id"), "txn-id")
        assert fenced.producer_epoch > found.producer_epoch or fenced.producer_id != found.producer_id


async def test_the_cluster(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        cluster = await admin.describe_cluster()
        assert cluster.cluster_id and [f"{it.host}:{it.port}" for it in cluster.nodes] == [bootstrap]
        features = await admin.describe_features()
        assert features.finalized["group.version"][1] == 1 and features.epoch >= 0


def test_public_names() -> None:
    assert client.Admin is Admin and client.TopicPartition is TopicPartition and client.BrokerError is BrokerError
    assert all(getattr(client, name) is not None for name in client.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = client.Nothing


async def test_life(bootstrap: str) -> None:
    admin = Admin(bootstrap)
    await admin.start()
    with pytest.raises(IllegalState):
        await admin.start()
    await admin.close()
    with pytest.raises(IllegalState):
        await admin.list_groups()
