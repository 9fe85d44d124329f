"""Kafka 4.3 on the small logs in tests/data/broker: it answers as it did on them, and as the older releases did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data import known
from tests.data.broker_life import Life
from tests.data.make_small_logs import SETTINGS
from tests.data.small_answers import client_answers
from tests.harness.real_broker import RealBroker
from tests.interop import tools

# The logs get older: what is in them must not expire.
FOR_EVER = {
    "offsets.retention.minutes": "2147483647",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000",
}


@pytest.mark.parametrize("name", ["release-3.9", "release-4.0", "killed"])
def test_answers_are_those_that_were_recorded(name: str, tmp_path: Path) -> None:
    recorded = known.small_answers(name)
    data = known.unpack_small(name, tmp_path / "data")
    with RealBroker({**SETTINGS, **FOR_EVER}, data=data) as broker:
        life = Life()
        life.use(broker.bootstrap)
        if name.startswith("release-"):
            # As operators do after an upgrade. Without group.version=1 a broker does not describe consumer groups.
            args = ["--bootstrap-server", broker.bootstrap, "upgrade", "--release-version", "4.3"]
            upgraded = tools.run(tools.FEATURES, *args)
            assert upgraded.code == 0, upgraded
        answers = client_answers(life, sorted(recorded["described"]))
    assert answers == {part: recorded[part] for part in answers}
