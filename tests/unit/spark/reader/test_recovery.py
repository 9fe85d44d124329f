"""Spark's listing after a crash in the middle of compaction; kcoord/log/recovery.py has the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcoord.log.record_format import FORMAT_KEY
from kcoord.spark.reader.discovery import BadFiles
from kcoord.spark.reader.filesystem import Storage
from kcoord.wire.record_batch import BatchBuilder
from tests.unit.spark.log_rig import NOW, LogRig, rows


def log_of(root: Path) -> LogRig:
    """Segments 0, 3 and 6; offsets 0, 1, 3, 4 and 6."""
    log = LogRig(root)
    for base in (0, 3, 6):
        log.next_offset = base
        log.roll()
        log.append((b"k", b"old"))
        if base < 6:
            log.append((b"k", b"old"))
    return log


def batches(*offsets: int) -> bytes:
    data = b""
    for offset in offsets:
        builder = BatchBuilder()
        builder.append(NOW, b"k", b"new")
        data += builder.build(offset, 0)
    return data


def values(root: Path) -> list[tuple[int, bytes]]:
    return [(row["offset"], row["value"]) for row in rows(root)]


def name(base: int, kind: str) -> str:
    return f"{base:020d}.{kind}"


def test_an_exchange_that_began_is_finished(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    (log.path / name(0, "log.swap")).write_bytes(batches(1, 4))
    (log.path / name(2, "log.deleted")).write_bytes(b"anything")
    assert values(tmp_path) == [(1, b"new"), (4, b"new"), (6, b"old")]
    (log.path / name(0, "log")).rename(log.path / name(0, "log.deleted"))
    (log.path / name(3, "log")).unlink()
    assert values(tmp_path) == [(1, b"new"), (4, b"new"), (6, b"old")]
    # The directory of the partition alone.
    assert values(log.path) == [(1, b"new"), (4, b"new"), (6, b"old")]


def test_an_exchange_that_did_not_begin_is_undone(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    (log.path / name(0, "log.swap")).write_bytes(batches(1, 4))
    (log.path / name(0, "timeindex.cleaned")).touch()
    assert [offset for offset, _ in values(tmp_path)] == [0, 1, 3, 4, 6]


def test_indexes_are_found_by_the_names_that_they_have_now(tmp_path: Path) -> None:
    from kcoord.spark.reader.discovery import discover

    log = log_of(tmp_path)
    (log.path / name(0, "log.swap")).write_bytes(batches(1, 4))
    for kind in ("index.swap", "index", "timeindex"):
        (log.path / name(0, kind)).touch()
    (found,) = discover(*Storage(str(tmp_path)).open())
    assert [Path(one.path).name for one in found.segments] == [name(0, "log.swap"), name(6, "log")]
    assert found.beside(found.segments[0], ".index") == str(log.path / name(0, "index.swap"))
    assert found.beside(found.segments[0], ".timeindex") is None


def test_other_states_are_refused_by_name(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    swap = log.path / name(0, "log.swap")
    swap.write_bytes(batches(1, 4)[:-1])
    with pytest.raises(BadFiles, match=r"t-0: 0{20}\.log\.swap: its end offset, .* cannot be determined"):
        rows(tmp_path)
    swap.write_bytes(batches(1))
    (log.path / name(6, "log.swap")).write_bytes(batches(6))
    with pytest.raises(BadFiles, match=r"0{19}3\.log: segments between"):
        rows(tmp_path)
    # A server of ours exchanges several groups of segments at once.
    (tmp_path / "meta.properties").write_text(f"{FORMAT_KEY}=2\n")
    assert values(tmp_path) == [(1, b"new"), (3, b"old"), (4, b"old"), (6, b"new")]
