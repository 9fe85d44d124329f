"""The scenario runner itself: what it would not notice is not tested by any scenario."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord.core.coordinator import Core
from kcoord.core.outcome import Job, Outcome
from kcoord.core.topics.regex import ResolveRegexJob
from tests.scenarios.engine_runner import EngineScenario
from tests.scenarios.printing import duration, milliseconds
from tests.scenarios.runner import Scenario
from tests.scenarios.script import format_script, parse_command, parse_script

FILES = sorted(Path(__file__).resolve().parent.rglob("*.txt"))


def committed() -> Scenario:
    scenario = Scenario()
    scenario.run("topic t")
    scenario.run("commit t:0=1 version=9")
    scenario.run("commit t:0=2 version=9")
    return scenario


def test_a_replaying_core_that_disagrees_is_noticed() -> None:
    scenario = committed()
    scenario._shadow = Core(scenario.config)
    assert "DIGEST of the replaying core differs" in scenario.run("heartbeat client=a member=m")


def test_a_lost_record_is_noticed_at_a_restart() -> None:
    scenario = committed()
    scenario.logs["__consumer_offsets-0"].pop()
    assert scenario.run("restart")[-1].startswith("DIGEST differs")


def test_a_state_that_depends_on_what_compaction_removes_is_noticed() -> None:
    scenario = committed()
    assert scenario.digest_after_compaction() == scenario.core.digest()
    scenario.logs["__consumer_offsets-0"].reverse()
    assert scenario.digest_after_compaction() != scenario.core.digest()


def test_jobs_wait_for_a_command() -> None:
    scenario = committed()
    jobs: list[Job] = [ResolveRegexJob(group, "m", (".*",), ("t",), 1, 1000) for group in ("g", "h", "g")]
    outcome = Outcome()
    outcome.jobs.extend(jobs)
    scenario.lines = []
    scenario._apply(outcome)
    assert scenario.lines == ["job resolve-regex:g within 10s", "job resolve-regex:h within 10s"]
    assert scenario.run("job resolve-regex:h") == ["ok"]
    assert scenario.run("jobs") == ["job resolve-regex:g"]
    assert scenario.run('job resolve-regex:g fail="too late"') == ["ok"]
    with pytest.raises(ValueError, match="no job waits under resolve-regex:g, only none"):
        scenario.run("job resolve-regex:g")
    scenario._apply(outcome)
    assert not [line for line in scenario.run("restart") if "DIGEST" in line]
    assert scenario.jobs == {}


def test_topics_grow() -> None:
    scenario = committed()
    assert scenario.run("grow t partitions=3") == ["ok"]
    assert scenario.core.topics.partition_count("t") == 3
    assert scenario.core.topics.take_changes() is None
    assert not [line for line in scenario.run("restart") if "DIGEST" in line]


def test_misspelt_commands_and_options_fail() -> None:
    scenario = Scenario()
    with pytest.raises(ValueError, match="no such command: comit"):
        scenario.run("comit t:0=1")
    with pytest.raises(ValueError, match="unknown instanz"):
        scenario.run("heartbeat client=a instanz=i")
    with pytest.raises(AttributeError):
        scenario.run("config no_such_setting=1")


def test_commands() -> None:
    command = parse_command('join client=a reason="two words" t:0=5 topics=t,u')
    assert command.name == "join"
    assert command.words == ["t:0=5"]
    assert command.options == {"client": "a", "reason": "two words", "topics": "t,u"}


@pytest.mark.parametrize("text", ["500ms", "10s", "2m", "3h", "7d"])
def test_durations(text: str) -> None:
    assert duration(milliseconds(text)) == text


def test_files_are_written_as_they_were_read() -> None:
    assert FILES
    for path in FILES:
        text = path.read_text()
        assert format_script(parse_script(text)) == text, path.name


def with_open_transaction() -> EngineScenario:
    scenario = EngineScenario()
    for command in ("topic t", "init client=p txn=x", "produce client=p t:0=one", "txn-commit client=p t:0=5"):
        assert not [line for line in scenario.run(command) if line.startswith(("DIGEST", "OFFSETS"))]
    return scenario


def test_a_transaction_that_no_record_describes_is_noticed() -> None:
    scenario = with_open_transaction()
    scenario.engine.core.transactions.by_id["x"].producer_epoch += 1
    assert scenario.run("waiting") == ["DIGEST differs after a power cut"]


def test_pending_offsets_that_no_record_describes_are_noticed() -> None:
    scenario = with_open_transaction()
    scenario.engine.core.offsets.pending.drop("g", "t", 0)
    assert scenario.run("waiting") == ["DIGEST differs after a power cut"]


def test_a_last_stable_offset_that_a_start_does_not_find_is_noticed() -> None:
    scenario = with_open_transaction()
    tp = scenario.engine.data_plane.table.find("t", 0)
    assert tp is not None
    tp.producers.transactions.restore([])
    assert "OFFSETS of t-0: (1, 1), after a power cut (0, 1)" in scenario.run("waiting")


def test_records_that_no_sync_covers_are_noticed() -> None:
    scenario = with_open_transaction()
    scenario.engine.journal.sync_mode = "memory"
    assert [line for line in scenario.run("produce client=p t:0=two") if line.startswith("OFFSETS of t-0")]
