"""Fixtures of the interop tests.

`--target=kafka` runs the client and tool tests against a real broker instead of kcoord, to check the tests themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kcoord.spark.session import session
from tests.harness import java
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker
from tests.harness.spark_settings import SETTINGS
from tests.interop import tools
from tests.interop.java_steps import JavaSteps
from tests.interop.oracle import Oracle

HERE = Path(__file__).parent

Target = KcoordServer | RealBroker

# Members of consumer groups hear of changes at once, and may be missed soon.
QUICK = {
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "50",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "100",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", choices=("kcoord", "kafka"), default="kcoord", help="what the clients talk to")
    parser.addoption("--live-seconds", type=int, default=60, help="how long a compacting broker is read while it works")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: needs Java 17 and Maven; run by `make interop`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


def start_target(config: pytest.Config, settings: Mapping[str, str] | None = None) -> Target:
    """A fresh server of the kind that --target names, not yet started."""
    kind = RealBroker if config.getoption("--target", "kcoord") == "kafka" else KcoordServer
    return kind(settings)


@pytest.fixture(scope="session", autouse=True)
def archive() -> None:
    """More than a hundred JVMs are started; with this each has half the work."""
    if not java.archive().exists():
        with KcoordServer() as server:
            java.make_archive(tools.GROUPS, "--bootstrap-server", server.bootstrap, "--list")


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


@pytest.fixture(scope="session")
def steps() -> Iterator[JavaSteps]:
    """A JVM for many consumers and producers."""
    with JavaSteps() as running:
        yield running


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """One server for a module's tests."""
    with start_target(request.config) as running:
        yield running


@pytest.fixture(scope="module")
def quick_target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The same with the settings QUICK."""
    with start_target(request.config, QUICK) as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One for all, with the jars of Spark's Kafka source: a JVM has those that it began with, as long as it lives."""
    jars = ",".join(str(jar) for jar in sorted(java.spark_libs().glob("*.jar")))
    found = session("kcoord interop", "local[2]", **SETTINGS, **{"spark.jars": jars})
    yield found
    found.stop()
