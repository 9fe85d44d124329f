"""How descriptors are divided between the log and connections."""

from __future__ import annotations

import resource

import pytest

from kcoord.server.listen.descriptors import (
    LOG_FILES_MAX,
    LOG_FILES_MIN,
    RESERVE,
    descriptors_now,
    plan_descriptors,
    raise_descriptor_limit,
)
from kcoord.server.listen.limits import ConnectionCounts
from kcoord.server.settings.load import load


@pytest.mark.parametrize("limit", [200, 256, 300, 1024, 4096, 20_000, 1 << 20])
def test_nothing_is_promised_twice(limit: int) -> None:
    budget = plan_descriptors(limit, 20, 10_000)
    assert budget.log_files + budget.connections + RESERVE + 20 <= limit
    assert budget.log_files >= LOG_FILES_MIN and budget.connections >= 50


def test_the_log_gets_what_connections_may_not_use() -> None:
    assert plan_descriptors(20_000, 20, 10_000).log_files == 20_000 - 20 - RESERVE - 10_000
    assert plan_descriptors(1 << 20, 20, 10_000).log_files == LOG_FILES_MAX
    assert plan_descriptors(1 << 20, 20, 10_000).connections == 10_000
    assert plan_descriptors(1024, 20, 100).connections == 100
    # Far too few: what is needed for anything to work at all.
    assert plan_descriptors(50, 20, 10_000).connections == 1


def test_a_log_in_memory_takes_none() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert descriptors_now(1 << 30, True).connections > descriptors_now(1 << 30, False).connections
    assert descriptors_now(10, True).log_files == 0 and descriptors_now(10, True).limit == soft


def test_the_limit_is_raised_as_far_as_it_goes() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        assert raise_descriptor_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections_end_where_descriptors_do() -> None:
    counts = ConnectionCounts(load(assignments=["max.connections=4"]).server)
    counts.cap = 2
    assert counts.admit("10.0.0.1") == counts.admit("10.0.0.2") == ""
    assert "limit on open files" in counts.admit("10.0.0.3")
