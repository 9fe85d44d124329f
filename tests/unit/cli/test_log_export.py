"""`kcoord log export`: directories for a broker, and committed offsets as CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kcoord.cli.main import main
from kcoord.core.outcome import Now
from kcoord.engine.engine import Engine
from kcoord.log.cluster_image import ClusterImage, read_cluster_image, sound_batches
from kcoord.log.serde import decode_metadata_record
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kcoord.protocol.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.harness.engine import Client, open_engine

NOW = Now(1000, 1_700_000_000_000)


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["log", *arguments])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.output


def ask(client: Client, api_key: int, version: int, body: Any) -> None:
    client.ask(api_key, version, body, NOW)


def commit(client: Client, group: str, topic: str, *offsets: int) -> None:
    partitions = [OffsetCommitRequestPartition(p, offset, -1, "") for p, offset in enumerate(offsets)]
    topics = [OffsetCommitRequestTopic(topic, bytes(16), partitions)]
    ask(client, apis.OFFSET_COMMIT, 8, OffsetCommitRequest(group, -1, "", None, -1, topics))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def engine(data: Path) -> Iterator[Engine]:
    engine = open_engine(DiskStorage(str(data)), NOW)
    client = Client(engine)
    configs = [CreatableTopicConfig("retention.ms", "5")]
    ask(client, apis.CREATE_TOPICS, 5, CreateTopicsRequest([CreatableTopic("t", 2, 1, [], configs)]))
    commit(client, "plain", "t", 3, 4)
    commit(client, 'odd, "one"', "t", 7)
    commit(client, "gone", "t", 1)
    topics = [OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])]
    ask(client, apis.OFFSET_DELETE, 0, OffsetDeleteRequest("gone", topics))
    commit(client, "plain", "t", 30)
    yield engine
    engine.journal.close(clean=False)


def test_csv(engine: Engine, data: Path, tmp_path: Path) -> None:
    engine.stop()
    assert run("export", "-", "--csv", "--data", str(data)).splitlines() == [
        '"odd, ""one""",t,0,7',
        "plain,t,0,30",
        "plain,t,1,4",
    ]
    target = tmp_path / "offsets.csv"
    run("export", str(target), "--csv", "--data", str(data), "--group", "plain", "--group", "nobody")
    assert target.read_text() == "plain,t,0,30\nplain,t,1,4\n"
    target.unlink()
    message = run("export", str(target), "--csv", "--data", str(data), "--group", "nobody", code=2)
    assert "no committed offsets of nobody" in message and not target.exists()


def test_csv_of_a_running_server_up_to_the_durable_mark(engine: Engine, data: Path) -> None:
    engine.directory.write_recovery_points()
    commit(Client(engine), "late", "t", 9)
    assert "late" not in run("export", "-", "--csv", "--data", str(data))
    engine.directory.write_recovery_points()
    assert "late,t,0,9" in run("export", "-", "--csv", "--data", str(data))


def bootstrap(path: Path) -> ClusterImage:
    image = ClusterImage()
    for batch in sound_batches(str(path / "bootstrap.checkpoint")):
        if not batch.header.is_control:
            for record in batch.records(1 << 20):
                assert record.value is not None
                image.apply(record.value)
                decode_metadata_record(record.value)
    return image


def test_a_directory(engine: Engine, data: Path, tmp_path: Path) -> None:
    engine.stop()
    target = tmp_path / "broker"
    report = json.loads(run("export", str(target), "--data", str(data), "--output", "json"))
    assert report["written"]["topics"] == 2
    assert report["written"]["partitions"] == 3
    ours = read_cluster_image(str(data))
    theirs = bootstrap(target)
    assert ours is not None
    assert {i: (t.name, t.leader_epochs) for i, t in theirs.topics.items()} == {
        i: (t.name, t.leader_epochs) for i, t in ours.topics.items()
    }
    assert theirs.configs == ours.configs
    assert "kcoord" not in (target / "meta.properties").read_text()
    name = f"__consumer_offsets-0/{0:020d}.log"
    assert (target / name).read_bytes() == (data / name).read_bytes()
    assert not (target / "__cluster_metadata-0").exists()
    # And back again.
    back = tmp_path / "back"
    report = json.loads(run("import", str(target), "--data", str(back), "--output", "json"))
    assert report["taken"]["committed offsets"] == 3


def test_refusals(engine: Engine, data: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "broker")
    assert "in use" in run("export", target, "--data", str(data), code=6)
    engine.stop()
    assert "requires --csv" in run("export", target, "--data", str(data), "--group", "g", code=2)
    assert "not empty" in run("export", str(data), "--data", str(data), code=5)
    run("export", target, "--data", str(data))
    assert "not a kcoord data directory" in run("export", str(tmp_path / "b"), "--data", target, code=5)
