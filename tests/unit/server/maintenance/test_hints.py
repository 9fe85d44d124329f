"""Files that only save work: whatever stands in their place, the server starts, serves, stops and starts again."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kcoord.log.directory import CHECKPOINT_BYTES_MAX, read_checkpoint, read_hint
from kcoord.log.errors import StorageError
from kcoord.log.storage import DiskStorage
from kcoord.server.failures import ServerError
from tests.unit.server.maintenance.test_cleaning import FAST, commit, committed, put
from tests.unit.server.maintenance.test_rounds import create, fetch, produce
from tests.unit.server.test_server import Rig, event, serving, until

# A server and its processes, at their own pace.
pytestmark = pytest.mark.slow

OFFSETS = "__consumer_offsets-0"
METADATA = "__cluster_metadata-0"

Put = Callable[[Path], None]


def put_directory(path: Path) -> None:
    path.mkdir()


def put_full_directory(path: Path) -> None:
    path.mkdir()
    (path / "somebody's").write_text("file")


def put_huge(path: Path) -> None:
    """It takes no space."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


def bytes_of(data: bytes) -> Put:
    def put(path: Path) -> None:
        path.write_bytes(data)

    return put


JUNK: dict[str, Put] = {
    "empty": bytes_of(b""),
    "binary": bytes_of(bytes(range(256)) * 40),
    "version": bytes_of(b"7\n0\n"),
    "count": bytes_of(b"0\n5\nt 0 1\n"),
    "numbers": bytes_of(b"0\n1\nt 0 " + b"9" * 5000 + b"\n"),
    "negative": bytes_of(b"0\n1\n__consumer_offsets 0 -5\n"),
    "beyond": bytes_of(b"0\n1\n__consumer_offsets 0 99999999999999\n"),
    "no count": bytes_of(b"0\n\xff\n"),
    "directory": put_directory,
    "full directory": put_full_directory,
    "huge": put_huge,
}
HINTS = (
    "cleaner-offset-checkpoint",
    "kcoord-commit-bytes",
    "replication-offset-checkpoint",
    ".kafka_cleanshutdown",
    f"{OFFSETS}/state-checkpoint",
    f"{OFFSETS}/state-checkpoint.tmp",
    f"t-0/{0:020d}.index",
    f"t-0/{0:020d}.timeindex",
    f"t-0/{3:020d}.snapshot",
    f"{METADATA}/{1:020d}-{0:010d}.checkpoint.part",
)


def replace(path: Path, put: Put) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    put(path)


async def use(rig: Rig, number: int) -> None:
    peer = await rig.connect()
    await commit(peer, "g", number)
    assert await committed(peer, "g") == number
    assert await produce(peer, "t", 1, 100) == number
    for offset in range(number + 1):
        assert (await fetch(peer, "t", offset)).error_code == 0


# A segment's index is written when the segment is closed, as a part of that: it has to be a file.
CASES = [(name, junk) for name in HINTS for junk in JUNK if not (name.endswith("index") and junk.endswith("directory"))]


@pytest.mark.parametrize(("name", "junk"), CASES)
async def test_a_server_with_junk_for_a_hint(tmp_path: Path, name: str, junk: str) -> None:
    settings = ("log.sync=os", "log.reserve.bytes=0")
    async with serving(tmp_path, *settings) as rig:
        await create(await rig.connect(), "t")
        for number in range(3):
            await use(rig, number)
    for number in (3, 4):
        replace(tmp_path / name, JUNK[junk])
        async with serving(tmp_path, *settings) as rig:
            await use(rig, number)
        assert rig.ended.exception() is None


@pytest.mark.parametrize("junk", [*JUNK, "unreadable"])
async def test_compaction_continues_without_its_checkpoint(
    tmp_path: Path, junk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if junk == "unreadable":
        read_bytes = DiskStorage.read_bytes

        def broken(self: DiskStorage, path: str) -> bytes:
            if path == "cleaner-offset-checkpoint":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            return read_bytes(self, path)

        monkeypatch.setattr(DiskStorage, "read_bytes", broken)

    async with serving(tmp_path, "log.cleaner.enable=false", "log.reserve.bytes=0") as rig:
        peer = await rig.connect()
        await create(peer, "c", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.1")
        for number in range(12):
            await put(peer, "c", {b"a": b"%d" % number + b"a" * 200_000})
    replace(tmp_path / "cleaner-offset-checkpoint", JUNK.get(junk, bytes_of(b"0\n0\n")))
    async with serving(tmp_path, *FAST, "log.reserve.bytes=0") as rig:
        await until(lambda: bool(event(rig, "compacted")), "the compaction")
        is_odd = junk not in ("negative", "beyond")
        assert len(event(rig, "checkpoint_not_used")) == int(is_odd)
    assert rig.ended.exception() is None


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", ".kafka_cleanshutdown"])
async def test_a_stop_that_cannot_write_a_hint_is_a_clean_one(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic = DiskStorage.write_atomic

    def broken(self: DiskStorage, path: str, data: bytes) -> None:
        if path == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        write_atomic(self, path, data)

    monkeypatch.setattr(DiskStorage, "write_atomic", broken)

    for number in range(2):
        async with serving(tmp_path) as rig:
            if not number:
                await create(await rig.connect(), "t")
            await use(rig, number)
        assert rig.ended.exception() is None
        assert event(rig, "file_not_written")[0]["file"] == name


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
@pytest.mark.parametrize("junk", ["binary", "directory", "huge", "count"])
async def test_junk_for_a_promise_is_refused_with_the_name_of_the_file(tmp_path: Path, name: str, junk: str) -> None:
    async with serving(tmp_path) as rig:
        await create(await rig.connect(), "t")
    replace(tmp_path / name, JUNK[junk])
    with pytest.raises(ServerError, match=name):
        async with serving(tmp_path):
            pass


def test_a_checkpoint_has_a_greatest_size(tmp_path: Path) -> None:
    storage = DiskStorage(str(tmp_path))
    put_huge(tmp_path / "huge")
    with pytest.raises(StorageError, match=f"{1 << 40} bytes"):
        read_checkpoint(storage, "huge")
    assert read_hint(storage, "huge")[0] == {} and CHECKPOINT_BYTES_MAX < 1 << 40
    assert read_hint(storage, "none") == ({}, "")
