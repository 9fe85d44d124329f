"""Syncs without threads: by the kernel, with an answer to the event loop. Only Linux has them."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from kcoord.log.errors import SyncFailed
from kcoord.log.storage import DiskFile
from kcoord.protocol import apis
from kcoord.server.kernel_syncs import CALLS, SLOTS, KernelSyncs, failure_of, kernel_syncs
from kcoord.server.sync_threads import SyncThreads
from tests.unit.server.test_server import commit, serving, topic, until


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DiskFile]:
    opened = DiskFile(str(tmp_path / "f"))
    yield opened
    opened.close()


def holds(found: Sequence[object], count: int) -> bool:
    return len(found) == count


@asynccontextmanager
async def syncs() -> AsyncIterator[KernelSyncs]:
    found = kernel_syncs(asyncio.get_running_loop())
    assert found is not None
    try:
        yield found
    finally:
        found.stop()


async def test_a_file_is_synced(file: DiskFile) -> None:
    async with syncs() as kernel:
        over: list[BaseException | None] = []
        for number in range(100):
            file.append(b"x" * 4096)
            assert kernel.submit(file.descriptor, over.append)
            # Nothing is reported before the loop has heard of it.
            assert len(over) == number
            await until(partial(holds, over, number + 1), "the sync")
        assert over == [None] * 100 and kernel.begun == 100


async def test_a_file_may_be_closed_meanwhile(file: DiskFile) -> None:
    async with syncs() as kernel:
        over: list[BaseException | None] = []
        file.append(b"x" * (1 << 20))
        assert kernel.submit(file.descriptor, over.append)
        file.close()
        await until(partial(holds, over, 1), "the sync")
        assert over == [None]


async def test_only_so_many_at_a_time(file: DiskFile) -> None:
    async with syncs() as kernel:
        over: list[int] = []

        def note(number: int, error: BaseException | None) -> None:
            assert error is None
            over.append(number)

        for number in range(SLOTS):
            file.append(b"x")
            assert kernel.submit(file.descriptor, partial(note, number))
        assert not kernel.submit(file.descriptor, partial(note, -1))
        await until(partial(holds, over, SLOTS), "all syncs")
        # There is room again, and each was told once.
        assert sorted(over) == list(range(SLOTS))
        assert kernel.submit(file.descriptor, partial(note, SLOTS))
        await until(partial(holds, over, SLOTS + 1), "one more")


async def test_what_the_kernel_does_not_take_is_for_a_thread(file: DiskFile) -> None:
    """A pipe cannot be synced, and no file of some file systems. Nobody tries again and again."""
    async with syncs() as kernel:
        over: list[BaseException | None] = []
        read_end, write_end = os.pipe()
        assert not kernel.submit(write_end, over.append)
        os.close(read_end)
        os.close(write_end)
        threads = SyncThreads(asyncio.get_running_loop())
        threads.kernel = kernel
        assert not threads.sync_in_kernel(file.descriptor, over.append)
        await asyncio.wait_for(threads.rest(lambda: False), 60.0)
        assert over == [] and kernel.begun == 0
        threads.stop()


async def test_rest_waits_for_the_kernel(file: DiskFile) -> None:
    threads = SyncThreads(asyncio.get_running_loop())
    threads.kernel = kernel_syncs(asyncio.get_running_loop())
    over: list[BaseException | None] = []
    file.append(b"x" * (1 << 20))
    assert threads.sync_in_kernel(file.descriptor, over.append)
    await asyncio.wait_for(threads.rest(lambda: False), 60.0)
    assert over == [None]
    threads.stop()
    threads.stop()
    assert threads.kernel is None and not threads.sync_in_kernel(0, over.append)


def test_what_a_result_means() -> None:
    assert failure_of(0) is None
    failed = failure_of(-errno.EIO)
    assert isinstance(failed, SyncFailed) and os.strerror(errno.EIO) in str(failed)
    assert isinstance(failed.__cause__, OSError) and failed.__cause__.errno == errno.EIO


async def test_a_server_that_always_syncs_has_it(tmp_path: Path) -> None:
    async with serving(tmp_path, "log.sync=always", "log.reserve.bytes=0") as rig:
        threads = rig.server.pump.threads
        await until(lambda: threads.kernel is not None, "the kernel")
        kernel = threads.kernel
        assert kernel is not None
        peer = await rig.connect()
        await peer.ask(apis.CREATE_TOPICS, 5, topic())
        for offset in range(20):
            answer = await peer.ask(apis.OFFSET_COMMIT, 8, commit(offset))
            assert answer.topics[0].partitions[0].error_code == 0
        # Whatever creates files or closes a segment is for a thread.
        assert kernel.begun >= 15
    assert not kernel.is_usable


async def test_a_system_without_it_takes_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    before = os.listdir("/proc/self/fd")
    assert kernel_syncs(asyncio.get_running_loop()) is None
    # Calls that do not exist, as in a sandbox that forbids them.
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setitem(CALLS, "x86_64", (100_000, 100_001, 100_002, 100_003))
    assert kernel_syncs(asyncio.get_running_loop()) is None
    assert len(os.listdir("/proc/self/fd")) == len(before)
    async with serving(tmp_path, "log.sync=always", "log.reserve.bytes=0") as rig:
        peer = await rig.connect()
        await peer.ask(apis.CREATE_TOPICS, 5, topic())
        for offset in range(5):
            await asyncio.sleep(0.2)
            answer = await peer.ask(apis.OFFSET_COMMIT, 8, commit(offset))
            assert answer.topics[0].partitions[0].error_code == 0
        assert rig.server.pump.threads.kernel is None


async def test_a_server_that_does_not_sync_does_without(tmp_path: Path) -> None:
    async with serving(tmp_path, "log.sync=os", "log.reserve.bytes=0") as rig:
        # As long as the other one takes at most.
        await asyncio.sleep(1)
        assert rig.server.pump.threads.kernel is None
