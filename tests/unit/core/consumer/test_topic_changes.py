"""What the registry tells groups about topics: versions, names, and what changed."""

from __future__ import annotations

from kcoord.protocol import apis
from kcoord.protocol.init_producer_id import InitProducerIdRequest
from tests.unit.core.admin.admin_rig import AdminRig
from tests.unit.core.topics.test_topics import create, delete, widen


def live_rig() -> AdminRig:
    rig = AdminRig()
    rig.topics.unfinished_deletions()
    return rig


def changes(rig: AdminRig) -> list[str]:
    event = rig.topics.take_changes()
    return [] if event is None else event.names


def test_created_deleted_and_extended_topics_are_reported_once() -> None:
    rig = live_rig()
    assert changes(rig) == []
    create(rig, "t", "u", partitions=3)
    assert changes(rig) == ["t", "u"]
    assert changes(rig) == []
    widen(rig, "u", 5)
    delete(rig, "t")
    assert changes(rig) == ["u", "t"]
    create(rig, "t", cleanup_policy="compact")
    assert changes(rig) == ["t"]


def test_loaded_topics_are_not_reported() -> None:
    rig = live_rig()
    create(rig, "t", "u")
    delete(rig, "u")
    rig.open()
    rig.topics.loaded(b"\1" * 16)
    rig.topics.unfinished_deletions()
    assert changes(rig) == []
    create(rig, "u")
    assert changes(rig) == ["u"]


def test_versions_are_offsets() -> None:
    rig = live_rig()
    internal = rig.topics.new_topics_version
    assert -1 < internal < rig.topics.version == len(rig.log) - 1
    create(rig, "t", partitions=2)
    made = rig.topics.new_topics_version
    assert (made, rig.topics.version) == (len(rig.log) - 3, len(rig.log) - 1)
    widen(rig, "t", 4)
    delete(rig, "t")
    rig.ask(apis.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None, 1000, -1, -1))
    assert rig.topics.new_topics_version == made
    assert rig.topics.version == len(rig.log) - 1 > made + 2
    rig.open()
    assert (rig.topics.new_topics_version, rig.topics.version) == (made, len(rig.log) - 1)


def test_an_empty_registry_has_no_version() -> None:
    rig = AdminRig()
    rig.log = []
    rig.open()
    assert (rig.topics.version, rig.topics.new_topics_version) == (-1, -1)


def test_a_snapshot_of_names_stays_as_it_was() -> None:
    rig = live_rig()
    create(rig, "t")
    before = rig.topics.name_snapshot()
    assert before is rig.topics.name_snapshot()
    assert sorted(before) == ["__consumer_offsets", "t"]
    create(rig, "u")
    delete(rig, "t")
    assert "u" not in before
    assert sorted(rig.topics.name_snapshot()) == ["__consumer_offsets", "u"]
