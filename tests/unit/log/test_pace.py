"""The pace of long work: how often it rests, on a clock of the test's own."""

import pytest

from kcoord.log.pace import REST_FACTOR, REST_S_MAX, SLICE_S, SYNC_REST_FACTOR, GentlePace, Pace


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
    assert clock.rests == pytest.approx([0.01 * SYNC_REST_FACTOR])


def test_full_speed_never_rests(clock: Clock) -> None:
    file = SlowFile(clock, 0.01)
    pace = Pace()
    clock.now += 60.0
    pace.breathe()
    pace.sync(file)  # type: ignore[arg-type]
    assert (file.syncs, clock.rests) == (1, [])
