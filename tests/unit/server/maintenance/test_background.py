"""The background work of a server begins after its start, and is there at its stop in any case."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.unit.server.maintenance.test_metadata_rounds import SMALL, checkpoints, create_and_delete
from tests.unit.server.test_server import event, serving, until

pytestmark = pytest.mark.slow


async def test_it_begins_by_itself_after_the_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as rig:
        assert rig.server._background is None
        assert not rig.server._is_exchanging()
        await until(lambda: rig.server._background is not None, "the background work")
        assert rig.server.background() is rig.server._background


async def test_a_stop_before_it_begins_writes_the_last_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kcoord.server.server.SETTLED_S", 3600.0)
    monkeypatch.setattr("kcoord.server.server.SWEEP_MS", 3_600_000)
    async with serving(tmp_path, SMALL, "shutdown.deadline.ms=60000") as rig:
        await create_and_delete(await rig.connect(), 10)
        assert rig.server._background is None and checkpoints(tmp_path) == []
        rig.server.request_stop()
        await asyncio.wait_for(rig.ended, 60.0)
        assert len(event(rig, "metadata_snapshot_written")) == 1
    assert len(checkpoints(tmp_path)) == 1
