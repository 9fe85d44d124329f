"""docs/client-retries.md is what librdkafka, aiokafka and the project's client do after errors of a coordinator.

All cases of a table run at once. A client whose new release does something else fails here: look at it, then let
`python -m tests.harness.retry_table` write the tables. tests/interop/test_client_retries.py has Java's client.
"""

from __future__ import annotations

import pytest

from tests.harness.retries import CLASSIC, CONSUMER, TRANSACTION
from tests.harness.retry_clients import CLIENTS
from tests.harness.retry_table import COLUMNS, cases, differences, is_slow, read_page, run_all


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [CLASSIC, CONSUMER, TRANSACTION])
async def test_what_clients_do(protocol: str) -> None:
    every = [case for client in CLIENTS for case in cases(client)]
    wanted = [case for case in every if case.protocol == protocol and not is_slow(case)]
    assert not differences(await run_all(wanted, CLIENTS))


def test_the_page_has_every_case() -> None:
    every = [case for client in COLUMNS for case in cases(client)]
    assert len(every) > 350
    assert set(read_page()) == set(every)
