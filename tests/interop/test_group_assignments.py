"""The group assignments of producers (draft of KIP-447) in the hands of Kafka: its broker and its tools skip them."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from confluent_kafka import Producer

from kcoord.cli.main import main
from kcoord.server.probe import Probe
from tests.e2e.test_group_assignments import Worker, prepare, reconcile
from tests.harness.kcoord_server import KcoordServer
from tests.harness.real_broker import RealBroker
from tests.interop import tools

WAIT_S = 60.0


def log(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["log", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def assignments(data: Path) -> list[str]:
    """The transactional ids that have one, in the order of the log."""
    lines = log("dump", str(data), "--type", "transaction_group_assignment", "-o", "json").splitlines()
    return [json.loads(line)["key"]["transactional_id"] for line in lines]


def test_a_broker_takes_over_and_gives_back(tmp_path: Path) -> None:
    worker = Worker("m")
    with KcoordServer(data=tmp_path / "data") as server, Probe(server.bootstrap) as probe:
        prepare(probe)
        reconcile(probe, worker)
        assert worker.init(probe) == []
        assert worker.commit_offset(probe, 0, 10) == 0
        assert worker.end(probe) == 0
        server.stop()
    segment = tmp_path / "data" / "__transaction_state-0" / f"{0:020d}.log"
    shown = tools.run(tools.DUMP_LOG, "--transaction-log-decoder", "--files", str(segment))
    assert shown.code == 0, shown
    assert worker.transactional_id in shown.out
    log("export", str(tmp_path / "broker"), "--data", str(tmp_path / "data"))
    with RealBroker(data=tmp_path / "broker") as broker:
        listed = tools.run(tools.TRANSACTIONS, "--bootstrap-server", broker.bootstrap, "list")
        assert worker.transactional_id in listed.out, listed
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": worker.transactional_id, "log_level": 0}
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("t", b"from the broker")
        producer.commit_transaction(WAIT_S)
        broker.stop()
    assert assignments(tmp_path / "broker") == [worker.transactional_id]
    log("import", str(tmp_path / "broker"), "--data", str(tmp_path / "back"), "--topics")
    assert assignments(tmp_path / "back") == [worker.transactional_id]
    with KcoordServer(data=tmp_path / "back") as server, Probe(server.bootstrap) as probe:
        # The end of the broker's transaction may have to be written once more.
        worker.init(probe)
        assert worker.commit_offset(probe, 1, 20) == 0
        assert worker.end(probe) == 0
