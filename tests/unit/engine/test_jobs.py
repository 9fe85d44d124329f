"""Jobs between the core and whoever runs them: handed out once, one per key, and no result taken twice."""

from __future__ import annotations

import pytest

from kcoord.core.outcome import Job, JobDone, Now, Outcome, TopicsChanged
from kcoord.core.topics.regex import ResolveRegexJob
from kcoord.engine.engine import Engine
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreateTopicsRequest
from tests.harness.engine import Client, open_memory_engine, run_jobs

NOW = Now(1000, 1_700_000_000_000)


def job_of(group_id: str) -> Job:
    return ResolveRegexJob(group_id, "m", (".*",), ("t",), 1, 1000)


def hand_out(engine: Engine, *jobs: Job) -> None:
    outcome = Outcome()
    outcome.jobs.extend(jobs)
    engine.applier.apply(outcome, NOW)


def test_jobs_are_taken_once_and_one_per_key() -> None:
    engine = open_memory_engine(NOW)
    assert engine.take_jobs() == []
    one, same, other = job_of("g"), job_of("g"), job_of("h")
    hand_out(engine, one, same, other)
    assert engine.take_jobs() == [one, other]
    assert engine.take_jobs() == []
    hand_out(engine, same)
    assert engine.take_jobs() == []
    engine.job_done(one, one.run(), None, NOW)
    hand_out(engine, same)
    assert engine.take_jobs() == [same]


def test_results_of_jobs_that_ended_or_are_of_another_engine_are_dropped() -> None:
    engine = open_memory_engine(NOW)
    one, same = job_of("g"), job_of("g")
    engine.job_done(one, None, None, NOW)
    hand_out(engine, one)
    engine.job_done(same, None, None, NOW)
    assert engine.applier.jobs_in_flight == {one.key: one}
    engine.job_done(one, None, "too late", NOW)
    hand_out(engine, same)
    engine.job_done(one, one.run(), None, NOW)
    assert engine.applier.jobs_in_flight == {same.key: same}


def test_jobs_end_in_the_order_that_a_test_chooses() -> None:
    engine = open_memory_engine(NOW)
    jobs = [job_of(group_id) for group_id in "abc"]
    hand_out(engine, *jobs)
    assert run_jobs(engine, NOW, jobs[2].key, jobs[0].key) == [jobs[2].key, jobs[0].key]
    assert engine.applier.jobs_in_flight == {jobs[1].key: jobs[1]}
    assert run_jobs(engine, NOW) == [jobs[1].key]
    assert run_jobs(engine, NOW) == []


def test_groups_hear_of_topics_once_they_are_made() -> None:
    engine = open_memory_engine(NOW)
    assert engine.core.topics.take_changes() is None
    body = CreateTopicsRequest([CreatableTopic("t", 3, 1)])
    assert Client(engine).ask(apis.CREATE_TOPICS, 7, body, NOW).topics[0].error_code == 0
    # The engine has handed it on.
    assert engine.core.topics.take_changes() is None
    assert engine.core.handle(TopicsChanged(["t"]), NOW).records == []


def test_a_job_that_does_not_implement_run() -> None:
    with pytest.raises(TypeError, match="Job does not implement run"):
        Job("k", 10).run()
    assert JobDone(Job("k", 10), None, "why").error == "why"
