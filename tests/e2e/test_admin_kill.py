"""The admin client while its server is killed and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kcoord.client.admin.admin import Admin
from kcoord.client.admin.results import CommittedOffset
from kcoord.client.errors import RequestTimedOut
from tests.client.groups import make_topic
from tests.e2e.process import ServerProcess


async def test_calls_survive_a_server_that_comes_back(tmp_path: Path) -> None:
    first = ServerProcess(tmp_path / "data")
    async with Admin(first.bootstrap) as admin:
        (one,) = await make_topic(admin, "kept")
        await admin.alter_group_offsets("kept", {one: 7})
        first.kill()
        with pytest.raises(RequestTimedOut, match="offsets of groups"):
            await admin.list_group_offsets("kept", timeout_s=0.5)
        waiting = asyncio.create_task(admin.list_group_offsets("kept"))
        second = await asyncio.to_thread(ServerProcess, tmp_path / "data", listen=first.bootstrap)
        try:
            assert await waiting == {one: CommittedOffset(7)}
            assert [group.group_id for group in await admin.list_groups()] == ["kept"]
        finally:
            second.kill()
