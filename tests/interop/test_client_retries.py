"""docs/client-retries.md is what Kafka's Java client does after errors of a coordinator; all cases run in one JVM.

See tests/double/test_client_retries.py, which has the other clients.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.retry_clients import CLIENTS
from tests.harness.retry_table import cases, differences, is_slow, run_all
from tests.interop.java_steps import Java, JavaSteps


@pytest.fixture(scope="module")
def steps() -> Iterator[JavaSteps]:
    with JavaSteps() as steps:
        yield steps


async def test_what_java_s_client_does(steps: JavaSteps) -> None:
    assert not differences(await run_all(cases("java"), {"java": Java(steps)}))


@pytest.mark.nightly
async def test_the_slow_cases_of_librdkafka() -> None:
    slow = [case for case in cases("librdkafka") if is_slow(case)]
    assert slow
    assert not differences(await run_all(slow, CLIENTS))
