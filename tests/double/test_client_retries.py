"""docs/client-retries.md is what librdkafka, aiokafka and the project's client do after errors of a coordinator.

If a new release of a client does something else, look at it. `python -m tests.harness.retry_table` writes the tables.
This is a sample; tests/interop/test_client_retries.py has Java's client and, in `make nightly`, all cases.
"""

from __future__ import annotations

import pytest

from tests.harness.retries import ANSWER_LOST, CUT_AFTER
from tests.harness.retry_clients import CLIENTS
from tests.harness.retry_table import COLUMNS, cases, differences, read_page, run_all, sample


@pytest.mark.slow
async def test_what_clients_do() -> None:
    assert not differences(await run_all(sample(CLIENTS), CLIENTS))


def test_the_page_has_every_case() -> None:
    every = [case for client in COLUMNS for case in cases(client)]
    assert len(every) > 350
    assert set(read_page()) == set(every)


def test_the_sample_has_what_is_most_of_interest() -> None:
    chosen = sample(COLUMNS)
    assert {(case.client, case.protocol, case.api) for case in chosen} == {
        (case.client, case.protocol, case.api) for client in COLUMNS for case in cases(client)
    }
    for fault in (CUT_AFTER, ANSWER_LOST):
        assert {case.client for case in chosen if (case.api, case.fault) == ("OffsetCommit", fault)} == set(COLUMNS)
