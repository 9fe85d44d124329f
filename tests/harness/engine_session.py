"""The scripts' conversations with an engine in this process, in memory and under a clock of their own.

    with_settings = EngineSession({"group.consumer.assignment.interval.ms": "0"})

Every request takes a millisecond, and `pause` takes what it says, without anybody waiting: timers fire on the way in the
order of their deadlines. Jobs are done before the next request is sent, as on an idle broker.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from kcoord.core.outcome import OFFSETS_TOPIC, Now
from kcoord.server.assignors import load_assignors
from kcoord.server.settings.load import load as load_config
from kcoord.wire.record_batch import Record, check_crc, decode_records, parse_header
from tests.harness.consumer_session import DECOMPRESSED_BYTES_MAX, ConsumerSession
from tests.harness.engine import finish_turn, open_memory_engine, run_jobs, take_output
from tests.harness.log import batches_of
from tests.harness.session import ANSWER_DEADLINE_S, Closed, Connection, KcoordCodec, Silent, request_frame

START_WALL_MS = 1_800_000_000_000


class World:
    """One engine and its clock."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        config = load_config(assignments=[f"{name}={value}" for name, value in settings.items()])
        self.mono_ms = 1
        assignors = load_assignors(config.core.group_consumer_assignors)
        self.engine = open_memory_engine(self.now(), random.Random(7), config.core, assignors)

    def now(self) -> Now:
        return Now(self.mono_ms, START_WALL_MS + self.mono_ms)

    def settle(self) -> None:
        run_jobs(self.engine, self.now())

    def advance(self, until_ms: int) -> None:
        """Lets time go by; what is due on the way happens at its time."""
        self.settle()
        while 0 <= self.engine.next_deadline_ms() <= until_ms:
            self.mono_ms = max(self.engine.next_deadline_ms(), self.mono_ms)
            self.engine.fire_timers(self.now())
            self.settle()
        self.mono_ms = until_ms


class EngineConnection(Connection):
    """A connection without a socket."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._end = world.engine.open_session("127.0.0.1", "127.0.0.1", 9092)
        self._correlation = 0
        self._input = b""

    def send(self, api_key: int, version: int, body: bytes, flexible: bool) -> int:
        world = self._world
        world.advance(world.mono_ms + 1)
        self._correlation += 1
        frame = request_frame(api_key, version, self._correlation, body, flexible)
        world.engine.receive(self._end, frame, world.now())
        finish_turn(world.engine, world.now())
        return self._correlation

    def receive(self, deadline_s: float = ANSWER_DEADLINE_S) -> tuple[int, bytes]:
        """Correlation id and the rest of the next response; time goes by until there is one."""
        world = self._world
        end_ms = world.mono_ms + int(deadline_s * 1000)
        while True:
            self._input += take_output(self._end)
            size = int.from_bytes(self._input[:4], "big") if len(self._input) >= 4 else -1
            if 0 <= size <= len(self._input) - 4:
                frame, self._input = self._input[4 : 4 + size], self._input[4 + size :]
                return int.from_bytes(frame[:4], "big"), frame[4:]
            if self._end.close_reason:
                raise Closed(self._end.close_reason)
            deadline_ms = world.engine.next_deadline_ms()
            if not 0 <= deadline_ms <= end_ms:
                world.advance(end_ms)
                raise Silent(f"{len(self._input)} bytes came")
            world.advance(max(deadline_ms, world.mono_ms))

    def close(self) -> None:
        self._world.engine.close_session(self._end, self._world.now())
        finish_turn(self._world.engine, self._world.now())


class EngineSession(ConsumerSession):
    """A recorded conversation with an engine of its own. `settings` are in Kafka's names."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__("", 0, KcoordCodec())
        self.world = World(settings)

    def connection(self, on: str) -> Connection:
        if on not in self._connections:
            self._connections[on] = EngineConnection(self.world)
        return self._connections[on]

    def pause(self, seconds: float) -> None:
        self.world.advance(self.world.mono_ms + int(seconds * 1000))

    def stored(self) -> list[list[Record]]:
        """The records of `__consumer_offsets` by batch."""
        log = self.world.engine.directory.get(OFFSETS_TOPIC, 0)
        assert log is not None
        found = []
        for position, data in batches_of(log, 0, log.end_offset):
            header = parse_header(data, position)
            assert check_crc(data, position, header)
            found.append(decode_records(data, position, header, DECOMPRESSED_BYTES_MAX))
        return found
