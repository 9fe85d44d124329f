"""State checkpoints: the state they lead to, what makes one unusable, and that none is ahead of what is durable."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import LogId, Now
from kcoord.engine import state_checkpoint
from kcoord.engine.engine import Engine
from kcoord.engine.loader import LogLoader
from kcoord.engine.state_checkpoint import LogState, StateCheckpoints, StateNotWritten, StatePlan, write_state
from kcoord.log.errors import LogDamaged
from kcoord.log.log_config import LogConfig
from kcoord.log.partition_log import PartitionLog
from kcoord.log.serde import encode_record
from kcoord.log.state_file import FOOTER, BadStateFile, read_state_file, state_path
from kcoord.log.storage import MemoryStorage, Storage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.records.group_metadata import GroupMetadataKey, GroupMetadataValue
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.wire.record_batch import BatchBuilder, decode_records, parse_header
from tests.harness.engine import Client, open_engine
from tests.harness.log import batches_of

NAME = "__consumer_offsets-0"
LOG = LogId("__consumer_offsets", 0)
NOW = Now(0, 1_700_000_000_000)
KeyValue = tuple[bytes, bytes | None]


def new_core() -> Core:
    core = Core(CoreConfig())
    core.replay(core.metadata_log, 0, None, TopicRecord("__consumer_offsets", b"\x01" * 16))
    core.replay(core.metadata_log, 1, None, PartitionRecord(0, b"\x01" * 16, [1], [1]))
    return core


def commit(group: str, partition: int, offset: int | None) -> KeyValue:
    value = None if offset is None else OffsetCommitValue(offset, 1, "m", NOW.wall_ms + offset)
    return encode_record(OffsetCommitKey(group, "t", partition), value)


def old_commit(group: str, partition: int, has_value: bool) -> KeyValue:
    """In the form of brokers before 0.9."""
    key = b"\x00\x00" + commit(group, partition, None)[0][2:]
    return key, b"\x00\x00" + bytes(7) + b"\x05" + b"\x00\x01o" + bytes(8) if has_value else None


def group_record(group: str, generation: int | None) -> KeyValue:
    value = None
    if generation is not None:
        value = GroupMetadataValue("consumer", generation, None, None, NOW.wall_ms, [])
    return encode_record(GroupMetadataKey(group), value)


def random_record(rng: random.Random, number: int) -> KeyValue:
    group = rng.choice("abc")
    choice = rng.randrange(12)
    if choice < 5:
        return commit(group, rng.randrange(3), number)
    if choice < 8:
        return commit(group, rng.randrange(3), None)
    if choice == 8:
        return group_record(group, number)
    if choice == 9:
        return group_record(group, None)
    if choice == 10:
        return old_commit(group, rng.randrange(3), rng.random() < 0.5)
    return rng.choice([b"\x00\x63x", b"\x00\x0b\x00\x01a"]), rng.choice([None, b"\x00\x00?"])


def new_log(storage: Storage | None = None, segment_bytes: int = 700, partition: int = 0) -> PartitionLog:
    storage = storage or MemoryStorage()
    storage.make_dir(f"__consumer_offsets-{partition}")
    config = LogConfig(segment_bytes=segment_bytes)
    return PartitionLog(storage, "__consumer_offsets", partition, b"\x01" * 16, config)


def append(log: PartitionLog, records: list[KeyValue], wall_ms: int = 1000, **kind: Any) -> None:
    builder = BatchBuilder()
    for number, (key, value) in enumerate(records):
        # Times that go back, and headers, stay as they are.
        headers: list[tuple[str, bytes | None]] | None = [("why", b"x")] if number % 2 else None
        builder.append(wall_ms + 7 * log.end_offset - 3 * number, key, value, headers)
    base = log.end_offset
    log.append(builder.build(base, 0, **kind), base, base + len(records) - 1, wall_ms)
    log.flush()
    log.durable_end = log.written_end


def random_log(rng: random.Random, count: int) -> PartitionLog:
    log = new_log()
    while log.end_offset < count:
        size = min(rng.randrange(1, 5), count - log.end_offset)
        append(log, [random_record(rng, log.end_offset + n) for n in range(size)])
    return log


def batch_ends(log: PartitionLog) -> list[int]:
    return [parse_header(data, pos).last_offset + 1 for pos, data in batches_of(log, 0, log.end_offset)]


def plan_at(log: PartitionLog, from_offset: int, end: int) -> StatePlan:
    return StatePlan(log.name, log.log_start_offset, from_offset, end, log.extents(from_offset, end))


def loaded(log: PartitionLog) -> tuple[Core, str]:
    core = new_core()
    return core, LogState(log).load(core, LOG)


def whole(log: PartitionLog) -> Core:
    core = new_core()
    LogLoader(core, LOG).load_log(log, log.log_start_offset)
    return core


def assert_same(core: Core, other: Core) -> None:
    assert core.digest() == other.digest()
    assert core.offsets.count == other.offsets.count
    of_groups = {name: (group.end_offset, group.state) for name, group in core.groups.groups.items()}
    assert of_groups == {name: (group.end_offset, group.state) for name, group in other.groups.groups.items()}


@pytest.mark.parametrize("seed", range(6))
def test_checkpoint_and_tail_are_the_whole_log_at_every_offset(seed: int) -> None:
    log = random_log(random.Random(seed), 150)
    expected = whole(log)
    for end in batch_ends(log):
        records = write_state(log.storage, plan_at(log, 0, end))
        core, reason = loaded(log)
        assert not reason
        assert_same(core, expected)
        found = read_state_file(log.storage, state_path(NAME))
        assert found is not None and (found.end_offset, found.records) == (end, records)


@pytest.mark.parametrize("seed", range(6))
def test_each_checkpoint_is_made_from_the_last_one(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 200)
    expected = whole(log)
    last = 0
    for end in batch_ends(log):
        if rng.random() < 0.5:
            write_state(log.storage, plan_at(log, last, end))
            last = end
            assert_same(loaded(log)[0], expected)


def test_records_keep_offsets_timestamps_and_headers() -> None:
    log = random_log(random.Random(3), 120)
    write_state(log.storage, plan_at(log, 0, 120))
    before = {}
    for pos, data in batches_of(log, 0, 120):
        for record in decode_records(data, pos, parse_header(data, pos), 1 << 20):
            before[record.offset] = repr(record)
    data = log.storage.read_bytes(state_path(NAME))
    pos = 0
    kept = []
    while pos < len(data) - FOOTER.size:
        header = parse_header(data, pos)
        kept += decode_records(data, pos, header, 1 << 20)
        pos += header.size
    assert kept and all(before[record.offset] == repr(record) for record in kept)
    offsets = [record.offset for record in kept]
    assert offsets == sorted(set(offsets))


def test_the_file_follows_live_state_and_not_history() -> None:
    log = new_log(segment_bytes=1 << 20)
    for number in range(50):
        append(log, [commit("g", partition, number) for partition in range(10)])
        append(log, [commit(f"gone-{number}", 0, 1), commit(f"gone-{number}", 0, None)])
        append(log, [group_record(f"gone-{number}", 1), group_record(f"gone-{number}", None)])
    assert write_state(log.storage, plan_at(log, 0, log.end_offset)) == 10
    assert write_state(log.storage, plan_at(log, log.end_offset, log.end_offset)) == 10


def test_records_below_the_start_of_the_log_are_not_loaded() -> None:
    log = random_log(random.Random(4), 100)
    write_state(log.storage, plan_at(log, 0, 60))
    log.log_start_offset = 30
    assert_same(loaded(log)[0], whole(log))
    write_state(log.storage, plan_at(log, 60, 100))
    assert_same(loaded(log)[0], whole(log))


def test_any_changed_bit_or_lost_byte_is_found() -> None:
    log = random_log(random.Random(5), 60)
    write_state(log.storage, plan_at(log, 0, 40))
    path = state_path(NAME)
    good = log.storage.read_bytes(path)
    expected = whole(log)
    file = log.storage.open(path)
    bad = [good[:size] for size in range(len(good))]
    for at in range(len(good)):
        bad.append(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
    for number, data in enumerate(bad):
        file.truncate(0)
        file.append(data)
        with pytest.raises(BadStateFile):
            read_state_file(log.storage, path)
        if number % 97 == 0:
            core, reason = loaded(log)
            assert reason
            assert_same(core, expected)


def test_without_a_checkpoint_nothing_is_logged() -> None:
    log = random_log(random.Random(6), 40)
    core, reason = loaded(log)
    assert reason == ""
    assert_same(core, whole(log))


def test_a_checkpoint_ahead_of_the_log_is_removed() -> None:
    log = random_log(random.Random(7), 60)
    write_state(log.storage, plan_at(log, 0, 60))
    log.end_offset = log.written_end = batch_ends(log)[-2]
    core, reason = loaded(log)
    assert "removed" in reason
    assert not log.storage.exists(state_path(NAME))
    assert_same(core, whole(log))


def test_the_last_checkpoint_must_be_the_one_meant() -> None:
    log = random_log(random.Random(8), 60)
    with pytest.raises(StateNotWritten):
        write_state(log.storage, plan_at(log, 30, 60))
    write_state(log.storage, plan_at(log, 0, 40))
    with pytest.raises(StateNotWritten):
        write_state(log.storage, plan_at(log, 30, 60))


def test_when_to_write() -> None:
    log = new_log(segment_bytes=1 << 30)
    state = LogState(log)
    least = state_checkpoint.RECORDS_MIN
    builder = BatchBuilder()
    builder.append(1, *commit("g", 0, 1))
    batch = builder.build(0, 0)

    def grow(end: int) -> None:
        log.durable_end = end
        # What is not durable yet does not count.
        log.written_end = end + 1000
        log.end_offset = end + 2000

    log.append(batch, 0, 0, 1)
    log.flush()
    grow(least // state_checkpoint.AT_STOP - 1)
    assert state.plan(False) is None and state.plan(True) is None
    grow(least - 1)
    assert state.plan(False) is None
    grow(least)
    plan = state.plan(False)
    assert plan is not None and (plan.from_offset, plan.end_offset) == (0, least)
    # While it is being written, and when that failed, no other one is due until as much came again.
    state.tried_at = least
    assert state.plan(False) is None
    state.end_offset, state.records = least, 3 * least
    grow(3 * least)
    assert state.plan(False) is None
    assert LogState(log).plan(True) is not None
    grow(4 * least)
    plan = state.plan(False)
    assert plan is not None and (plan.from_offset, plan.end_offset) == (least, 4 * least)


def test_a_round_waits_until_a_start_would_replay_much() -> None:
    """The records of all logs count together, and so do their bytes. A stop does not wait."""
    states = StateCheckpoints()
    logs = {number: new_log(partition=number) for number in range(3)}
    for number, log in logs.items():
        states.load(new_core(), LogId("__consumer_offsets", number), log)
        states.logs[log.name].records_min = 8

    def grow(number: int, count: int) -> None:
        for _ in range(count):
            append(logs[number], [commit("g", 0, 1)])

    def due(at_stop: bool = False) -> list[tuple[str, int]]:
        return [(plan.log_name, plan.records()) for plan in states.plans(at_stop, not at_stop)]

    states.replay_records = 20
    states.replay_bytes = 1 << 20
    grow(0, 12)
    assert due() == []
    # Too few records of a log are not worth a file, and do not count.
    grow(1, 7)
    grow(2, 7)
    assert due() == []
    grow(2, 1)
    assert due() == [("__consumer_offsets-0", 12), ("__consumer_offsets-2", 8)]
    # They are under way, or have failed: as much again has to come.
    grow(0, 7)
    assert due() == []
    states.replay_bytes = sum(extent.end - extent.start for extent in logs[1].extents(0, 7))
    assert due() == []
    grow(1, 1)
    assert due() == [("__consumer_offsets-1", 8)]
    # Without a round for some time, no more is waited for.
    states.replay_bytes = 1 << 20
    grow(2, 8)
    assert due() == []
    assert [plan.log_name for plan in states.plans(False)] == ["__consumer_offsets-2"]
    grow(1, 1)
    assert due(at_stop=True) == [("__consumer_offsets-0", 19), ("__consumer_offsets-1", 9)]


def test_a_damaged_log_does_not_keep_the_others_from_their_checkpoints() -> None:
    states = StateCheckpoints()
    states.replay_records = 8
    for number in range(3):
        log = new_log(partition=number)
        states.load(new_core(), LogId("__consumer_offsets", number), log)
        states.logs[log.name].records_min = 8
        for _ in range(20):
            append(log, [commit("g", 0, 1)])
    # The position of the last checkpoint's end is looked up in a file that has something else now.
    damaged = states.logs["__consumer_offsets-1"]
    damaged.end_offset = damaged.tried_at = 1
    segment = damaged.log.segments[0]
    segment._indexed = False
    file = damaged.log.storage.open(segment.log_path)
    size = damaged.log.storage.size_of(segment.log_path)
    file.truncate(0)
    file.append(b"\xff" * size)
    with pytest.raises(LogDamaged):
        states.plans(False)
    assert [plan.log_name for plan in states.plans(False)] == ["__consumer_offsets-0", "__consumer_offsets-2"]
    assert states.plans(False) == []


@pytest.mark.parametrize("seed", range(4))
def test_keys_that_come_again_in_one_order(seed: int) -> None:
    """As clients commit, with now and then another order, a tombstone, a new key and one in an old form."""
    rng = random.Random(seed)
    log = new_log()
    cycle = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    number = 0
    for _ in range(60):
        for group, partition in cycle:
            number += 1
            choice = rng.randrange(40)
            if choice == 0:
                append(log, [commit(group, partition, None)])
            elif choice == 1:
                append(log, [old_commit(group, partition, True)])
            elif choice == 2:
                append(log, [commit("c", rng.randrange(3), number)])
            elif choice == 3:
                rng.shuffle(cycle)
                break
            else:
                append(log, [commit(group, partition, number)])
    # At the end the expected key is removed, while its group lives on.
    first, second = ("a", 0), ("a", 1)
    for _ in range(2):
        append(log, [commit(*first, 1), commit(*second, 1)])
    append(log, [commit(*first, 1), commit(*second, None)])
    for end in (log.end_offset // 3, log.end_offset):
        write_state(log.storage, plan_at(log, 0, end))
        core, reason = loaded(log)
        assert not reason
        assert_same(core, whole(log))


# --- whole engines


def offset_commit(group: str, number: int) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(number % 3, number, -1, "m")
    return OffsetCommitRequest(group, -1, "", None, -1, [OffsetCommitRequestTopic("t", bytes(16), [partition])])


def checkpoint(engine: Engine) -> int:
    """Write what is due, as the server has it written; how many."""
    engine.states.logs[NAME].records_min = engine.states.replay_records = 5
    plans = engine.states.plans(False)
    for plan in plans:
        engine.states.written(plan, write_state(engine.directory.storage, plan))
    return len(plans)


def logged(engine: Engine) -> list[str]:
    return [repr(fact.fields) for fact in engine.take_facts() if fact.event.startswith("state_")]


def without_checkpoints(storage: ForgetfulStorage) -> ForgetfulStorage:
    copy = storage.crash()
    if copy.exists(state_path(NAME)):
        copy.remove(state_path(NAME))
    return copy


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("seed", range(4))
def test_power_cuts_leave_no_checkpoint_ahead_of_the_log(seed: int, sync: str) -> None:
    rng = random.Random(seed)
    storage = ForgetfulStorage()
    written = loads = 0
    for _life in range(12):
        engine = open_engine(storage, NOW, random.Random(1), sync)
        assert logged(engine) == []
        client = Client(engine)
        client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 3, 1)]), NOW)
        if sync == "os":
            for name in ("", NAME, "__cluster_metadata-0"):
                storage.sync_dir(name)
            storage.open("__cluster_metadata-0/00000000000000000000.log").datasync()
        for number in range(rng.randrange(20)):
            client.send(apis.OFFSET_COMMIT, 8, offset_commit(rng.choice("abc"), number), NOW)
            ticket = engine.end_turn(NOW)
            if rng.random() < 0.3:
                written += checkpoint(engine)
            if ticket is not None:
                ticket.sync()
                engine.commit_done(ticket, NOW)
        storage = storage.crash(rng.choice((0, 0, 1, 37, 512)))
        # Opening twice: with the checkpoint, and with the log alone.
        other = open_engine(without_checkpoints(storage.crash()), NOW, random.Random(1), sync)
        storage = storage.crash()
        again = open_engine(storage, NOW, random.Random(1), sync)
        assert logged(again) == []
        assert again.core.digest() == other.core.digest()
        loads += again.states.logs[NAME].end_offset > 0
        storage = storage.crash()
    assert written > 5 and loads > 2


def test_an_engine_continues_from_its_checkpoint() -> None:
    storage = MemoryStorage()
    engine = open_engine(storage, NOW, sync="memory")
    client = Client(engine)
    client.ask(apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 3, 1)]), NOW)
    for number in range(20):
        client.ask(apis.OFFSET_COMMIT, 8, offset_commit("g", number), NOW)
    log = engine.directory.get("__consumer_offsets", 0)
    assert log is not None
    write_state(storage, plan_at(log, 0, 12))
    engine.stop()
    again = open_engine(storage, NOW, sync="memory")
    assert again.core.digest() == engine.core.digest()
    state = again.states.logs[NAME]
    assert (state.end_offset, state.records) == (12, 3)
    assert again.core.offsets.get("g", "t", 1) is not None
    assert LogLoader(new_core(), LOG).load_log(log, 12) == 8
