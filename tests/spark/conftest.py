"""One Spark session for all tests that need one. Starting it takes 10 s of two cores, so most tests do without.

Who asks for `spark` is marked `spark_session`. `make test-compiled` leaves these out: they ran in `make test`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kcoord.spark.session import session


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "spark_session: needs the shared Spark session; run by `make test`")


@pytest.hookimpl(tryfirst=True)  # before -m is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark_session)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings: dict[str, str | int | bool] = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        # Tests are over before the second compiler's work pays; without it the room for code is small, and Spark
        # generates some for each query.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
        ),
    }
    found = session("kcoord tests", "local[2]", **settings)
    yield found
    found.stop()
