"""Crashes around snapshots of the metadata log: nothing is lost, and it would show if something were."""

from __future__ import annotations

import random

import pytest

from kcoord.engine.metadata_snapshot import UNLIMITED
from kcoord.log.metadata_checkpoint import PART_SUFFIX
from tests.crash import states
from tests.crash.promises import Promises, Recovered
from tests.crash.states import LATER, Explorer, Moment, record
from tests.crash.workload import KEEPS_ALL, Reference, open_small
from tests.harness import metadata
from tests.harness.faulty_storage import FaultyStorage, FileNode
from tests.harness.metadata import shorten

LOG = "__cluster_metadata-0/"
# More are for `make crash-states`.
PIECES_MAX = 7


def is_about_snapshots(moment: Moment) -> bool:
    kind, path = moment.next_operation.split(" ", 1)
    if path.startswith(LOG):
        return ".checkpoint" in path or kind == "unlink"
    return path.startswith("log-start-offset-checkpoint")


class Short(Reference):
    """Little but snapshots, so that all that a crash may leave of them can be tried."""

    def run(self) -> None:
        self.start()
        self.create("a")
        self.create("b")
        self.drain()
        # What is never synced of new logs would only multiply the states.
        self.stop()
        self.start()
        self.traffic(1)
        self.mark()
        self.shorten_metadata(KEEPS_ALL)
        self.new_producer()
        self.drain()
        self.mark()
        self.shorten_metadata(0)
        self.new_producer()
        self.drain()
        self.stop()
        self.start()


@pytest.fixture(autouse=True)
def only_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "Reference", Short)


def snapshot_moments(busy: bool) -> tuple[list[Moment], Explorer]:
    """Those before every operation on a snapshot, on what it makes superfluous, and some after."""
    moments, events = record(1, busy)
    near = {i + more for i, moment in enumerate(moments) if is_about_snapshots(moment) for more in range(3)}
    found = [moments[i] for i in sorted(near) if i < len(moments)]
    return found, Explorer(events, random.Random(1), "around snapshots")


@pytest.mark.parametrize("busy", [False, True])
def test_every_crash_around_a_snapshot(busy: bool) -> None:
    moments, explorer = snapshot_moments(busy)
    done = [moment.next_operation for moment in moments]
    for kind, suffix, count in (
        ("rename", ".checkpoint", 2),
        ("unlink", ".log", 2),
        ("unlink", ".checkpoint", 1),
    ):
        assert sum(o.startswith(f"{kind} {LOG}") and o.endswith(suffix) for o in done) >= count, (
            kind,
            suffix,
        )
    for moment in moments:
        if len(moment.snapshot.pieces()) <= PIECES_MAX:
            explorer.explore(moment)
    assert explorer.tally.problems == []
    assert explorer.tally.exhaustive > 15 and explorer.tally.states > 60


def test_a_snapshot_that_is_not_synced_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    datasync = FaultyStorage.datasync

    def careless(storage: FaultyStorage, path: str, node: FileNode) -> None:
        if not path.endswith(PART_SUFFIX):
            datasync(storage, path, node)

    monkeypatch.setattr(FaultyStorage, "datasync", careless)
    moments, explorer = snapshot_moments(False)
    [last] = [m for m in moments if m.next_operation.startswith("unlink") and m.next_operation.endswith(".checkpoint")]
    explorer.explore(last)
    assert any("no snapshot has the earlier records" in text for text in explorer.tally.problems)


class Killed(Exception):
    pass


def killed_at_rename(number: int) -> tuple[FaultyStorage, Promises]:
    """The workload, killed when the n-th snapshot has its name and nobody has synced that."""
    storage = FaultyStorage()
    workload = Reference(storage, 1, False)
    named = 0

    def kill(kind: str, path: str) -> None:
        nonlocal named
        if named == number:
            raise Killed
        if kind == "rename" and path.startswith(LOG) and path.endswith(".checkpoint"):
            named += 1

    storage.on_operation = kill
    with pytest.raises(Killed):
        workload.run()
    storage.on_operation = None
    storage.unlock()
    return storage, Promises(workload.events, len(workload.events))


def shorten_after_kill(number: int) -> str:
    """A second process lets the log begin where a snapshot ends that it found in the page cache, and then the power
    goes; what breaks."""
    storage, promises = killed_at_rename(number)
    engine = open_small(storage, LATER, random.Random(1))

    def cut(kind: str, path: str) -> None:
        if kind == "unlink" and path.startswith(LOG):
            raise Killed

    storage.on_operation = cut
    with pytest.raises(Killed):
        shorten(engine, LATER, UNLIMITED, 0)
    storage.on_operation = None
    try:
        after = Recovered(open_small(storage.crash(), LATER, random.Random(1)), LATER)
    except Exception as error:
        return str(error)
    return "".join(promises.broken_by(after))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_snapshot_that_was_found_in_the_page_cache_may_be_relied_on(number: int) -> None:
    assert shorten_after_kill(number) == ""


def test_it_may_because_its_name_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata, "save_start", lambda directory, starts, log_name: directory.write_start_offsets(starts)
    )
    assert any("no snapshot has the earlier records" in shorten_after_kill(number) for number in (1, 2, 3))
