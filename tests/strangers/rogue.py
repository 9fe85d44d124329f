"""What strangers do to a server with bytes and connections."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from kcoord.protocol import apis
from tests.harness.engine import request_frame
from tests.strangers import requests
from tests.strangers.connection import Connection

# Sources of the strangers' connections; the polite clients have 127.0.0.1.
ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(2, 8))
TOPIC: Final = "strange"
GROUPS: Final = tuple(f"strange-{number}" for number in range(5))
BURST: Final = 400
SILENT_MAX: Final = 100
SILENT_S: Final = (0.2, 4.0)
# How long a connection waits for an answer that it wants to read, and to send what it has.
ANSWER_S: Final = 10.0
TWO_GB: Final = (1 << 31) - 1


class Rogue:
    """What an action may use: where the server is, and chance."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port = port
        self.rng = rng

    def connection(self, receive_buffer_bytes: int = 0) -> Connection:
        return Connection(self.port, self.rng.choice(ADDRESSES), receive_buffer_bytes)

    async def leave(self, one: Connection) -> None:
        """Some say goodbye, most do not."""
        if self.rng.random() < 0.3:
            one.close()
        else:
            one.reset()


def opening(rng: random.Random) -> list[bytes]:
    """The frames of a client that begins, as bytes."""
    group = rng.choice(GROUPS)
    if rng.random() < 0.5:
        member = requests.join(group, TOPIC)
    else:
        member = requests.heartbeat(group + "-consumer", f"rogue-{rng.randrange(1000)}", 0, TOPIC)
    steps = [
        requests.api_versions(), requests.metadata(TOPIC), requests.find_coordinator(group), member,
        requests.committed(group, TOPIC),
    ]  # fmt: skip
    return [request_frame(*step) for step in steps]


async def burst(rogue: Rogue) -> int:
    """Many new connections at once that begin as clients do and leave with a reset at any point."""

    async def one() -> int:
        connection = rogue.connection()
        try:
            frames = opening(rogue.rng)
            whole = rogue.rng.randrange(len(frames) + 1)
            is_reading = rogue.rng.random() < 0.7
            await connection.open()
            for frame in frames[:whole]:
                await connection.send(frame)
                if is_reading:
                    async with asyncio.timeout(ANSWER_S):
                        await connection.receive_frame()
            if whole < len(frames):
                await connection.send(frames[whole][: rogue.rng.randrange(1, len(frames[whole]))])
            return 1
        except (OSError, TimeoutError):
            return 0
        finally:
            connection.reset()

    return sum(await asyncio.gather(*(one() for _ in range(BURST))))


async def send_and_wait(rogue: Rogue, data: bytes, seconds: float) -> int:
    connection = rogue.connection()
    try:
        await connection.open()
        async with asyncio.timeout(ANSWER_S):
            await connection.send(data)
        await asyncio.sleep(seconds)
        return 1
    except (OSError, TimeoutError):
        return 0
    finally:
        await rogue.leave(connection)


async def half_frames(rogue: Rogue) -> int:
    """Connections that send a part of a frame and are silent."""
    rng = rogue.rng
    made = []
    for _ in range(rng.randint(1, SILENT_MAX)):
        frame = rng.choice(opening(rng))
        made.append(send_and_wait(rogue, frame[: rng.randrange(1, len(frame))], rng.uniform(*SILENT_S)))
    return sum(await asyncio.gather(*made))


async def noise(rogue: Rogue) -> int:
    """Random bytes."""
    rng = rogue.rng
    sizes = [rng.choice((1, 7, 100, 5_000, 200_000)) for _ in range(rng.randint(1, 60))]
    return sum(await asyncio.gather(*(send_and_wait(rogue, rng.randbytes(size), rng.random()) for size in sizes)))


async def huge_claims(rogue: Rogue) -> int:
    """Frames that claim to have 2 GB, or less than nothing, of APIs with large limits and small ones."""
    rng = rogue.rng
    made = []
    for _ in range(rng.randint(1, 40)):
        size = rng.choice((TWO_GB, TWO_GB - 1, 1 << 30, 0, -1, -(1 << 31), 104_857_600, 10_485_760))
        api = rng.choice((apis.PRODUCE, apis.JOIN_GROUP, apis.METADATA, apis.FETCH, 77))
        head = size.to_bytes(4, "big", signed=True) + api.to_bytes(2, "big") + (9).to_bytes(2, "big")
        data = head + bytes(rng.choice((0, 3, 1_000, 2_000_000)))
        made.append(send_and_wait(rogue, data, rng.uniform(*SILENT_S)))
    return sum(await asyncio.gather(*made))
