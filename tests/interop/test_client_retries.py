"""docs/client-retries.md is what clients do after errors of a coordinator: a sample for Java's, and all cases nightly.

See tests/double/test_client_retries.py. All Java clients run in one JVM.
"""

from __future__ import annotations

import pytest

from tests.harness.retry_clients import CLIENTS
from tests.harness.retry_table import COLUMNS, cases, differences, run_all, sample
from tests.interop.java_steps import Java, JavaSteps


async def test_what_java_s_client_does(steps: JavaSteps) -> None:
    assert not differences(await run_all(sample(["java"]), {"java": Java(steps)}))


@pytest.mark.nightly
@pytest.mark.parametrize("client", COLUMNS)
async def test_all_errors(steps: JavaSteps, client: str) -> None:
    assert not differences(await run_all(cases(client), {**CLIENTS, "java": Java(steps)}))
