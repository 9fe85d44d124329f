"""Configurations of consumer groups: what is in force, within which bounds, and what survives."""

from __future__ import annotations

import pytest

from kcoord.core.config import CoreConfig
from kcoord.core.outcome import WARNING
from kcoord.core.topics.group_configs import GroupConfigs
from kcoord.core.topics.registry import RESOURCE_BROKER, RESOURCE_GROUP
from kcoord.protocol import errors
from kcoord.protocol.records.config_record import ConfigRecord
from tests.unit.core.admin.admin_rig import AdminRig
from tests.unit.core.admin.test_configs import DELETE, SET, alter, describe

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
INTERVAL = "consumer.assignment.interval.ms"
BROKER_INTERVAL = "group.consumer.assignment.interval.ms"


def in_force(rig: AdminRig, group_id: str = "g") -> tuple[int, int, int]:
    found = rig.topics.group_config(group_id)
    return found.session_timeout_ms, found.heartbeat_interval_ms, found.assignment_interval_ms


def test_a_group_takes_the_brokers_values_where_it_has_none() -> None:
    rig = AdminRig()
    assert in_force(rig) == (45000, 5000, 1000)
    assert alter(rig, RESOURCE_GROUP, "g", (SESSION, SET, " 50000 "), (INTERVAL, SET, "0")) == errors.NONE
    assert in_force(rig) == (50000, 5000, 0)
    assert in_force(rig, "other") == (45000, 5000, 1000)
    assert alter(rig, RESOURCE_GROUP, "g", (HEARTBEAT, SET, "6000"), (SESSION, DELETE, None)) == errors.NONE
    assert in_force(rig) == (45000, 6000, 0)
    rig.open()
    assert in_force(rig) == (45000, 6000, 0)
    alter(rig, RESOURCE_GROUP, "g", (HEARTBEAT, DELETE, None), (INTERVAL, DELETE, None))
    assert in_force(rig) == (45000, 5000, 1000)
    assert rig.topics.groups.by_group == {}


def test_the_brokers_interval_can_be_set_while_it_runs() -> None:
    rig = AdminRig()
    assert alter(rig, RESOURCE_BROKER, "", (BROKER_INTERVAL, SET, "700")) == errors.NONE
    assert in_force(rig)[2] == 700
    assert alter(rig, RESOURCE_BROKER, "1", (BROKER_INTERVAL, SET, "300")) == errors.NONE
    assert in_force(rig)[2] == 300
    shown = describe(rig, RESOURCE_GROUP, "g")[INTERVAL]
    assert shown.value == "300"
    assert [one.value for one in shown.synonyms] == ["300", "700", "1000"]
    rig.open()
    assert in_force(rig)[2] == 300
    for value in ("15001", "-1", "soon", ""):
        assert alter(rig, RESOURCE_BROKER, "1", (BROKER_INTERVAL, SET, value)) == errors.INVALID_REQUEST
    # For every node the bounds count only while they would count here.
    assert alter(rig, RESOURCE_BROKER, "", (BROKER_INTERVAL, SET, "15001")) == errors.NONE
    assert alter(rig, RESOURCE_BROKER, "1", (BROKER_INTERVAL, DELETE, None)) == errors.NONE
    assert in_force(rig)[2] == 15000
    assert alter(rig, RESOURCE_BROKER, "", (BROKER_INTERVAL, SET, "15002")) == errors.INVALID_REQUEST
    assert alter(rig, RESOURCE_BROKER, "", (BROKER_INTERVAL, DELETE, None)) == errors.NONE
    assert in_force(rig)[2] == 1000


def test_a_groups_own_interval_wins_over_the_brokers() -> None:
    rig = AdminRig()
    alter(rig, RESOURCE_BROKER, "", (BROKER_INTERVAL, SET, "700"))
    alter(rig, RESOURCE_GROUP, "g", (INTERVAL, SET, "5"))
    assert in_force(rig)[2] == 5


def test_values_outside_of_later_bounds_are_moved_into_them_and_shown_as_set() -> None:
    rig = AdminRig()
    alter(rig, RESOURCE_GROUP, "g", (SESSION, SET, "60000"), (HEARTBEAT, SET, "5000"), (INTERVAL, SET, "15000"))
    config = rig.topics.config
    config.group_consumer_max_session_timeout_ms = 50000
    config.group_consumer_min_heartbeat_interval_ms = 6000
    config.group_consumer_max_assignment_interval_ms = 2000
    rig.open()
    assert in_force(rig) == (50000, 6000, 2000)
    shown = describe(rig, RESOURCE_GROUP, "g")
    assert [shown[name].value for name in (SESSION, HEARTBEAT, INTERVAL)] == ["60000", "5000", "15000"]
    # Who touches the group has to put right what is wrong.
    assert alter(rig, RESOURCE_GROUP, "g", (SESSION, SET, "50000")) == errors.INVALID_CONFIG
    facts = [fact for fact in rig.topics.loaded(bytes(16)).facts if fact.level == WARNING]
    assert [(fact.event, fact.fields) for fact in facts] == [
        ("group_configs_out_of_bounds", {"groups": 1, "first": "g"})
    ]


@pytest.mark.parametrize("value", ["soon", "", "-5", "99999999999", "1.5"])
def test_invalid_group_configs_of_a_broker_s_log_have_no_effect(value: str) -> None:
    rig = AdminRig()
    record = ConfigRecord(RESOURCE_GROUP, "g", SESSION, value)
    rig.topics.replay_metadata(record, rig.topics.end_offset)
    rig.topics.replay_metadata(ConfigRecord(RESOURCE_GROUP, "g", "share.session.timeout.ms", "1"), 1000)
    assert in_force(rig) == (45000, 5000, 1000)


def test_a_session_must_be_longer_than_the_time_between_heartbeats() -> None:
    config = CoreConfig()
    config.group_consumer_min_session_timeout_ms = 1
    groups = GroupConfigs(config)
    assert groups.check({SESSION: "5001"}) == ""
    assert "must be greater than" in groups.check({SESSION: "5000"})
    assert groups.check({SESSION: "5001", HEARTBEAT: "5000"}) == ""
    assert "must be greater than" in groups.check({SESSION: "6000", HEARTBEAT: "6000"})
    config.group_consumer_session_timeout_ms = 7000
    assert "must be greater than" in groups.check({HEARTBEAT: "7000"})


def test_messages_name_the_bound() -> None:
    groups = GroupConfigs(CoreConfig())
    for name, low, high, what in (
        (SESSION, "44999", "60001", "session.timeout.ms"),
        (HEARTBEAT, "4999", "15001", "heartbeat.interval.ms"),
    ):
        assert groups.check({name: low}).endswith(f"group.consumer.min.{what}")
        assert groups.check({name: high}).endswith(f"group.consumer.max.{what}")
    assert groups.check({INTERVAL: "15001"}).endswith("group.consumer.max.assignment.interval.ms")
    assert groups.interval_problem(BROKER_INTERVAL, 15001).startswith(BROKER_INTERVAL)
    assert groups.check({SESSION: "0"}).endswith("Value must be at least 1")
