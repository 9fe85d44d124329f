"""Records that are more than a batch may hold: none is stored, and the soft state of the group is put right."""

from __future__ import annotations

from typing import Any

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.protocol import apis, errors
from kcoord.protocol.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from kcoord.protocol.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.harness.engine import Client, finish_turn, open_memory_engine
from tests.scenarios.embedded import subscription
from tests.scenarios.timer_check import timer_problems

SESSION_MS = 45_000
# More than a batch of 2 KiB may hold, as a subscription.
MANY = [f"{'x' * 60}-{number}" for number in range(50)]


def at(ms: int) -> Now:
    return Now(1000 + ms, 1_700_000_000_000 + ms)


def small_engine() -> Engine:
    config = CoreConfig()
    config.group_events_enable = False
    config.coordinator_batch_bytes_max = 2048
    config.group_consumer_assignment_interval_ms = 0
    engine = open_memory_engine(at(0), config=config)
    Client(engine).ask(apis.CREATE_TOPICS, 7, CreateTopicsRequest([CreatableTopic("t", 2, 1)], 1000, False), at(0))
    return engine


def beat(
    engine: Engine, member_id: str, epoch: int, now: Now, topics: list[str] | None = None, group: str = "g"
) -> Any:
    request = ConsumerGroupHeartbeatRequest(group, member_id, epoch, None, None, -1, topics)
    if epoch == 0:
        request.rebalance_timeout_ms = 60_000
        request.topic_partitions = []
    return Client(engine).ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, request, now)


def check_timers(engine: Engine) -> None:
    armed = [entry[2] for entry in engine.applier.timers._heap]
    assert timer_problems(engine.core.groups, armed) == []


def test_a_member_that_cannot_be_stored_is_not_half_there() -> None:
    engine = small_engine()
    assert beat(engine, "a", 0, at(0), MANY).error_code == errors.UNKNOWN_SERVER_ERROR
    assert "g" not in engine.core.groups.consumer_groups
    check_timers(engine)
    assert beat(engine, "a", 0, at(0), ["t"]).error_code == errors.NONE
    check_timers(engine)


def test_a_change_that_cannot_be_stored_takes_no_timer_and_no_partition() -> None:
    engine = small_engine()
    epoch = beat(engine, "a", 0, at(0), ["t"]).member_epoch
    assert beat(engine, "a", epoch, at(10), MANY).error_code == errors.UNKNOWN_SERVER_ERROR
    check_timers(engine)
    assert beat(engine, "b", 0, at(20), MANY).error_code == errors.UNKNOWN_SERVER_ERROR
    check_timers(engine)
    group = engine.core.groups.consumer_groups["g"]
    assert list(group.members) == ["a"]
    # Another one gets what the last assignment says, not what was computed for the one that was refused.
    assert beat(engine, "c", 0, at(30), ["t"]).error_code == errors.NONE
    assert sorted(len(p) for target in group.targets.values() for p in target.values()) == [1, 1]
    engine.fire_timers(at(SESSION_MS + 10))
    finish_turn(engine, at(SESSION_MS + 10))
    assert list(group.members) == ["c"]


def test_a_session_whose_end_cannot_be_stored_ends_later() -> None:
    engine = small_engine()
    beat(engine, "a", 0, at(0), ["t"])
    beat(engine, "b", 0, at(0), ["t"])
    log = engine.commits.logs[engine.core.log_of("g")]
    log.batch_bytes_max = 10
    engine.fire_timers(at(SESSION_MS))
    finish_turn(engine, at(SESSION_MS))
    assert len(engine.core.groups.consumer_groups["g"].members) == 2
    check_timers(engine)
    log.batch_bytes_max = 2048
    engine.fire_timers(at(2 * SESSION_MS))
    finish_turn(engine, at(2 * SESSION_MS))
    assert engine.core.groups.consumer_groups["g"].is_empty()


def test_a_classic_group_that_cannot_be_converted_continues() -> None:
    engine = small_engine()
    protocols = [JoinGroupRequestProtocol("range", subscription(["t"], 1, "", -1))]
    join = JoinGroupRequest("g", 10_000, 60_000, "", None, "consumer", protocols)
    waiting = Client(engine)
    waiting.send(apis.JOIN_GROUP, 3, join, at(0))
    engine.fire_timers(at(0))
    finish_turn(engine, at(0))
    assert engine.core.groups.groups["g"].members
    assert beat(engine, "a", 0, at(10), MANY).error_code == errors.UNKNOWN_SERVER_ERROR
    assert "g" not in engine.core.groups.consumer_groups
    check_timers(engine)
    # As after a restart: the log knows of no member yet.
    join.session_timeout_ms = 10_000
    second = Client(engine)
    second.send(apis.JOIN_GROUP, 3, join, at(20))
    engine.fire_timers(at(20))
    finish_turn(engine, at(20))
    assert len(engine.core.groups.groups["g"].members) == 1
    check_timers(engine)
