"""docs/controls.md is complete and true: each control of kcoord in it exists and has a test with a real client, and it
names every control of kfake and of librdkafka's mock cluster.

To add a row: write it into the page, and add its first cell to TESTS with the tests that use its controls. To find out
what the others have now, look at the exported functions of franz-go's `pkg/kfake` and at `rdkafka_mock.h`, and correct
KFAKE and MOCK together with the page.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from kcoord.testing.double.controls import Fault
from kcoord.testing.fixture import KcoordServer
from kcoord.testing.remote.operations import METHODS

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "controls.md"
CLIENTS: Final = re.compile(r"^from (aiokafka|confluent_kafka|kcoord\.client)\b", re.MULTILINE)
NONE: Final = "-"

# The first cell of each row with controls of ours: its tests, as module.function of tests/double. All together they use
# every control that the row names. A fixture may stand beside the tests that use it.
TESTS: Final[dict[str, tuple[str, ...]]] = {
    "several brokers": ("test_cluster.test_what_clients_see_of_the_cluster", "test_cluster.shared"),
    "stop and start a broker": ("test_cluster.test_a_failover",),
    "add or remove a broker": ("test_cluster.test_a_broker_that_is_added",),
    "racks": ("test_controls.test_each_broker_has_a_rack", "test_cluster.test_racks"),
    "move a leader": ("test_cluster.test_a_produce_to_the_old_leader_names_the_new_one",),
    "move a coordinator": ("test_cluster.test_aiokafka_follows_a_group_to_its_coordinator",),
    "who is responsible": (
        "test_cluster.test_what_clients_see_of_the_cluster",
        "test_cluster.test_a_failover",
    ),
    "API versions of an earlier release": (
        "test_releases.test_librdkafka_uses_the_versions_of_the_release",
        "test_releases.test_one_api_up_to_a_version",
    ),
    "the classic protocol only": ("test_releases.test_a_cluster_with_the_classic_protocol_only",),
    "settings": ("test_controls.test_settings",),
    "answer with an error": (
        "test_faults.test_a_client_repeats_a_commit_that_was_refused",
        "test_faults.test_rules_by_client_and_topic",
        "test_controls.test_rules_by_version_and_partition",
        "test_controls.test_rules_by_connection",
        "test_controls.test_rules_by_transactional_id",
    ),
    "an error for one partition": (
        "test_parts.test_a_produce_fails_for_one_partition_and_is_repeated_for_it_alone",
        "test_parts.test_one_partition_is_fetched_while_another_one_fails",
    ),
    "how often, and from which request on": (
        "test_faults.test_a_client_repeats_a_commit_that_was_refused",
        "test_faults.test_skip",
        "test_faults.test_the_same_seed_makes_the_same_choices",
    ),
    "the active rules and their hits": ("test_controls.test_a_rule_is_listed_and_ended",),
    "end a rule": ("test_controls.test_a_rule_is_listed_and_ended",),
    "handled, and answered with an error": ("test_faults.test_an_error_after_the_commit_was_stored",),
    "late": ("test_faults.test_a_delay",),
    "held until the test releases it": ("test_faults.test_a_held_request_keeps_back_its_connection_only",),
    "lost": ("test_faults.test_a_lost_request_is_not_handled",),
    "handled, and the answer lost": ("test_faults.test_an_ambiguous_commit_was_stored",),
    "connection cut": (
        "test_faults.test_a_connection_that_is_cut",
        "test_controls.test_connections_are_cut_and_clients_come_back",
    ),
    "connections refused": ("test_faults.test_refused_connections",),
    "throttled": ("test_faults.test_librdkafka_obeys_the_throttle_time",),
    "custom responses": ("test_faults.test_answers_of_one_s_own",),
    "slow, failing or full disk": (
        "test_disk.test_a_write_waits_for_a_slow_disk",
        "test_disk.test_nothing_acknowledged_is_lost_by_a_failing_disk",
        "test_disk.test_a_producer_waits_until_the_disk_has_space",
    ),
    "kill -9, power cut": (
        "test_life.test_a_consumer_lives_through_a_kill",
        "test_life.test_a_power_cut_takes_what_was_not_synced",
    ),
    "coordinator loads, is missing, has moved": ("test_group_states.test_a_client_waits_for_its_coordinator",),
    "expire or remove a member": (
        "test_group_states.test_a_member_whose_session_ends_comes_back",
        "test_group_states.test_a_member_that_is_removed_comes_back",
    ),
    "force a rebalance": ("test_group_states.test_a_forced_rebalance",),
    "members that a test scripts": (
        "test_phantoms.test_a_phantom_takes_partitions_and_gives_them_back",
        "test_phantoms.test_a_member_that_never_syncs_blocks_the_group",
    ),
    "fence a producer, an instance id": (
        "test_group_states.test_a_fenced_producer",
        "test_epochs.test_a_member_whose_instance_id_is_taken",
    ),
    "next epoch of a group, of a leader": (
        "test_epochs.test_members_move_to_a_new_group_epoch",
        "test_epochs.test_a_client_takes_over_a_new_leader_epoch",
    ),
    "abort a transaction": ("test_epochs.test_a_transaction_is_aborted",),
    "move the time": (
        "test_clock.server",
        "test_clock.test_a_session_expires_when_its_time_has_passed",
        "test_clock.test_records_have_the_server_s_time_and_expire_with_it",
    ),
    "retention and compaction now": (
        "test_clock.test_records_have_the_server_s_time_and_expire_with_it",
        "test_state.test_retention_now",
        "test_state.test_compaction_now",
    ),
    "topics": (
        "test_state.test_a_consumer_reads_what_was_prepared",
        "test_controls.test_a_topic_is_deleted_under_a_client",
    ),
    "records, offsets of groups, all of it from a file": (
        "test_state.test_a_consumer_reads_what_was_prepared",
        "test_state.test_the_records_that_a_producer_wrote",
        "test_seed.test_the_example_in_a_test",
    ),
    "state, offsets and lag of a group": (
        "test_waits.test_the_life_of_a_group",
        "test_controls.test_a_wait_for_a_commit",
    ),
    "start and stop it": ("test_controls.test_a_client_lives_through_a_stop",),
    "empty it": ("test_controls.test_clients_stay_connected_over_a_reset",),
    "come back to a state": ("test_life.test_a_snapshot_comes_back_as_often_as_it_is_restored",),
    "keep data over a restart": ("test_life.test_a_restart_keeps_everything",),
    "requests that were sent": ("test_faults.test_a_client_commits_before_it_leaves",),
    "wait for a group": (
        "test_group_states.test_a_forced_rebalance",
        "test_controls.test_a_wait_for_a_commit",
        "test_controls.test_a_consumer_sees_the_end_of_a_wait_for_lag",
    ),
    "the log": ("test_waits.test_a_member_that_goes_silent_leaves_when_its_session_ends",),
    "use from other languages": ("test_remote.test_a_rule", "test_remote.test_waits_and_state"),
}

# What both have, without types, helpers for what has been read, and what belongs to another line (`MustCluster`).
KFAKE: Final = """
    AddNode AllowAutoTopicCreation ApplyRetention BlackholeProduce BrokerConfigs Close ClusterID Compact Control
    ControlKey CoordinatorFor CreateTopic CurrentNode DataDir DefaultNumPartitions DeleteRecords DeleteTopic
    DropControl EnableACLs EnableSASL Fault GroupInfo GroupMaxSessionTimeout GroupMinSessionTimeout Hits
    KeepControl LeaderFor ListenAddrs ListenFn MaxVersions MoveTopicPartition MustCluster NewCluster NumBrokers
    PartitionInfo PartitionInfos Ports RehashCoordinators Remove RemoveNode SeedTopics SetFollowers
    SetGroupConfigs ShufflePartitionLeaders SleepControl SleepOutOfOrder Superuser SyncWrites SyntheticFetch TLS
    TopicIDInfo TopicInfo User VirtualNetwork Wait WaitGroupInfo WaitGroupStable WithLogger
""".split()
MOCK: Final = """
    broker_add broker_decommission broker_error_stack_cnt broker_push_request_error_rtts
    broker_remove_from_metadata broker_set_down broker_set_host_port broker_set_rack broker_set_rtt
    broker_set_up cgrp_consumer_target_assignment clear_request_errors clear_requests cluster_bootstraps
    cluster_destroy cluster_new coordinator_set get_requests group_initial_rebalance_delay_ms
    partition_delete_records partition_push_leader_response partition_push_request_errors partition_set_follower
    partition_set_follower_wmarks partition_set_leader push_request_errors push_request_errors_array
    set_apiversion set_group_consumer_heartbeat_interval_ms set_group_consumer_session_timeout_ms
    sharegroup_get_member_ids sharegroup_set_auto_offset_reset sharegroup_set_heartbeat_interval
    sharegroup_set_isolation_level sharegroup_set_max_delivery_attempts sharegroup_set_max_fetch_sessions
    sharegroup_set_max_record_locks sharegroup_set_max_size sharegroup_set_record_lock_duration
    sharegroup_set_session_timeout sharegroup_target_assignment start_request_tracking stop_request_tracking
    telemetry_set_push_interval telemetry_set_requested_metrics topic_create topic_delete topic_set_error
""".split()


class Row(NamedTuple):
    title: str
    ours: str
    kfake: str
    mock: str

    @property
    def is_ours(self) -> bool:
        return not self.ours.startswith(NONE)

    def controls(self) -> list[str]:
        """The names in code: of methods, of their parameters, and of the fixture itself."""
        found: list[str] = []
        for code in re.findall(r"`([^`]+)`", self.ours):
            call = re.fullmatch(r"(\w+)(?:\((.*)\))?", code)
            if call is not None:
                parameters = re.findall(r"(\w+)=", call.group(2) or "")
                found += [call.group(1), *(each for each in parameters if each[0].islower())]
        return found


def rows(text: str) -> list[Row]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    # The first cell of a heading is empty.
    return [Row(*cells) for cells in found if cells[0]]


ROWS: Final = rows(PAGE.read_text("utf-8"))
OURS: Final = [row for row in ROWS if row.is_ours]


def parameters_of(owner: type) -> set[str]:
    methods = [member for _, member in inspect.getmembers(owner, callable)]
    return {name for method in methods for name in _parameters(method)}


def _parameters(method: Any) -> list[str]:
    try:
        return list(inspect.signature(method).parameters)
    except (TypeError, ValueError):
        return []


PARAMETERS: Final = parameters_of(KcoordServer) | {"with"}


def source_of(test: str) -> str:
    """The source of a test or fixture, with its decorators. Raises AttributeError or ModuleNotFoundError."""
    module, name = test.split(".")
    found: Any = getattr(importlib.import_module(f"tests.double.{module}"), name)
    return inspect.getsource(getattr(found, "_get_wrapped_function", lambda: inspect.unwrap(found))())


def test_rows_are_found() -> None:
    assert len(OURS) >= 35
    assert len({row.title for row in ROWS}) == len(ROWS)
    assert "fail" in next(row for row in OURS if row.title == "answer with an error").controls()


@pytest.mark.parametrize("row", OURS, ids=lambda row: row.title)
def test_a_row_has_controls_that_exist_and_a_test_with_a_client_uses_each(row: Row) -> None:
    tests = TESTS.get(row.title)
    assert tests, f"TESTS of {Path(__file__).name} has no test for the row {row.title!r}"
    sources = "\n".join(source_of(test) for test in tests)
    for module in {test.split(".")[0] for test in tests}:
        path = Path(__file__).with_name(f"{module}.py")
        assert CLIENTS.search(path.read_text("utf-8")), f"{path.name} uses no client"
    for control in row.controls():
        exists = control == "KcoordServer" or hasattr(KcoordServer, control) or hasattr(Fault, control)
        assert exists or control in PARAMETERS, f"there is no control {control}"
        assert re.search(rf"\b{control}\b", sources), f"no test of the row {row.title!r} uses {control}"


def test_tests_belong_to_rows() -> None:
    assert set(TESTS) - {row.title for row in OURS} == set()


def test_every_control_of_ours_is_on_the_page() -> None:
    listed = {control for row in OURS for control in row.controls()}
    assert [name for name in METHODS if name not in listed] == [], "add these to docs/controls.md"


@pytest.mark.parametrize(("column", "names"), [("kfake", KFAKE), ("mock", MOCK)])
def test_every_control_of_the_others_is_on_the_page(column: str, names: list[str]) -> None:
    cells = " ".join(getattr(row, column) for row in ROWS)
    listed = {word for code in re.findall(r"`([^`]+)`", cells) for word in re.findall(r"\w+", code)}
    assert [name for name in names if name not in listed] == []
