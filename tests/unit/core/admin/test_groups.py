"""DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

import pytest

from kcoord.core.admin.groups import DELETED_IN_TURN_MAX, GROUP_OPERATIONS, OPERATIONS_NOT_ASKED
from kcoord.core.groups.records import tombstone_bytes
from kcoord.core.topics.registry import TOPIC_NAME_CHARS_MAX
from kcoord.protocol import errors
from kcoord.protocol.records.offset_commit import OffsetCommitKey
from tests.unit.core.classic.classic_rig import Rig

# ---- DescribeGroups


def test_a_stable_group_shows_metadata_and_assignments() -> None:
    rig = Rig()
    ids = rig.stable_group(2)
    (shown,) = rig.describe()
    assert (shown.group_state, shown.protocol_type, shown.protocol_data) == ("Stable", "consumer", "range")
    assert [m.member_id for m in shown.members] == ids
    assert [m.member_assignment for m in shown.members] == [b"0", b"1"]
    assert {(m.client_id, m.client_host, m.member_metadata) for m in shown.members} == {
        ("client", "/127.0.0.1", b"meta")
    }
    assert shown.authorized_operations == OPERATIONS_NOT_ASKED


def test_a_rebalancing_group_shows_no_metadata() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    rig.send_join(rig.new_member_id())
    (shown,) = rig.describe()
    assert (shown.group_state, shown.protocol_data) == ("PreparingRebalance", "")
    assert [m.member_metadata for m in shown.members] == [b"", b""]
    assert {m.member_id: m.member_assignment for m in shown.members}[member] == b"0"


@pytest.mark.parametrize("version", range(7))
def test_an_unknown_group_is_dead_and_from_version_6_not_found(version: int) -> None:
    (shown,) = Rig().describe("nobody", version=version)
    expected = errors.GROUP_ID_NOT_FOUND if version >= 6 else errors.NONE
    assert (shown.error_code, shown.group_state) == (expected, "Dead")
    assert shown.error_message == ("Group nobody not found." if version >= 6 else None)


def test_operations_are_shown_to_those_who_ask() -> None:
    rig = Rig()
    rig.stable_group()
    assert rig.describe(version=3, operations=True)[0].authorized_operations == GROUP_OPERATIONS == 3400
    assert rig.describe("nobody", operations=True)[0].authorized_operations == OPERATIONS_NOT_ASKED


def test_answers_wait_for_what_they_show() -> None:
    rig = Rig(logs=2)
    rig.stable_group(group="even")
    rig.stable_group(group="odd")
    rig.describe("even", "odd")
    reply = rig.replies[rig._request_id]
    # The last record of all, on the log of the group that wrote it: what came before is durable by then.
    assert reply.wait_log is rig.logs[1]
    assert reply.wait_offset == len(rig.stored[1])


def test_an_answer_describes_a_bounded_number_of_members() -> None:
    """However often a group is named. Of the others clients learn that they may ask again."""
    rig = Rig()
    rig.admin.described_members_max = 10
    rig.stable_group(3, group="large")
    rig.stable_group(1, group="small")
    shown = rig.describe(*["large"] * 5, "small", "nobody")
    codes = [(group.group_id, group.error_code, len(group.members)) for group in shown]
    assert codes == [
        ("large", errors.NONE, 3),
        ("large", errors.NONE, 3),
        *[("large", errors.COORDINATOR_LOAD_IN_PROGRESS, 0)] * 3,
        ("small", errors.NONE, 1),
        ("nobody", errors.GROUP_ID_NOT_FOUND, 0),
    ]


def test_a_group_with_more_members_than_an_answer_is_described_alone() -> None:
    rig = Rig()
    rig.admin.described_members_max = 2
    rig.stable_group(3)
    (shown,) = rig.describe()
    assert (shown.error_code, len(shown.members)) == (errors.NONE, 3)


# ---- ListGroups


def test_lists_and_filters() -> None:
    rig = Rig()
    rig.stable_group(group="stable")
    rig.stable_group(group="connect", protocol_type="connect")
    rig.store.get_or_create("simple")
    rig.new_member_id("pending")
    listed = {g.group_id: (g.group_state, g.protocol_type, g.group_type) for g in rig.list_groups()}
    assert listed == {
        "stable": ("Stable", "consumer", "classic"),
        "connect": ("Stable", "connect", "classic"),
        "simple": ("Empty", "", "classic"),
        "pending": ("Empty", "", "classic"),
    }

    def names(states: list[str], types: list[str]) -> list[str]:
        return [g.group_id for g in rig.list_groups(states, types)]

    assert names([" sTaBlE "], []) == ["stable", "connect"]
    assert names(["Empty", "Nope"], ["consumer", "CLASSIC"]) == ["simple", "pending"]
    assert names(["Nope"], []) == names([""], []) == names([], ["consumer"]) == names([], ["unknown"]) == []


# ---- DeleteGroups


def test_an_empty_group_goes_with_its_offsets_in_one_batch() -> None:
    rig = Rig()
    rig.store.get_or_create("g")
    rig.offsets["g"] = {"a": 1, "b": 2}
    assert rig.delete("g") == {"g": errors.NONE}
    assert rig.batches == [(rig.logs[0], 3)]
    assert rig.offsets["g"] == {}
    assert rig.store.get("g") is None
    assert rig.describe()[0].group_state == "Dead"
    assert rig.delete("g") == {"g": errors.GROUP_ID_NOT_FOUND}


def test_groups_with_members_stay() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    assert rig.delete("g", "nobody", "g", "") == {
        "g": errors.NON_EMPTY_GROUP,
        "nobody": errors.GROUP_ID_NOT_FOUND,
        "": errors.GROUP_ID_NOT_FOUND,
    }
    assert rig.heartbeat(member, 1) == errors.NONE


@pytest.mark.parametrize("phase", ["preparing", "completing"])
def test_groups_in_a_rebalance_stay(phase: str) -> None:
    rig = Rig()
    request = rig.send_join(instance="i")
    if phase == "completing":
        rig.join_all(request)
    assert rig.delete("g") == {"g": errors.NON_EMPTY_GROUP}


def test_a_deleted_group_is_gone_after_a_restart() -> None:
    rig = Rig()
    (member,) = rig.stable_group()
    rig.leave(member)
    rig.delete("g")
    assert rig.restart().store.get("g") is None
    assert rig.store.hard_state() == []


def test_a_pending_member_of_a_deleted_group_joins_a_new_group() -> None:
    rig = Rig()
    member = rig.new_member_id()
    assert rig.delete("g") == {"g": errors.NONE}
    assert rig.joined(rig.send_join(member)).error_code == errors.UNKNOWN_MEMBER_ID
    assert rig.store.get("g") is None


def test_groups_on_several_logs_are_deleted_in_several_steps() -> None:
    rig = Rig(logs=2)
    for name in ("even", "odd", "four", "one"):
        rig.store.get_or_create(name)
        rig.offsets[name] = {"t": 1}
    assert rig.delete("even", "nobody", "odd", "four", "one") == {
        "even": 0,
        "nobody": errors.GROUP_ID_NOT_FOUND,
        "odd": 0,
        "four": 0,
        "one": 0,
    }
    assert [(log.partition, count) for log, count in rig.batches] == [(0, 2), (1, 2), (0, 2), (1, 2)]


def test_an_answer_of_a_deletion_waits_for_all_of_its_steps() -> None:
    rig = Rig(logs=2)
    for name in ("even", "odd"):
        rig.store.get_or_create(name)
    rig.delete("even", "odd")
    # The answer comes with the last step, whose records it waits for as any answer that comes with records.
    assert rig.batches[-1][0] is rig.logs[1]
    rig.store.get_or_create("even")
    rig.delete("nobody", "even", "also nobody")
    assert rig.batches[-1][0] is rig.logs[0]


def test_an_answer_of_a_deletion_without_records_waits_for_earlier_ones() -> None:
    rig = Rig()
    rig.stable_group()
    rig.delete("g")
    reply = rig.replies[rig._request_id]
    assert (reply.wait_log, reply.wait_offset) == (rig.logs[0], rig.record_count())


def test_a_group_with_more_offsets_than_a_turn_deletes_loses_them_bit_by_bit() -> None:
    rig = Rig()
    rig.store.get_or_create("g")
    rig.offsets["g"] = {f"topic-{i}": i for i in range(3 * DELETED_IN_TURN_MAX)}
    assert rig.delete("g") == {"g": errors.NONE}
    assert len(rig.batches) > 3
    assert max(count for _, count in rig.batches) <= DELETED_IN_TURN_MAX
    assert rig.record_count() == 3 * DELETED_IN_TURN_MAX + 1
    assert all(isinstance(r.key, OffsetCommitKey) for r in rig.stored[0][:-1])
    assert rig.offsets["g"] == {}


def test_groups_are_deleted_in_steps_that_fit_into_a_batch() -> None:
    size = tombstone_bytes("g0", "") + TOPIC_NAME_CHARS_MAX
    rig = Rig(coordinator_batch_bytes_max=5 * size)
    names = [f"g{number}" for number in range(4)]
    for name in names:
        rig.store.get_or_create(name)
        rig.offsets[name] = {"a": 0, "b": 0}
    rig.store.get_or_create("g9")
    rig.offsets["g9"] = {f"topic-{i}": i for i in range(9)}
    assert rig.delete(*names, "g9") == dict.fromkeys([*names, "g9"], errors.NONE)
    assert max(count for _, count in rig.batches) <= 5
    assert rig.record_count() == 4 * 3 + 10
    assert not rig.store.groups


def test_offsets_of_long_group_ids_are_deleted_few_at_a_time() -> None:
    rig = Rig()
    group = "g" * 32_000
    rig.store.get_or_create(group)
    rig.offsets[group] = {f"topic-{i}": i for i in range(100)}
    assert rig.delete(group) == {group: errors.NONE}
    assert max(count for _, count in rig.batches) < 10
