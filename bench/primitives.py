"""What the calls cost that the server could make in another way: the figures behind two decisions.

    python -m bench.primitives [--rounds N]

- A sync in the event loop, or in a thread that reports to it. The latter is what the server does: a disk that hangs
  must not stop everybody.
- Records to a client by `sendfile`, which is what it does, or by reading them and sending what was read. The
  client is on the same machine, so its share counts as well.

CPU times are in microseconds, of user and system together; the least of all rounds.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

RECORD_BYTES = 300
SYNCS = 300
ANSWER_BYTES = 1 << 20
ANSWERS = 200
FILE_ANSWERS = 32
RECEIVE_BYTES = 1 << 18
SEND_BUFFER_BYTES = 1 << 18

Send = Callable[[socket.socket, int, int], None]


def sync_here(folder: Path) -> tuple[float, float]:
    """CPU and wall time of a write and a sync, in microseconds."""
    descriptor = os.open(folder / "here", os.O_RDWR | os.O_CREAT)
    began, used = time.perf_counter(), time.process_time()
    for number in range(SYNCS):
        os.pwrite(descriptor, b"x" * RECORD_BYTES, number * RECORD_BYTES)
        os.fdatasync(descriptor)
    figures = (time.process_time() - used) / SYNCS * 1e6, (time.perf_counter() - began) / SYNCS * 1e6
    os.close(descriptor)
    return figures


def sync_in_thread(folder: Path) -> tuple[float, float]:
    """The same, with the sync in a thread."""
    descriptor = os.open(folder / "thread", os.O_RDWR | os.O_CREAT)
    work: SimpleQueue[bool] = SimpleQueue()
    done: SimpleQueue[bool] = SimpleQueue()

    def run() -> None:
        while work.get():
            os.fdatasync(descriptor)
            done.put(True)

    thread = threading.Thread(target=run)
    thread.start()
    began, used = time.perf_counter(), time.process_time()
    for number in range(SYNCS):
        os.pwrite(descriptor, b"x" * RECORD_BYTES, number * RECORD_BYTES)
        work.put(True)
        done.get()
    figures = (time.process_time() - used) / SYNCS * 1e6, (time.perf_counter() - began) / SYNCS * 1e6
    work.put(False)
    thread.join()
    os.close(descriptor)
    return figures


def by_sendfile(connection: socket.socket, descriptor: int, position: int) -> None:
    left = ANSWER_BYTES
    while left:
        sent = os.sendfile(connection.fileno(), descriptor, position, left)
        position += sent
        left -= sent


def by_reading(connection: socket.socket, descriptor: int, position: int) -> None:
    connection.sendall(os.pread(descriptor, ANSWER_BYTES, position))


def answers(folder: Path, send: Send) -> tuple[float, float]:
    """CPU time of the sender and of the client for an answer of a mebibyte, one at a time, in microseconds."""
    path = folder / "records"
    path.write_bytes(os.urandom(ANSWER_BYTES) * FILE_ANSWERS)
    descriptor = os.open(path, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writing, repr(receive(listener.getsockname()[1])).encode())
            finally:
                os._exit(0)
        os.close(writing)
        connection, _ = listener.accept()
        # As a server's event loop sets it. Without it, the last packet of each call waits, and sendfile takes thrice as
        # long. The size of the buffer is the default of socket.send.buffer.bytes.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        with connection:
            used = time.process_time()
            for number in range(ANSWERS):
                connection.recv(1)
                send(connection, descriptor, number % FILE_ANSWERS * ANSWER_BYTES)
            used = time.process_time() - used
            received = float(os.read(reading, 100))
        os.waitpid(child, 0)
        os.close(reading)
    os.close(descriptor)
    return used / ANSWERS * 1e6, received / ANSWERS * 1e6


def receive(port: int) -> float:
    """Ask for the answers one at a time, and receive them. Returns the CPU time in seconds."""
    buffer = bytearray(RECEIVE_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        used = time.process_time()
        for _ in range(ANSWERS):
            connection.sendall(b"?")
            left = ANSWER_BYTES
            while left:
                left -= connection.recv_into(buffer)
        return time.process_time() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    rounds: int = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        for title, measure in (("sync, in the loop", sync_here), ("sync, in a thread", sync_in_thread)):
            cpu, wall = min(measure(folder) for _ in range(rounds))
            print(f"{title:24} {cpu:6.0f} us of CPU, {wall:6.0f} us in all", flush=True)
        for title, send in (("1 MiB, sendfile", by_sendfile), ("1 MiB, read and sent", by_reading)):
            sender, client = min((answers(folder, send) for _ in range(rounds)), key=sum)
            print(f"{title:24} {sender:6.0f} us of CPU, and {client:6.0f} us of the client", flush=True)


if __name__ == "__main__":
    main()
