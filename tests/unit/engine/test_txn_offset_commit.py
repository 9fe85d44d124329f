"""TxnOffsetCommit in whole engines: batches in the log, answers that wait, restarts, power cuts, checkpoints."""

from __future__ import annotations

import random

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import OFFSETS_TOPIC, LogId, Marker, Now
from kcoord.core.transactions.held_commits import HOLD_MS
from kcoord.engine.engine import Engine
from kcoord.engine.state_checkpoint import write_state
from kcoord.log.storage import MemoryStorage, Storage
from kcoord.protocol import apis, errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.delete_groups import DeleteGroupsRequest
from kcoord.protocol.delete_topics import DeleteTopicsRequest
from kcoord.protocol.end_txn import EndTxnRequest
from kcoord.protocol.find_coordinator import FindCoordinatorRequest
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import parse_header
from tests.harness.engine import Client, decode_answer, finish_turn, open_engine, read_answers, take_output
from tests.harness.log import batches_of

VERSION_1, VERSION_2 = 3, 5
# EndTxn of these versions of transactions.
END_TXN_1, END_TXN_2 = 4, 5
NOW = Now(0, 1_700_000_000_000)
AFTER_HOLD = Now(HOLD_MS, NOW.wall_ms + HOLD_MS)
UNSTABLE = -errors.UNSTABLE_OFFSET_COMMIT
MISSING = -1


class Producer:
    """A transactional producer: its id and epoch, and whether it is in a transaction."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self.is_open = False
        # How many records it has written, where a test writes any.
        self.written = 0


class Rig:
    """An engine with transactional producers `p0` to `p2`. `version` is that of TxnOffsetCommit."""

    def __init__(
        self,
        storage: Storage | None = None,
        sync: str = "always",
        config: CoreConfig | None = None,
        version: int = VERSION_1,
    ) -> None:
        self.storage = storage or MemoryStorage()
        self.sync = sync
        self.config = config
        self.version = version
        self.open()
        self.client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 3, 1)]), NOW)
        self.client.ask(apis.FIND_COORDINATOR, 4, FindCoordinatorRequest("", 1, ["p0"]), NOW)
        self.producers = [Producer(f"p{number}") for number in range(3)]
        for producer in self.producers:
            body = InitProducerIdRequest(producer.transactional_id, 60_000)
            answer = self.client.ask(apis.INIT_PRODUCER_ID, 4, body, NOW)
            assert answer.error_code == errors.NONE
            producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch

    def open(self) -> None:
        self.engine: Engine = open_engine(self.storage, NOW, random.Random(1), self.sync, self.config)
        self.log_id: LogId = self.engine.core.offsets_logs()[0]
        self.log = self.engine.commits.logs[self.log_id]
        self.client = Client(self.engine)

    def restart(self) -> None:
        self.engine.stop()
        self.open()

    def begin(self, producer: Producer) -> None:
        """From version 5 on the commit itself adds the partition."""
        if not producer.is_open and self.version < VERSION_2:
            body = AddOffsetsToTxnRequest(producer.transactional_id, producer.producer_id, producer.epoch, "g")
            assert self.client.ask(apis.ADD_OFFSETS_TO_TXN, 3, body, NOW).error_code == errors.NONE
        producer.is_open = True

    def body(self, offset: int, partition: int = 0, number: int = 0, metadata: str = "m") -> TxnOffsetCommitRequest:
        producer = self.producers[number]
        partitions = [TxnOffsetCommitRequestPartition(partition, offset, -1, metadata)]
        topics = [TxnOffsetCommitRequestTopic("t", partitions)]
        return TxnOffsetCommitRequest(
            producer.transactional_id, "g", producer.producer_id, producer.epoch, -1, "", None, topics
        )

    def commit(self, offset: int, partition: int = 0, number: int = 0) -> int:
        self.begin(self.producers[number])
        client = self.client
        correlation_id = client.send(apis.TXN_OFFSET_COMMIT, self.version, self.body(offset, partition, number), NOW)
        finish_turn(self.engine, NOW)
        answers = read_answers(take_output(client.session))
        if not answers:
            # The first commit after an abort may be a late one of the aborted transaction, and is held for a moment.
            self.engine.fire_timers(AFTER_HOLD)
            finish_turn(self.engine, AFTER_HOLD)
            answers = read_answers(take_output(client.session))
        assert [answer[0] for answer in answers] == [correlation_id]
        answer = decode_answer(apis.TXN_OFFSET_COMMIT, self.version, answers[0][1])
        code = answer.topics[0].partitions[0].error_code
        assert isinstance(code, int)
        return code

    def end(self, is_commit: bool, number: int = 0) -> None:
        """End the producer's transaction, if it has one."""
        producer = self.producers[number]
        if not producer.is_open:
            return
        producer.is_open = False
        body = EndTxnRequest(producer.transactional_id, producer.producer_id, producer.epoch, is_commit)
        version = END_TXN_2 if self.version >= VERSION_2 else END_TXN_1
        answer = self.client.ask(apis.END_TXN, version, body, NOW)
        assert answer.error_code == errors.NONE
        if version == END_TXN_2:
            producer.producer_id, producer.epoch = answer.producer_id, answer.producer_epoch

    def plain(self, offset: int, partition: int = 0) -> None:
        topics = [OffsetCommitRequestTopic("t", bytes(16), [OffsetCommitRequestPartition(partition, offset, -1, "m")])]
        self.client.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest("g", -1, "", None, -1, topics), NOW)

    def append_marker(self, is_commit: bool) -> None:
        """The marker of the first producer's transaction alone, in the open commit."""
        producer = self.producers[0]
        producer_id, epoch = producer.producer_id, producer.epoch
        offset = self.log.append_marker(Marker(OFFSETS_TOPIC, 0, producer_id, epoch, is_commit, 0, 1), NOW.wall_ms)
        self.engine.core.replay_marker(self.log_id, offset, producer_id, epoch, is_commit)

    def fetch_body(self, partition: int = 0, stable: bool = True) -> OffsetFetchRequest:
        return OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [partition])], None, stable)

    def fetch(self, partition: int = 0, stable: bool = True) -> int:
        """The offset; a negative error code."""
        answer = self.client.ask(apis.OFFSET_FETCH, 7, self.fetch_body(partition, stable), NOW)
        found = answer.topics[0].partitions[0]
        code, offset = found.error_code, found.committed_offset
        assert isinstance(code, int) and isinstance(offset, int)
        return -code if code else offset

    def kinds(self) -> list[str]:
        """The batches of the log; "" for plain ones."""
        kinds: list[str] = []
        log = self.log.log
        for pos, data in batches_of(log, log.log_start_offset, log.end_offset):
            header = parse_header(data, pos)
            kinds.append("marker" if header.is_control else "transaction" if header.is_transactional else "")
        return kinds


@pytest.mark.parametrize("version", range(6))
def test_a_transaction_from_its_commit_to_its_marker(version: int) -> None:
    rig = Rig(version=version)
    rig.plain(1)
    assert rig.commit(7) == errors.NONE
    assert (rig.fetch(), rig.fetch(stable=False)) == (UNSTABLE, 1)
    rig.restart()
    assert (rig.fetch(), rig.fetch(stable=False)) == (UNSTABLE, 1)
    rig.end(True)
    assert (rig.fetch(), rig.fetch(stable=False)) == (7, 7)
    digest = rig.engine.core.digest()
    rig.restart()
    assert rig.fetch() == 7 and rig.engine.core.digest() == digest
    assert rig.kinds() == ["", "transaction", "marker"]


def test_an_aborted_transaction_leaves_the_offset_before_it() -> None:
    rig = Rig()
    rig.commit(7)
    rig.end(False)
    assert rig.fetch() == MISSING
    rig.plain(1)
    rig.commit(8)
    rig.end(False)
    rig.restart()
    assert rig.fetch() == 1


def test_the_producer_state_knows_the_open_transaction_after_a_restart() -> None:
    rig = Rig()
    rig.plain(1)
    rig.commit(7)
    rig.restart()
    partition = rig.log.partition
    assert partition is not None and partition.producers.entries[rig.producers[0].producer_id].txn_first_offset == 1
    rig.end(True)
    assert partition.producers.entries[rig.producers[0].producer_id].txn_first_offset == -1
    assert partition.announced_end == rig.log.next_offset == 3


def test_the_last_stable_offset_passes_a_transaction_when_its_marker_is_durable() -> None:
    rig = Rig()
    rig.plain(1)
    rig.commit(7)
    partition = rig.log.partition
    assert partition is not None and partition.last_stable_offset == 1
    rig.append_marker(False)
    ticket = rig.engine.end_turn(NOW)
    assert ticket is not None and partition.last_stable_offset == 1
    ticket.sync()
    rig.engine.commit_done(ticket, NOW)
    assert partition.last_stable_offset == 3
    finish_turn(rig.engine, NOW)
    aborted = partition.log.aborted_transactions(0, 3)
    assert [(entry.producer_id, entry.first_offset) for entry in aborted] == [(rig.producers[0].producer_id, 1)]


def test_answers_wait_for_their_batch_and_for_the_marker() -> None:
    rig = Rig()
    rig.plain(1)
    rig.begin(rig.producers[0])
    rig.client.send(apis.TXN_OFFSET_COMMIT, VERSION_1, rig.body(7), NOW)
    ticket = rig.engine.end_turn(NOW)
    assert ticket is not None and not read_answers(take_output(rig.client.session))
    ticket.sync()
    rig.engine.commit_done(ticket, NOW)
    assert len(read_answers(take_output(rig.client.session))) == 1
    rig.append_marker(True)
    rig.client.send(apis.OFFSET_FETCH, 7, rig.fetch_body(), NOW)
    ticket = rig.engine.end_turn(NOW)
    assert ticket is not None and not read_answers(take_output(rig.client.session))
    ticket.sync()
    rig.engine.commit_done(ticket, NOW)
    assert len(read_answers(take_output(rig.client.session))) == 1


def test_a_deleted_group_does_not_come_back() -> None:
    rig = Rig()
    rig.plain(1)
    rig.commit(7)
    rig.commit(8, partition=1)
    answer = rig.client.ask(apis.DELETE_GROUPS, 2, DeleteGroupsRequest(["g"]), NOW)
    assert answer.results[0].error_code == errors.NONE
    rig.end(True)
    assert rig.fetch() == rig.fetch(1) == MISSING
    assert not rig.engine.core.groups.is_known("g")
    rig.restart()
    assert rig.fetch() == MISSING


def test_records_that_exceed_a_batch_are_refused_with_a_code_for_commits() -> None:
    config = CoreConfig()
    config.group_events_enable = False
    config.coordinator_batch_bytes_max = 2000
    rig = Rig(config=config)
    rig.begin(rig.producers[0])
    answer = rig.client.ask(apis.TXN_OFFSET_COMMIT, VERSION_1, rig.body(1, metadata="m" * 3000), NOW)
    assert answer.topics[0].partitions[0].error_code == errors.INVALID_COMMIT_OFFSET_SIZE
    assert not rig.engine.core.offsets.pending.by_producer
    assert rig.commit(7) == errors.NONE


def test_the_offsets_of_one_transaction_are_limited() -> None:
    """Its marker applies all of them in one turn."""
    rig = Rig()
    rig.engine.core.transactional_commits.pending_offsets_max = 2
    assert [rig.commit(7, partition) for partition in (0, 1)] == [errors.NONE] * 2
    assert rig.commit(7, 2) == errors.INVALID_COMMIT_OFFSET_SIZE
    rig.end(True)
    assert rig.fetch(1) == 7 and rig.fetch(2) == MISSING
    assert rig.commit(7, 2) == errors.NONE


def test_nothing_of_transactions_is_an_event_of_a_group() -> None:
    config = CoreConfig()
    rig = Rig(config=config)
    for is_commit in (True, False):
        rig.commit(7)
        rig.end(is_commit)
    rig.restart()
    assert rig.engine.data_plane.table.find("__group_events", 0) is None


def test_a_full_disk_is_a_reason_to_try_again() -> None:
    """KAFKA_STORAGE_ERROR, which a broker's coordinator replaces as well, would end the transaction of librdkafka."""
    rig = Rig()
    rig.begin(rig.producers[0])
    rig.engine.set_disk_full(True)
    assert rig.commit(7) == errors.NOT_COORDINATOR
    rig.engine.set_disk_full(False)
    assert rig.commit(7) == errors.NONE


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
@pytest.mark.parametrize("seed", range(6))
def test_restarts_power_cuts_and_checkpoints_change_no_offset(seed: int, sync: str, version: int) -> None:
    """Whatever was answered is there, pending or not, after each crash and from any checkpoint."""
    rng = random.Random(seed)
    storage = ForgetfulStorage()
    rig = Rig(storage, sync, version=version)
    for _life in range(6):
        for _ in range(rng.randrange(1, 15)):
            choice = rng.randrange(6)
            if choice < 3:
                assert rig.commit(rng.randrange(100), rng.randrange(3), rng.randrange(3)) == errors.NONE
            elif choice == 3:
                rig.plain(rng.randrange(100), rng.randrange(3))
            else:
                rig.end(rng.random() < 0.7, rng.randrange(3))
        engine = rig.engine
        name = f"{OFFSETS_TOPIC}-0"
        engine.states.logs[name].records_min = engine.states.replay_records = 5
        for plan in engine.states.plans(False):
            engine.states.written(plan, write_state(engine.directory.storage, plan))
        expected = [rig.fetch(partition, stable) for partition in range(3) for stable in (True, False)]
        digest = engine.core.digest()
        if sync == "always" and rng.random() < 0.5:
            storage = storage.crash()
            rig.storage = storage
            rig.open()
        else:
            rig.restart()
        assert [rig.fetch(partition, stable) for partition in range(3) for stable in (True, False)] == expected
        assert rig.engine.core.digest() == digest


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_offsets_of_a_new_topic_wait_until_those_of_the_old_one_are_deleted(version: int) -> None:
    """Their tombstones would take back what the transaction has committed for the topic that is created again."""
    rig = Rig(version=version)
    partitions = [OffsetCommitRequestPartition(index, 1, -1, "m") for index in range(3)]
    for number in range(1000):
        topics = [OffsetCommitRequestTopic("t", bytes(16), partitions)]
        rig.client.ask(apis.OFFSET_COMMIT, 8, OffsetCommitRequest(f"f{number}", -1, "", None, -1, topics), NOW)
    rig.plain(1)
    rig.client.ask(apis.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=["t"]), NOW)
    rig.client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 3, 1)]), NOW)
    deletes = rig.engine.core.offset_deletes
    assert deletes.is_busy and rig.commit(7) == errors.COORDINATOR_LOAD_IN_PROGRESS
    turns = 0
    while deletes.is_busy:
        turns += 1
        rig.engine.fire_timers(NOW)
        finish_turn(rig.engine, NOW)
    assert turns > 1 and rig.commit(7) == errors.NONE
    rig.end(True)
    assert rig.fetch() == 7
    rig.restart()
    assert rig.fetch() == 7
