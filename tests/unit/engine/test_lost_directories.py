"""A directory with durable records that is gone, or that has lost its name, stops the start. Nothing is made anew."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kcoord.log.errors import LogDamaged
from kcoord.log.storage import DiskStorage
from kcoord.protocol import apis
from kcoord.protocol.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tests.harness.engine import open_engine
from tests.unit.cli.rig import METADATA, OFFSETS, LogRig, at


def make(path: Path, stop: bool) -> LogRig:
    rig = LogRig(path)
    rig.create("orders", 1, 0)
    rig.produce("orders", b"order 1", 1)
    rig.commit("billing", 2, orders_0=1)
    rig.marks()
    if stop:
        rig.stop()
    else:
        rig.kill()
    return rig


@pytest.mark.parametrize("stop", [True, False])
@pytest.mark.parametrize("name", ["orders-0", OFFSETS, METADATA])
def test_a_lost_directory(tmp_path: Path, name: str, stop: bool) -> None:
    make(tmp_path, stop)
    shutil.rmtree(tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*.log")}
    reason = "its directory is missing, \\d+ offsets were synced"
    with pytest.raises(LogDamaged, match=f"{name} is damaged .*: {reason}"):
        open_engine(DiskStorage(str(tmp_path)), at(3))
    assert not (tmp_path / name).exists()
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*.log")} == before


def test_a_log_that_does_not_have_its_topic_id(tmp_path: Path) -> None:
    make(tmp_path, True)
    (tmp_path / "orders-0" / "partition.metadata").unlink()
    before = (tmp_path / "orders-0" / f"{0:020d}.log").read_bytes()
    with pytest.raises(LogDamaged, match="orders-0/partition.metadata is damaged .*: the topic id is missing"):
        open_engine(DiskStorage(str(tmp_path)), at(3))
    assert (tmp_path / "orders-0" / f"{0:020d}.log").read_bytes() == before


def test_an_old_mark_of_a_deleted_topic_is_no_loss(tmp_path: Path) -> None:
    rig = LogRig(tmp_path)
    rig.create("orders", 1, 0)
    rig.produce("orders", b"order 1", 1)
    rig.marks()
    request = DeleteTopicsRequest(topics=[DeleteTopicState("orders")])
    assert rig.client.ask(apis.DELETE_TOPICS, 6, request, at(2)).responses[0].error_code == 0
    rig.kill()
    assert "orders 0 1" in (tmp_path / "recovery-point-offset-checkpoint").read_text()
    again = LogRig(tmp_path)
    again.create("orders", 1, 3)
    again.produce("orders", b"order 2", 4)
    again.stop()
    engine = open_engine(DiskStorage(str(tmp_path)), at(5), random.Random(1))
    log = engine.directory.get("orders", 0)
    assert log is not None and log.end_offset == 1
    engine.stop()
