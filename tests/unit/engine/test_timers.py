"""The queue of timers, with a removal of stale ones under way or not."""

from __future__ import annotations

import random

from kcoord.core.outcome import Timer
from kcoord.engine.timers import WEED_MIN, WEED_STEP, TimerQueue


def timer(token: int, deadline_ms: int) -> Timer:
    return Timer(1, "g", "m", token, deadline_ms)


def test_timers_fire_in_order_while_stale_ones_are_removed() -> None:
    rng = random.Random(3)
    queue = TimerQueue()
    fired: list[tuple[int, int]] = []
    live: dict[int, int] = {}
    longest = 0
    for token in range(20_000):
        now_ms = token
        deadline_ms = now_ms + rng.randrange(1, 3000)
        queue.arm(timer(token, deadline_ms))
        live[token] = deadline_ms
        if rng.random() < 0.8 and live:
            # Most timers are replaced before they fire.
            live.pop(rng.choice((token, token - 1, token - 2)), None)
        if queue.wants_weeding():
            queue.weed(lambda entry: entry.token in live)
        while (due := queue.pop_due(now_ms, queue.armed)) is not None:
            fired.append((due.deadline_ms, due.token))
            if due.token in live:
                assert live.pop(due.token) == due.deadline_ms
        assert token % 500 or all(deadline > now_ms for deadline in live.values()), "none is late"
        longest = max(longest, len(queue))
    assert [deadline for deadline, _ in fired] == sorted(deadline for deadline, _ in fired)
    assert longest < 4 * WEED_MIN, "stale timers are removed"


def test_equal_deadlines_fire_in_the_order_of_arming_across_both_heaps() -> None:
    queue = TimerQueue()
    for token in range(WEED_MIN):
        queue.arm(timer(token, 10))
    assert queue.wants_weeding()
    queue.weed(lambda entry: True)
    queue.arm(timer(WEED_MIN, 10))
    tokens = []
    while (due := queue.pop_due(10, queue.armed)) is not None:
        tokens.append(due.token)
    assert tokens == list(range(WEED_MIN + 1))
    assert len(queue) == 0 and queue.next_deadline_ms() == -1


def test_one_timer_looks_at_few_others() -> None:
    queue = TimerQueue()
    for token in range(50_000):
        queue.arm(timer(token, token))
    looked_at = 0

    def counts(entry: Timer) -> bool:
        nonlocal looked_at
        looked_at += 1
        return False

    assert queue.wants_weeding()
    for step in range(50_000 // WEED_STEP):
        assert looked_at == step * WEED_STEP
        queue.weed(counts)
    assert looked_at == 50_000
    assert len(queue) == 0 and not queue.wants_weeding()
