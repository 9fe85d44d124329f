"""What a server holds when worst frames arrive: topics, groups, members, offsets, data.

A world is made once, by requests, and each frame meets a copy of it: a forked process, or a server that was started on
a copy of the directory. Names are short, since a frame can repeat short names more often.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kcoord.codegen.schema import Field
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.storage import Storage
from kcoord.protocol import apis, errors
from kcoord.protocol.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kcoord.protocol.consumer_group_heartbeat import ClientAssignor, ConsumerGroupHeartbeatRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import AssignedTopic, GroupAssignment, InitProducerIdRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kcoord.wire.record_batch import BatchBuilder
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, run_jobs, take_output

# One topic with very many partitions, and many with one.
WIDE: Final = "w"
WIDE_PARTITIONS: Final = 8_000
TOPICS: Final = 1_000
# Groups that only have an offset each.
GROUPS: Final = 5_000
# A group with an offset and metadata of the largest size for each partition of the wide topic.
OFFSETS_GROUP: Final = "o"
METADATA_CHARS: Final = 4_096
OFFSETS_PER_COMMIT: Final = 200
# Groups of both protocols, with one member less than they may have, so that one more can come.
CLASSIC_GROUP: Final = "c"
CONSUMER_GROUP: Final = "k"
MEMBERS: Final = 9_999
# A group whose members compute their assignment, with what each has to say to the one that does.
CLIENT_GROUP: Final = "a"
ASSIGNOR: Final = "own"
ASSIGNOR_BYTES: Final = 500
SUBSCRIPTION_BYTES: Final = 500
CLASSIC_SESSION_MS: Final = 1_800_000
REBALANCE_DELAY_MS: Final = 3_000
# A request that takes more turns than this gets no answer.
ASK_TURNS_MAX: Final = 10_000
# A topic with data.
DATA: Final = "d"
DATA_PARTITIONS: Final = 64
DATA_BATCHES: Final = 60
DATA_BATCH_BYTES: Final = 16_000
# Transactional ids, without a transaction but for those below.
TRANSACTIONAL_IDS: Final = 10_000
TRANSACTION_TIMEOUT_MS: Final = 900_000
# Two transactions: with every partition of the wide topic, and with offsets for them of several groups.
WIDE_TRANSACTION: Final = 0
OFFSETS_TRANSACTION: Final = 1
# The next one is free. From here on each has a partition of the topic WIDE for the group OWNERS_GROUP.
FIRST_OWNER: Final = 3
OWNERS_GROUP: Final = "owners"
# A group of whose partitions nobody is the owner.
FREE_GROUP: Final = "free"
PENDING_GROUPS: Final = 5
TRANSACTION_KEY_TYPE: Final = 1


def topic_name(index: int) -> str:
    return f"t{index:05}"


def group_name(index: int) -> str:
    return f"g{index:05}"


def transactional_id(index: int) -> str:
    return f"x{index:05}"


class World:
    """An engine with something in it. A `scale` below 1 makes everything smaller, for tests."""

    def __init__(self, storage: Storage, now: Now, sync: str = "memory", scale: float = 1.0) -> None:
        self.now = now
        self.scale = scale
        self.engine: Engine = open_engine(storage, now, random.Random(7), sync)
        self.client = Client(self.engine)
        # Of members, by group.
        self.member_ids: dict[str, list[str]] = {}
        self.epochs: dict[str, int] = {}
        self.leader_id = ""
        self.topic_ids: dict[str, bytes] = {}

    def size(self, full: int) -> int:
        return max(int(full * self.scale), 4)

    def ask(self, api_key: int, version: int, message: Any) -> Any:
        return self.ask_on(self.client, api_key, version, message)

    def ask_on(self, client: Client, api_key: int, version: int, message: Any) -> Any:
        """Send a request and go on until it is answered: with jobs, and with what is left for later turns."""
        client.send(api_key, version, message, self.now)
        for _ in range(ASK_TURNS_MAX):
            run_jobs(self.engine, self.now)
            answers = read_answers(take_output(client.session))
            if answers:
                return decode_answer(api_key, version, answers[0][1])
            self.engine.fire_timers(self.now)
        raise RuntimeError(f"no answer to {apis.APIS[api_key].name}: {client.session.close_reason}")

    def sleep(self, ms: int) -> None:
        self.now = Now(self.now.mono_ms + ms, self.now.wall_ms + ms)
        self.engine.fire_timers(self.now)
        finish_turn(self.engine, self.now)

    def stop(self) -> None:
        """Close the logs as a server does when it stops."""
        finish_turn(self.engine, self.now)
        self.engine.stop()

    # --- what can be in it

    def add_topics(self) -> None:
        self._create([CreatableTopic(WIDE, self.size(WIDE_PARTITIONS), 1)])
        self._create([CreatableTopic(topic_name(index), 1, 1) for index in range(self.size(TOPICS))])

    def _create(self, topics: list[CreatableTopic]) -> None:
        answer = self.ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest(topics, 30_000, False))
        _check([topic.error_code for topic in answer.topics], "CreateTopics")
        for topic in answer.topics:
            self.topic_ids[topic.name] = topic.topic_id

    def add_groups(self) -> None:
        partition = [OffsetCommitRequestPartition(0, 1, -1, "")]
        for index in range(self.size(GROUPS)):
            self._commit(group_name(index), [OffsetCommitRequestTopic(topic_name(0), bytes(16), partition)])

    def add_offsets(self) -> None:
        # Several commits: all of that metadata is more than one request may have.
        text = "m" * METADATA_CHARS
        count = self.size(WIDE_PARTITIONS)
        for start in range(0, count, OFFSETS_PER_COMMIT):
            indexes = range(start, min(start + OFFSETS_PER_COMMIT, count))
            partitions = [OffsetCommitRequestPartition(index, index, 0, text) for index in indexes]
            self._commit(OFFSETS_GROUP, [OffsetCommitRequestTopic(WIDE, bytes(16), partitions)])

    def _commit(self, group: str, topics: list[OffsetCommitRequestTopic]) -> None:
        answer = self.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group, -1, "", None, -1, topics))
        _check([p.error_code for t in answer.topics for p in t.partitions], "OffsetCommit")

    def add_classic_members(self) -> None:
        engine = self.engine
        delay_ms = engine.config.group_initial_rebalance_delay_ms
        engine.config.group_initial_rebalance_delay_ms = REBALANCE_DELAY_MS
        clients = [Client(engine) for _ in range(self.size(MEMBERS))]
        metadata = struct.pack(">hih", 1, 1, len(WIDE)) + WIDE.encode()
        metadata += struct.pack(">i", SUBSCRIPTION_BYTES) + bytes(SUBSCRIPTION_BYTES) + struct.pack(">i", 0)
        protocols = [JoinGroupRequestProtocol("range", metadata)]
        session_ms = CLASSIC_SESSION_MS
        request = JoinGroupRequest(CLASSIC_GROUP, session_ms, session_ms, "", None, "consumer", protocols)
        for client in clients:
            client.send(apis.JOIN_GROUP, 3, request, self.now)
            finish_turn(engine, self.now)
        # Whoever comes in meanwhile makes the wait longer once.
        self.sleep(REBALANCE_DELAY_MS)
        self.sleep(REBALANCE_DELAY_MS)
        engine.config.group_initial_rebalance_delay_ms = delay_ms
        joined = [_answer(client, apis.JOIN_GROUP, 3) for client in clients]
        _check([answer.error_code for answer in joined], "JoinGroup")
        self.member_ids[CLASSIC_GROUP] = [answer.member_id for answer in joined]
        self.epochs[CLASSIC_GROUP] = generation = joined[0].generation_id
        self.leader_id = joined[0].leader
        leader = clients[self.member_ids[CLASSIC_GROUP].index(self.leader_id)]
        assignments = [SyncGroupRequestAssignment(answer.member_id, bytes(16)) for answer in joined]
        sync = SyncGroupRequest(CLASSIC_GROUP, generation, self.leader_id, None, None, None, assignments)
        _check([leader.ask(apis.SYNC_GROUP, 2, sync, self.now).error_code], "SyncGroup")
        for client in clients:
            engine.close_session(client.session, self.now)
        finish_turn(engine, self.now)

    def add_consumer_members(self) -> None:
        names = [f"m{index:05}" for index in range(self.size(MEMBERS))]
        for name in names:
            answer = self._beat(name, 0)
        run_jobs(self.engine, self.now)
        # The last ones are where the group is.
        self.epochs[CONSUMER_GROUP] = answer.member_epoch
        self.member_ids[CONSUMER_GROUP] = names[::-1]

    def add_client_members(self) -> None:
        """The first in `member_ids` is the one that was asked to compute."""
        names = [f"m{index:05}" for index in range(self.size(MEMBERS))]
        assignors = [ClientAssignor(ASSIGNOR, 0, 0, 0, 0, bytes(ASSIGNOR_BYTES))]
        for name in names:
            answer = self._beat(name, 0, CLIENT_GROUP, assignors)
        self.epochs[CLIENT_GROUP] = answer.member_epoch
        self.member_ids[CLIENT_GROUP] = names[::-1]
        if not self._beat(names[-1], answer.member_epoch, CLIENT_GROUP).should_compute_assignment:
            asked = next(n for n in names if self._beat(n, 0, CLIENT_GROUP, assignors).should_compute_assignment)
            self.member_ids[CLIENT_GROUP].insert(0, asked)

    def _beat(
        self, name: str, epoch: int, group: str = CONSUMER_GROUP, assignors: list[ClientAssignor] | None = None
    ) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group, name, epoch, None, None, 300_000, [WIDE], None, None, [], assignors
        )
        if epoch > 0:
            request = ConsumerGroupHeartbeatRequest(group, name, epoch, subscribed_topic_names=None)
        answer = self.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request)
        _check([answer.error_code], "ConsumerGroupHeartbeat")
        return answer

    def add_data(self) -> None:
        self._create([CreatableTopic(DATA, DATA_PARTITIONS, 1)])
        builder = BatchBuilder()
        builder.append(self.now.wall_ms, None, bytes(DATA_BATCH_BYTES))
        batch = builder.build(0, 0)
        for _ in range(self.size(DATA_BATCHES)):
            data = [PartitionProduceData(index, batch) for index in range(DATA_PARTITIONS)]
            request = ProduceRequest(None, -1, 30_000, [TopicProduceData(DATA, bytes(16), data)])
            answer = self.ask(apis.PRODUCE, 9, request)
            _check([p.error_code for t in answer.responses for p in t.partition_responses], "Produce")

    def add_transactions(self) -> None:
        """The producer with the transactional id of an index has this index as its id."""
        count = self.size(TRANSACTIONAL_IDS)
        self.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest("", TRANSACTION_KEY_TYPE, [transactional_id(0)]))
        for group in (OWNERS_GROUP, FREE_GROUP):
            self.epochs[group] = self._beat("m00000", 0, group).member_epoch
        wide = list(range(self.size(WIDE_PARTITIONS)))
        for index in range(count):
            body = InitProducerIdRequest(transactional_id(index), TRANSACTION_TIMEOUT_MS)
            if FIRST_OWNER <= index < FIRST_OWNER + len(wide):
                body.group_assignment = self.assignment(OWNERS_GROUP, [index - FIRST_OWNER])
            answer = self.ask(apis.INIT_PRODUCER_ID, 4, body)
            _check([answer.error_code, answer.producer_id - index], "InitProducerId")
        topics = [AddPartitionsToTxnTopic(WIDE, wide)]
        one = WIDE_TRANSACTION
        added = self.ask(
            apis.ADD_PARTITIONS_TO_TXN, 3, AddPartitionsToTxnRequest([], transactional_id(one), one, 0, topics)
        )
        results = added.results_by_topic_v3_and_below
        _check([p.partition_error_code for t in results for p in t.results_by_partition], "AddPartitionsToTxn")
        offsets = [TxnOffsetCommitRequestPartition(index, index, -1, "") for index in wide]
        one = OFFSETS_TRANSACTION
        for index in range(PENDING_GROUPS):
            request = TxnOffsetCommitRequest(
                transactional_id(one), group_name(index), one, 0, -1, "", None,
                [TxnOffsetCommitRequestTopic(WIDE, offsets)],
            )  # fmt: skip
            answer = self.ask(apis.TXN_OFFSET_COMMIT, 5, request)
            _check([p.error_code for t in answer.topics for p in t.partitions], "TxnOffsetCommit")

    def assignment(self, group: str, partitions: list[int]) -> GroupAssignment:
        """Partitions of the topic WIDE that the only member of the group has."""
        return GroupAssignment(group, self.epochs[group], "m00000", None, [AssignedTopic(WIDE, partitions)])


def _answer(client: Client, api_key: int, version: int) -> Any:
    answers = read_answers(take_output(client.session))
    assert len(answers) == 1, client.session.close_reason
    return decode_answer(api_key, version, answers[0][1])


def _check(codes: list[int], what: str) -> None:
    bad = [code for code in codes if code]
    if bad:
        raise RuntimeError(f"{what}: {errors.ERROR_NAMES.get(bad[0], bad[0])}")


# What each world has, by name.
CONTENTS: Final[dict[str, tuple[Callable[[World], None], ...]]] = {
    "empty": (),
    "topics": (World.add_topics,),
    "groups": (World.add_topics, World.add_groups),
    "offsets": (World.add_topics, World.add_offsets),
    "classic": (World.add_topics, World.add_classic_members),
    "consumer": (World.add_topics, World.add_consumer_members),
    "client": (World.add_topics, World.add_client_members),
    "data": (World.add_data,),
    "transactions": (World.add_topics, World.add_transactions),
}


def make_world(name: str, storage: Storage, now: Now, sync: str = "memory", scale: float = 1.0) -> World:
    world = World(storage, now, sync, scale)
    for add in CONTENTS[name]:
        add(world)
    finish_turn(world.engine, world.now)
    world.engine.take_facts()
    # From here on a bug costs its connection, as in a server.
    world.engine.outbox.strict = False
    return world


# Values that let a request through the first checks, by field name.
NUMBERS: Final[dict[str, int]] = {
    "Acks": -1,
    "AllowAutoTopicCreation": 1,
    "CurrentLeaderEpoch": -1,
    "GenerationId": -1,
    "GenerationIdOrMemberEpoch": -1,
    "IncludeAuthorizedOperations": 1,
    "IncludeDocumentation": 1,
    "IncludeSynonyms": 1,
    "IncludeTopicAuthorizedOperations": 1,
    "MaxBytes": 50 << 20,
    "MemberEpoch": -1,
    "NumPartitions": 1,
    "PartitionMaxBytes": 1 << 20,
    "RebalanceTimeoutMs": 30_000,
    "ReplicaId": -1,
    "ReplicationFactor": 1,
    "ResourceType": 2,
    "ResponsePartitionLimit": 2_000,
    "RetentionTimeMs": -1,
    "SessionEpoch": -1,
    "SessionTimeoutMs": 30_000,
    "Timestamp": -1,
}
GROUP_FIELDS: Final = ("GroupId", "Groups", "GroupIds", "GroupsNames", "CoordinatorKeys")
TOPIC_FIELDS: Final = ("Name", "Topic", "TopicName", "TopicNames", "ResourceName", "SubscribedTopicNames")


def choose(world: World, fixed: dict[str, object], api: str, field: Field, index: int) -> object:
    """What stands in a field so that a handler has as much to do as can be.

    `fixed` has values by field name that go before; of a list each element gets the next.
    """
    name = field.name
    if name in fixed:
        value = fixed[name]
        return value[index % len(value)] if isinstance(value, list | range) else value
    if name in GROUP_FIELDS:
        return group_name(index)
    if name in TOPIC_FIELDS and api != "JoinGroup":
        return topic_name(index)
    if name == "TopicId":
        return world.topic_ids.get(topic_name(index))
    return NUMBERS.get(name)


def chooser(world: World, **fixed: object) -> Callable[[str, Field, int], object]:
    return partial(choose, world, fixed)
