"""Work in several threads while a directory is opened or closed."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from kcoord.log.parallel import run_parallel


@pytest.mark.parametrize("threads", [1, 4])
def test_all_of_it_is_done_and_counted(threads: int) -> None:
    done: list[int] = []
    seen: list[int] = []
    run_parallel([partial(done.append, number) for number in range(50)], threads, seen.append)
    assert sorted(done) == list(range(50)) and seen[-1] == 50
    run_parallel([], threads)


def test_work_waits_for_the_disk_at_the_same_time() -> None:
    meet = threading.Barrier(4)

    def work() -> None:
        meet.wait(10)

    run_parallel([work] * 4, 4)


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_error_is_raised_and_ends_it(threads: int) -> None:
    done: list[int] = []

    def work(number: int) -> None:
        if number == 3:
            raise OSError("the disk is gone")
        done.append(number)

    with pytest.raises(OSError, match="the disk is gone"):
        run_parallel([partial(work, number) for number in range(1000)], threads)
    assert len(done) < 999
