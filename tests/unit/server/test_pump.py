"""The pump between event loop and engine, with an engine that answers every frame with its own bytes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import suppress

import pytest

from kcoord.core.outcome import Job, Now, StepJob
from kcoord.engine.session import Session
from kcoord.protocol import apis
from kcoord.server.draining import disconnect_all, drain
from kcoord.server.listen.limits import TokenBucket
from kcoord.server.pump import Clocks, read_clocks
from kcoord.wire.frame import FrameLimits
from tests.unit.server import pump_rig
from tests.unit.server.pump_rig import (
    BIG,
    FAULTY,
    FRAME,
    WAIT_S,
    Disk,
    EchoEngine,
    Rig,
    exchange,
    running,
    until_left,
)
from tests.unit.server.test_server import until

pytestmark = pytest.mark.both_event_loops


def is_closing(rig: Rig) -> bool:
    """Whether the pump wants to be rid of any connection."""
    return any(connection.transport.is_closing() for connection in rig.pump.connections.values())


async def test_jobs_run_in_threads_and_return_to_the_engine() -> None:
    class Slow(Job):
        def run(self) -> object:
            return threading.current_thread() is threading.main_thread()

    engine = EchoEngine()
    job = Slow("a key", 5000)
    async with running(engine) as rig:
        engine.jobs.append(job)
        assert await exchange(await rig.connect()) == FRAME
        while not engine.done:
            await asyncio.sleep(0.002)
        assert engine.done == [(job, False, None)]
        assert engine.jobs == [] and rig.failures == []


async def test_a_fault_when_a_job_is_done_ends_everything() -> None:
    class Faulty(Job):
        def run(self) -> object:
            return "a fault of ours"

    engine = EchoEngine()
    async with running(engine) as rig:
        engine.jobs.append(Faulty("a key", 5000))
        rig.pump.schedule_turn()
        while not rig.failures:
            await asyncio.sleep(0.002)
        assert isinstance(rig.failures[0], ZeroDivisionError)
        assert rig.pump.has_failed


async def test_nothing_waits_for_a_job_at_the_end() -> None:
    gate = threading.Event()

    class Stuck(Job):
        def run(self) -> object:
            return gate.wait(300)

    engine = EchoEngine()
    gate.clear()
    try:
        async with running(engine) as rig:
            engine.jobs.append(Stuck("a key", 60_000))
            assert await exchange(await rig.connect()) == FRAME
            assert await asyncio.wait_for(drain(rig.pump, lambda: False), WAIT_S)
            gate.set()
            await asyncio.sleep(0.02)
            assert engine.done == []
    finally:
        gate.set()


async def test_producers_get_their_answers_before_the_end() -> None:
    gate = threading.Event()

    class Checks(StepJob):
        def step(self) -> bool:
            return gate.wait(300)

    engine = EchoEngine()
    gate.clear()
    job = Checks("a key", 60_000)
    try:
        async with running(engine) as rig:
            engine.jobs.append(job)
            engine.checking = 1
            assert await exchange(await rig.connect()) == FRAME
            assert not await drain(rig.pump, iter([False, False, True]).__next__)
            engine.jobs.append(job)
            draining = asyncio.ensure_future(drain(rig.pump, lambda: False))
            await asyncio.sleep(0.05)
            assert not draining.done()
            engine.checking = 0
            assert await asyncio.wait_for(draining, WAIT_S)
    finally:
        gate.set()


async def test_the_end_of_a_connection_drops_its_jobs() -> None:
    """Also those that the engine began in the same turn, and none of the jobs of others."""
    gate = threading.Event()

    class Checks(StepJob):
        def __init__(self, key: str, connection_id: int) -> None:
            super().__init__(key, 60_000)
            self.client_host = "127.0.0.1"
            self.connection_id = connection_id
            self.outlives_connection = False

        def step(self) -> bool:
            return gate.wait(300)

    engine = EchoEngine()
    try:
        async with running(engine) as rig:
            one, two = await rig.connect(), await rig.connect()
            assert await exchange(one) == await exchange(two) == FRAME
            running_jobs = [Checks(f"running-{number}", 2) for number in range(2)]
            dropped, also_dropped, other = Checks("1", 1), Checks("2", 1), Checks("3", 2)
            engine.jobs.extend([*running_jobs, dropped, other])
            rig.pump.schedule_turn()
            await until(lambda: not engine.jobs, "jobs to be taken")
            engine.jobs.append(also_dropped)
            rig.pump.connections[1].abort()
            await until(lambda: len(engine.done) == 2, "jobs to be dropped")
            closed = "its connection is closed"
            assert engine.done == [(dropped, None, closed), (also_dropped, None, closed)]
            assert not rig.failures and rig.pump.has_jobs()
            # Another engine does not need them.
            engine.jobs.append(Checks("4", 2))
            rig.pump.schedule_turn()
            await until(lambda: not engine.jobs, "jobs to be taken")
            following = EchoEngine()
            rig.pump.replace_engine(following)
            assert [(job.key, error) for job, _, error in following.done] == [("3", closed), ("4", closed)]
            gate.set()
            await until(lambda: len(following.done) == 4, "the running jobs")
            assert {job.key for job, _, error in following.done[2:] if error is None} == {"running-0", "running-1"}
    finally:
        gate.set()


async def test_groups_do_not_wait_for_producers() -> None:
    gate = threading.Event()

    class Checks(StepJob):
        def step(self) -> bool:
            return gate.wait(300)

    class Quick(Job):
        def run(self) -> object:
            return 7

    engine = EchoEngine()
    gate.clear()
    checks = [Checks(str(number), 60_000) for number in range(20)]
    quick = Quick("quick", 60_000)
    try:
        async with running(engine) as rig:
            engine.jobs.extend([*checks, quick])
            rig.pump.schedule_turn()
            while not engine.done:
                await asyncio.sleep(0.002)
            assert engine.done == [(quick, 7, None)]
            gate.set()
            while len(engine.done) < 21:
                await asyncio.sleep(0.002)
    finally:
        gate.set()


async def test_frames_are_answered_and_connections_forgotten() -> None:
    async with running(EchoEngine()) as rig:
        one, two = await rig.connect(), await rig.connect()
        assert await exchange(one, FRAME * 3) == FRAME * 3
        assert await exchange(two) == FRAME
        assert rig.pump.counts.total == 2
        one[1].close()
        while rig.pump.connections.keys() != {2}:
            await asyncio.sleep(0.01)
        assert rig.pump.counts.total == 1
        assert rig.pump.held_bytes == 0


async def test_what_arrives_during_a_sync_goes_with_the_next_one() -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_gate() -> None:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    engine = EchoEngine(wait_for_gate)
    async with running(engine) as rig:
        streams = await rig.connect()
        streams[1].write(FRAME)
        while engine.commits == 0:
            await asyncio.sleep(0.01)
        for number in range(1, 6):
            streams[1].write(FRAME)
            while len(engine.waiting) < number:
                await asyncio.sleep(0.002)
        assert not rig.pump.is_quiet()
        gate.set()
        await asyncio.wait_for(streams[0].readexactly(6 * len(FRAME)), WAIT_S)
        assert engine.commits == 2


async def test_a_failed_sync_ends_everything_without_an_answer() -> None:
    def broken() -> None:
        raise OSError(5, "the disk is gone")

    async with running(EchoEngine(broken)) as rig:
        streams, other = await rig.connect(), await rig.connect()
        streams[1].write(FRAME)
        for reader in (streams[0], other[0]):
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert [str(failure) for failure in rig.failures] == ["sync failed: [Errno 5] the disk is gone"]


async def test_nobody_waits_for_a_sync_in_the_background() -> None:
    released = threading.Event()
    synced: list[int] = []

    def slow() -> None:
        released.wait(WAIT_S)
        synced.append(1)

    engine = EchoEngine()
    async with running(engine) as rig:
        streams = await rig.connect()
        engine.ahead = [Disk(slow), Disk(slow)]
        for _ in range(5):
            assert await exchange(streams) == FRAME
        # One at a time: the next one begins after the first.
        assert len(engine.ahead) == 1 and not synced
        released.set()
        await until(lambda: len(synced) == 1, "the first sync")
        while engine.ahead:
            assert await exchange(streams) == FRAME
        await until(lambda: len(synced) == 2, "the second sync")
        assert rig.failures == []


async def test_a_failed_sync_in_the_background_ends_everything() -> None:
    """The system reports it once, so the sync of the next commit might succeed."""

    def broken() -> None:
        raise OSError(5, "the disk is gone")

    engine = EchoEngine()
    async with running(engine) as rig:
        streams = await rig.connect()
        engine.ahead = [Disk(broken)]
        streams[1].write(FRAME)
        with suppress(ConnectionError):
            await asyncio.wait_for(streams[0].read(), WAIT_S)
        await until(lambda: bool(rig.failures), "the failure")
        assert [str(failure) for failure in rig.failures] == ["sync failed: [Errno 5] the disk is gone"]


async def test_a_failure_of_the_log_ends_everything_once() -> None:
    engine = EchoEngine()
    engine.log_fails = True
    async with running(engine) as rig:
        streams, other = await rig.connect(), await rig.connect()
        streams[1].write(FAULTY)
        for reader in (streams[0], other[0]):
            with suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert [type(failure) for failure in rig.failures] == [MemoryError]


async def test_a_fault_of_the_engine_costs_the_connection_that_met_it() -> None:
    async with running(EchoEngine()) as rig:
        streams, other = await rig.connect(), await rig.connect()
        streams[1].write(FAULTY)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(streams[0].read(), WAIT_S) == b""
        assert await exchange(other) == FRAME
        await until_left(rig, 1)
        assert rig.failures == [] and rig.pump.counts.total == 1 and rig.pump.held_bytes == 0
        assert [line["event"] for line in rig.log.recent] == ["connection_aborted", "internal_error"]


async def test_garbage_costs_its_own_connection_only() -> None:
    async with running(EchoEngine()) as rig:
        honest, bad = await rig.connect(), await rig.connect()
        bad[1].write(b"GET / HTTP/1.1\r\n\r\n")
        assert await asyncio.wait_for(bad[0].read(), WAIT_S) == b""
        assert await exchange(honest) == FRAME


async def test_a_frame_that_never_ends_and_an_idle_connection() -> None:
    engine = EchoEngine()
    limits = ("frame.deadline.ms=200", "connections.max.idle.ms=1000")
    mono_ms = 1000
    async with running(engine, *limits, clocks=lambda: Now(mono_ms, mono_ms)) as rig:
        slow, idle = await rig.connect(), await rig.connect()
        while len(rig.pump.connections) < 2:
            await asyncio.sleep(0.002)
        for number in range(5):
            slow[1].write(BIG[:1])  # one byte of a frame at a time
            while engine.calls.count("receive") <= number:
                await asyncio.sleep(0.002)
            rig.pump.sweep()
            assert not is_closing(rig)
            mono_ms += 50
        mono_ms = 1200
        rig.pump.sweep()
        assert not is_closing(rig)
        mono_ms += 1
        rig.pump.sweep()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(slow[0].read(), WAIT_S) == b""
        await until_left(rig, 1)
        mono_ms = 2000
        rig.pump.sweep()
        assert not is_closing(rig)
        mono_ms += 1
        rig.pump.sweep()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(idle[0].read(), WAIT_S) == b""
        await until_left(rig, 0)
        assert "frame.deadline.ms" in str(rig.log.recent[0])


async def test_frames_that_keep_ending_are_not_overdue() -> None:
    """On a clock of its own: on the real one, a busy machine makes any frame look slow."""

    mono_ms = 1000
    async with running(EchoEngine(), "frame.deadline.ms=200", clocks=lambda: Now(mono_ms, mono_ms)) as rig:
        streams = await rig.connect()
        streams[1].write(FRAME[:5])
        for _ in range(10):
            assert await exchange(streams, FRAME[5:] + FRAME[:5], len(FRAME)) == FRAME
            mono_ms += 200
            rig.pump.sweep()
        assert len(rig.pump.connections) == 1
        # Without another end, the same frame is.
        mono_ms += 1
        rig.pump.sweep()
        while rig.pump.connections:
            await asyncio.sleep(0.01)
        assert "frame.deadline.ms" in str(rig.log.recent[0])


async def test_too_much_waiting_input_costs_the_connection_that_holds_most() -> None:
    engine = EchoEngine()
    engine.limits = FrameLimits({0: 10 << 20})
    head = (9 << 20).to_bytes(4, "big") + bytes(2)
    async with running(engine, "queued.max.request.bytes=1048576") as rig:
        small, large = await rig.connect(), await rig.connect()
        small[1].write(head + bytes(100_000))
        while rig.pump.held_bytes < 100_000:
            await asyncio.sleep(0.002)
        large[1].write(head + bytes(2_000_000))
        with suppress(ConnectionError):
            assert await asyncio.wait_for(large[0].read(), WAIT_S) == b""
        await until_left(rig, 1)
        assert [connection.session.id for connection in rig.pump.connections.values()] == [1]
        assert 0 < rig.pump.held_bytes < 200_000


async def test_who_does_not_read_is_not_read_and_goes_in_the_end() -> None:
    engine = EchoEngine(copies=1000)
    limits = ("output.buffer.high.bytes=100000", "output.buffer.max.bytes=30000000")
    async with running(engine, *limits) as rig:
        raw = socket.create_connection(("127.0.0.1", rig.port))
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(raw, BIG)
        while not rig.pump.connections or not next(iter(rig.pump.connections.values())).is_output_full:
            await asyncio.sleep(0.01)
        (connection,) = rig.pump.connections.values()
        assert not connection.is_reading
        seen = engine.calls.count("receive")
        await loop.sock_sendall(raw, BIG)
        await asyncio.sleep(0.1)
        assert engine.calls.count("receive") == seen
        # Ten times as much at once is more than may wait.
        engine.copies = 10000
        connection.update_reading()
        connection.data_received(BIG)
        await until_left(rig, 0)
        raw.close()


async def test_limits_on_connections() -> None:
    limits = ("max.connections.per.ip=2", "max.connections.per.ip.exempt.loopback=false")
    async with running(EchoEngine(), *limits) as rig:
        one, two = await rig.connect(), await rig.connect()
        three = await rig.connect()
        with suppress(ConnectionError):
            assert await asyncio.wait_for(three[0].read(), WAIT_S) == b""
        assert await exchange(one) == await exchange(two) == FRAME
        one[1].close()
        while rig.pump.counts.total == 2:
            await asyncio.sleep(0.01)
        assert await exchange(await rig.connect()) == FRAME


async def test_connections_come_at_the_configured_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Noting:
        def __init__(self, rate: int) -> None:
            self.bucket = TokenBucket(rate)

        def take(self, now_s: float) -> float:
            pauses.append(self.bucket.take(now_s))
            return pauses[-1]

    monkeypatch.setattr(pump_rig, "TokenBucket", Noting)
    async with running(EchoEngine(), "max.connection.creation.rate=10") as rig:
        loop = asyncio.get_running_loop()
        started = loop.time()
        streams = await asyncio.gather(*(rig.connect() for _ in range(25)))
        await asyncio.gather(*(exchange(stream) for stream in streams))
        # Twenty at once, the others a tenth of a second apart, and the last pause is nobody's.
        assert loop.time() - started > 0.3
        assert len(pauses) >= 24 and max(pauses) < 0.2


async def test_waiting_sockets_are_read_before_timers_fire() -> None:
    engine = EchoEngine()
    async with running(engine) as rig:
        streams = await rig.connect()
        await exchange(streams)
        raw = streams[1].get_extra_info("socket")
        engine.calls.clear()
        deadline_ms = engine.deadline_ms = read_clocks().mono_ms + 50
        rig.pump.schedule_turn()
        await asyncio.sleep(0)  # the turn, which arms the timer
        assert engine.calls == []
        while read_clocks().mono_ms < deadline_ms + 50:
            pass  # the stall: the deadline passes, and a heartbeat arrives meanwhile
        with suppress(BlockingIOError):
            socket.socket(fileno=socket.dup(raw.fileno())).send(FRAME)
        while engine.deadline_ms != -1:
            await asyncio.sleep(0.002)
        assert engine.calls == ["receive", "timers"]


async def test_what_was_read_is_handled_before_timers_fire() -> None:
    """The heartbeat may be among the input that did not fit into a turn."""

    engine = EchoEngine()
    async with running(engine) as rig:
        engine.more = 12
        engine.deadline_ms = read_clocks().mono_ms
        turns = engine.turns
        rig.pump.schedule_turn()
        while engine.deadline_ms != -1:
            await asyncio.sleep(0.002)
        assert engine.calls == ["timers"] and engine.turns > turns + 3


async def test_the_first_rebalance_of_a_group_does_not_wait_for_the_input_of_others() -> None:
    engine = EchoEngine()
    async with running(engine) as rig:
        engine.more = 12
        engine.deadline_ms = engine.prompt_ms = read_clocks().mono_ms
        turns = engine.turns
        rig.pump.schedule_turn()
        while engine.prompt_ms != -1:
            await asyncio.sleep(0)
        assert engine.calls == ["prompt timers"] and engine.turns < turns + 8
        while engine.deadline_ms != -1:
            await asyncio.sleep(0.002)
        assert engine.calls == ["prompt timers", "timers"]


async def test_an_earlier_timer_moves_the_call_forward() -> None:
    engine = EchoEngine()
    async with running(engine) as rig:
        engine.deadline_ms = read_clocks().mono_ms + 60000
        rig.pump.schedule_turn()
        await asyncio.sleep(0.02)
        engine.deadline_ms = read_clocks().mono_ms + 20
        rig.pump.schedule_turn()
        while engine.deadline_ms != -1:
            await asyncio.sleep(0.002)
        assert engine.calls == ["timers"]


def wait_in(loop: asyncio.AbstractEventLoop, gate: asyncio.Event) -> None:
    """Wait for the gate, outside of the loop that it belongs to."""
    asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()


async def test_draining_answers_what_was_read_and_reads_no_more() -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    engine = EchoEngine(lambda: wait_in(loop, gate))
    async with running(engine) as rig:
        streams = await rig.connect()
        streams[1].write(FRAME)
        while engine.commits == 0:
            await asyncio.sleep(0.01)
        drained = asyncio.create_task(drain(rig.pump, lambda: False))
        await asyncio.sleep(0.02)
        streams[1].write(FRAME)
        await asyncio.sleep(0.02)
        assert not drained.done()
        gate.set()
        assert await drained
        await disconnect_all(rig.pump)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(streams[0].read(), WAIT_S) == FRAME


async def test_a_write_that_may_wait_for_others_is_done_a_moment_later() -> None:
    engine = EchoEngine()
    engine.holds = True
    async with running(engine) as rig:
        streams = await rig.connect()
        for done in (1, 2):
            assert await exchange(streams) == FRAME
            assert engine.commits == done


async def test_draining_does_not_wait_for_others_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcoord.server.pump.HOLD_S", 3600.0)
    engine = EchoEngine()
    engine.holds = True
    async with running(engine) as rig:
        streams = await rig.connect()
        streams[1].write(FRAME)
        while not engine.waiting:
            await asyncio.sleep(0.002)
        assert await asyncio.wait_for(drain(rig.pump, lambda: False), WAIT_S)
        assert engine.commits == 1
        assert await asyncio.wait_for(streams[0].readexactly(len(FRAME)), WAIT_S) == FRAME


async def test_draining_has_an_end() -> None:
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()
    engine = EchoEngine(lambda: wait_in(loop, gate))
    async with running(engine) as rig:
        streams = await rig.connect()
        streams[1].write(FRAME)
        while engine.commits == 0:
            await asyncio.sleep(0.002)
        assert not await drain(rig.pump, lambda: True)
        gate.set()
        await asyncio.sleep(0.05)


async def test_another_engine_takes_over_idle_connections() -> None:
    old, new = EchoEngine(), EchoEngine()
    async with running(old) as rig:
        streams = await rig.connect()
        await exchange(streams)
        rig.pump.replace_engine(new)
        assert await exchange(streams) == FRAME
        assert (old.commits, new.commits) == (1, 1)


async def test_a_turn_that_takes_long_is_reported_with_its_api() -> None:
    class Busy(EchoEngine):
        def receive(self, session: Session, data: bytes, now: Now, start: int = 0, end: int = -1) -> None:
            super().receive(session, data, now, start, end)
            self.budget.note_request(apis.OFFSET_COMMIT, len(data), session.client_host, 0)
            ends_ns = time.thread_time_ns() + 30_000_000
            while time.thread_time_ns() < ends_ns:
                pass

    for limit_ms, lines in (("20", 1), ("100000", 0), ("0", 0)):
        async with running(Busy(), f"turn.log.ms={limit_ms}") as rig:
            await exchange(await rig.connect())
            found = [line for line in rig.log.recent if line["event"] == "long_turn"]
            assert len(found) == lines
            for line in found:
                assert (line["api"], line["client"]) == ("OffsetCommit", "127.0.0.1")
                assert int(str(line["cpu_ms"])) >= 20 and line["request_bytes"]


async def test_what_was_done_while_nobody_asked_is_not_reported_with_the_next_request() -> None:
    async with running(EchoEngine(), "turn.log.ms=20") as rig:
        streams = await rig.connect()
        for is_swept in (True, False):
            ends_ns = time.thread_time_ns() + 30_000_000
            while time.thread_time_ns() < ends_ns:
                pass
            if is_swept:
                rig.pump.sweep()
            await exchange(streams)
            assert any(line["event"] == "long_turn" for line in rig.log.recent) != is_swept


def test_the_clocks_are_read_anew_each_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [5_000_000, 5_999_999, 6_000_000, 90_000_000]
    walls = iter([70_000_000, 71_000_000, 20_000_000])
    monkeypatch.setattr("time.monotonic_ns", lambda: times.pop(0))
    monkeypatch.setattr("time.time_ns", lambda: next(walls))
    clocks = Clocks()
    found = [clocks.read() for _ in range(4)]
    assert [(now.mono_ms, now.wall_ms) for now in found] == [(5, 70), (5, 70), (6, 71), (90, 20)]
    assert found[0] is found[1]
