"""The server's log has one line for every rebalance: those that a timeline finds in the records of the groups.

The core counts settled members to know when a rebalance is over; the timeline sees only records. There are two
exceptions: a change of the protocol has a line of its own, and a rebalance that a restart interrupts has none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord.core.outcome import OFFSETS_TOPIC, Outcome
from kcoord.history.timeline import REBALANCE_FINISHED, GroupTimeline
from tests.scenarios.runner import Scenario
from tests.scenarios.script import parse_script
from tests.scenarios.test_scenarios import FILES, FOLDER, OF_ENGINE

CORE_FILES = [path for path in FILES if path.parent.name not in OF_ENGINE]
PROTOCOL_CHANGES = {"classic_group_upgraded", "consumer_group_downgraded"}

Rebalance = tuple[object, object, object]


class Compared(Scenario):
    """Collects the rebalances of both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.timeline = GroupTimeline()
        self.records = 0
        self.has_restarted = False
        self.in_log: list[Rebalance] = []
        self.in_records: list[Rebalance] = []

    def _apply_one(self, outcome: Outcome, with_timers: bool = True) -> None:
        super()._apply_one(outcome, with_timers)
        facts = [fact for fact in outcome.facts if fact.event == "group_rebalanced"]
        for fields in (fact.fields for fact in facts):
            epoch = fields["epoch"] if "epoch" in fields else fields["generation"]
            self.in_log.append((fields["group"], epoch, fields["members"]))
            assert fields["cause"] and (isinstance(took := fields["duration_ms"], int) and took >= 0)
        if outcome.log is None or outcome.log.topic != OFFSETS_TOPIC:
            return
        for record in outcome.records:
            self.timeline.replay(self.records, self._now().wall_ms, record.key, record.value, record.cause)
            self.records += 1
        finished = [event for event in self.timeline.take() if event.event == REBALANCE_FINISHED]
        if not any(fact.event in PROTOCOL_CHANGES for fact in outcome.facts):
            self.in_records += [(event.group, event.epoch, event.members) for event in finished]

    def _restart(self) -> None:
        super()._restart()
        self.has_restarted = True


@pytest.mark.parametrize("path", CORE_FILES, ids=[path.relative_to(FOLDER).as_posix() for path in CORE_FILES])
def test_one_line_for_every_rebalance(path: Path) -> None:
    scenario = Compared()
    for block in parse_script(path.read_text()):
        scenario.run(block.command)
    if scenario.has_restarted:
        assert [one for one in scenario.in_records if one in scenario.in_log] == scenario.in_log
    else:
        assert scenario.in_log == scenario.in_records
