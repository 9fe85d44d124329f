"""The pace of long work: how often it rests, on a clock of the test's own."""

from pathlib import Path

import pytest

from kcoord.log.pace import (
    LOOK_S,
    REST_S_MAX,
    SHARE_MIN,
    SLICE_S,
    SPARE_SHARE,
    GentlePace,
    Pace,
    Processors,
    find_processors,
    share_for,
)

REST_FACTOR = 1.0 / SHARE_MIN - 1.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.rests: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.now += seconds


class SlowFile:
    def __init__(self, clock: Clock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.syncs = 0

    def datasync(self) -> None:
        self.clock.now += self.seconds
        self.syncs += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    monkeypatch.setattr("time.sleep", clock.sleep)
    return clock


def test_work_rests_for_longer_than_it_worked(clock: Clock) -> None:
    pace = GentlePace()
    pace.breathe()
    assert clock.rests == []
    for _ in range(10):
        clock.now += SLICE_S * 1.5
        pace.breathe()
    assert clock.rests == pytest.approx([SLICE_S * 1.5 * REST_FACTOR] * 10)


def test_a_pause_has_an_end(clock: Clock) -> None:
    pace = GentlePace()
    clock.now += 60.0
    pace.breathe()
    assert clock.rests == [REST_S_MAX]


def test_after_a_sync_the_disk_is_left_to_others(clock: Clock) -> None:
    file = SlowFile(clock, 0.01)
    GentlePace().sync(file)  # type: ignore[arg-type]
    assert file.syncs == 1
    assert clock.rests == pytest.approx([0.01 * REST_FACTOR])


def test_full_speed_never_rests(clock: Clock) -> None:
    file = SlowFile(clock, 0.01)
    pace = Pace()
    clock.now += 60.0
    pace.breathe()
    pace.sync(file)  # type: ignore[arg-type]
    assert (file.syncs, clock.rests) == (1, [])


def test_much_waiting_work_rests_less(clock: Clock) -> None:
    pace = GentlePace(0.5)
    clock.now += 0.01
    pace.breathe()
    assert clock.rests == pytest.approx([0.01])
    # Never less than beside a busy server, never more than one processor.
    assert GentlePace(0.0).share == SHARE_MIN
    assert GentlePace(7.0).share == 1.0


@pytest.mark.parametrize(
    ("free", "count", "share"),
    [
        (0.3, 2, 0.0), (1.0, 2, SPARE_SHARE), (1.7, 2, SPARE_SHARE), (1.85, 2, 1.0),
        (2.0, 8, 1.0), (0.95, 1, 1.0), (0.8, 1, 0.0),
    ],
)  # fmt: skip
def test_what_others_leave_decides(free: float, count: int, share: float) -> None:
    assert share_for(free, count) == share


def stat(path: Path, busy: int, idle: int) -> None:
    path.write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\n")


def test_it_looks_at_the_machine_again_and_again(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    path = tmp_path / "stat"
    stat(path, 0, 0)
    pace = GentlePace(processors=Processors(str(path)))
    assert pace.share == SHARE_MIN
    stat(path, 0, 100)
    clock.now += LOOK_S
    pace.breathe()
    assert (pace.share, clock.rests) == (1.0, [])
    # Others work now.
    stat(path, 150, 150)
    clock.now += LOOK_S
    pace.breathe()
    assert pace.share == SHARE_MIN and len(clock.rests) == 1
    # What this process uses itself counts as free.
    monkeypatch.setattr("time.process_time", lambda: 1.0)
    stat(path, 250, 250)
    clock.now += LOOK_S
    pace.breathe()
    assert pace.share == 1.0


def test_this_machine_can_be_looked_at_or_not() -> None:
    processors = find_processors()
    if processors is not None:
        assert 0.0 <= processors.take_free() <= processors.count * 1.5
