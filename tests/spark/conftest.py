"""One Spark session for all tests that need one. Starting it takes 10 s of two cores, so most tests do without.

Who asks for `spark` is marked `spark_session`. `make test-compiled` leaves these out: they ran in `make test`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kcoord.spark.session import session
from tests.harness.spark_settings import SETTINGS


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark_session)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    found = session("kcoord tests", "local[2]", **SETTINGS)
    yield found
    found.stop()
