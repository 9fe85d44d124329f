"""A group changes its protocol by rolling restarts under load, with members of different libraries (KIP-848)."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.ownership import Ownership
from tests.e2e.process import ServerProcess
from tests.e2e.rolling import Load, Rolling
from tests.e2e.test_confluent_consumer_protocol import ARGUMENTS

CLASSIC = ("aiokafka", "kafka-python", "confluent")


def test_upgrade_and_downgrade_under_load(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *ARGUMENTS) as server:
        rolling = Rolling(server.bootstrap)
        rolling.create_topic()
        load = Load(server.bootstrap)
        types: list[str] = []
        for kind in CLASSIC:
            rolling.start(kind)
        types.append(rolling.type_of_group())
        for _ in CLASSIC:
            rolling.replace("consumer")
            types.append(rolling.type_of_group())
        for kind in CLASSIC:
            rolling.replace(kind)
            types.append(rolling.type_of_group())
        rolling.check(load)
        assert types == ["CLASSIC", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CLASSIC"]
        # Every one of the members did its part.
        assert len({interval.member for interval in rolling.notes.intervals if interval.processed}) == 9
        assert server.stop() == 0


def test_members_of_the_client_among_others(tmp_path: Path) -> None:
    """The same with members of kcoord.client, of both protocols."""
    with ServerProcess(tmp_path / "data", *ARGUMENTS) as server:
        rolling = Rolling(server.bootstrap)
        rolling.create_topic()
        load = Load(server.bootstrap)
        for kind in ("aiokafka", "kcoord-classic", "confluent"):
            rolling.start(kind)
        types = [rolling.type_of_group()]
        for kind in ("kcoord-consumer", "consumer", "kcoord-consumer", "kcoord-classic", "confluent", "kcoord-classic"):
            rolling.replace(kind)
            types.append(rolling.type_of_group())
        rolling.check(load)
        assert types == ["CLASSIC", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CONSUMER", "CLASSIC"]
        assert len({interval.member for interval in rolling.notes.intervals if interval.processed}) == 9
        assert server.stop() == 0


def test_the_notes_report_overlaps() -> None:
    notes = Ownership()
    notes.assigned("a", [0, 1], at=1)
    notes.given_up("a", [0], at=2)
    notes.assigned("b", [0], at=2)
    assert notes.overlaps() == []
    assert notes.process("a", 1, 7, "x") and not notes.process("a", 0, 8, "y")
    notes.assigned("b", [1], at=3)
    assert notes.overlaps() == ["partition 1: a [1.000, inf], b [3.000, inf]"]
    assert notes.values() == {"x"}
