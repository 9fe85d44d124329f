"""Every action of the strangers does what it is about, and the server survives all of them at once."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from kcoord.protocol import apis
from kcoord.protocol.errors import NONE
from kcoord.protocol.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kcoord.server.probe import Probe
from tests.e2e.process import ServerProcess
from tests.strangers import rogue, rogue_requests, rogues
from tests.strangers.ledger import Ledger
from tests.strangers.rogue import Rogue
from tests.strangers.rogue_requests import HOUR_MS, TIMES, TIMES_BATCHES, TIMES_PARTITIONS, TIMES_RECORDS, prepare
from tests.strangers.rogues import ACTIONS
from tests.strangers.server import fields_of


@pytest.mark.slow
async def test_all_actions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rogue, rogue_requests):
        monkeypatch.setattr(module, "ANSWER_S", 3.0)
        monkeypatch.setattr(module, "SILENT_S", (0.1, 0.5))
    monkeypatch.setattr(rogue_requests, "STORM_S", (0.5, 1.0))
    monkeypatch.setattr(rogues, "BUSY_S", (0.1, 0.2))
    monkeypatch.setattr(rogue, "BURST", 100)
    with ServerProcess(tmp_path / "data") as server:
        await prepare(server.port)
        with Probe(server.bootstrap) as probe:
            parts = [ListOffsetsPartition(one, -1, int(time.time() * 1000) + HOUR_MS // 2) for one in range(2)]
            request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(TIMES, parts)])
            found = probe.ask(apis.LIST_OFFSETS, 7, request, ListOffsetsResponse).topics[0].partitions
            # The first batch that is an hour later.
            assert [(one.error_code, one.offset) for one in found] == [(NONE, TIMES_RECORDS)] * 2
        assert (TIMES_BATCHES, TIMES_PARTITIONS) >= (2, 2)
        actions = enumerate(ACTIONS.values())
        made = await asyncio.gather(*(act(Rogue(server.port, random.Random(number))) for number, act in actions))
        assert [name for name, count in zip(ACTIONS, made, strict=True) if not count] == []
        with Probe(server.bootstrap) as probe:
            assert probe.ping() > 0
        ledger = Ledger()
        for line in list(server.stderr):
            ledger.line(line, fields_of(line))
        assert ledger.violations == []
        # What was refused has a line.
        assert ledger.counts["log: connection_refused"] > 0
        assert server.stop() == 0
