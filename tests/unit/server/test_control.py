"""The control socket's client never waits without end for a server that does not go on."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcoord.server import control_client
from kcoord.server.control_client import ControlError, ask_server
from tests.e2e.process import ServerProcess
from tests.harness.steps import Unwatched

WAIT_S = 60.0
ASK = {"command": "snapshot", "name": "x"}


class Speaker:
    """A server that takes one request and then says what it is given, again and again."""

    def __init__(self, data: Path, frames: Iterator[dict[str, object]], pause_s: float) -> None:
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(str(data / "kcoord.sock"))
        self.listening.listen()
        self.frames = frames
        self.pause_s = pause_s
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        link, _ = self.listening.accept()
        with link:
            link.recv(1000)
            for frame in self.frames:
                text = json.dumps(frame).encode()
                try:
                    link.sendall(struct.pack(">I", len(text)) + text)
                except OSError:
                    return
                time.sleep(self.pause_s)
            # The client hangs up.
            link.recv(1000)


def same() -> Iterator[dict[str, object]]:
    while True:
        yield {"done": 5, "total": 9, "steps": 2}


def growing() -> Iterator[dict[str, object]]:
    for number in range(20):
        yield {"done": 0, "total": 0, "steps": number}
    yield {"name": "x"}


def test_a_server_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "ANSWER_S_MAX", 0.5)
    with ServerProcess(tmp_path / "data") as server:
        server.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(ControlError, match=r"sent nothing for 0\.5 s"):
            ask_server(str(tmp_path / "data"), ASK, Unwatched())
        assert time.monotonic() - began < WAIT_S
        server.process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(control_client, "ANSWER_S_MAX", WAIT_S)
        made = ask_server(str(tmp_path / "data"), {"command": "snapshot", "name": "y"}, Unwatched())
        assert made["name"] == "y"
        assert server.stop() == 0


def test_a_server_that_makes_no_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "STEP_S_MAX", 0.5)
    Speaker(tmp_path, same(), 0.05)
    with pytest.raises(ControlError, match=r"no progress for 0\.5 s"):
        ask_server(str(tmp_path), ASK, Unwatched())


@pytest.mark.slow
def test_a_server_that_makes_progress_is_not_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "STEP_S_MAX", 1.0)
    Speaker(tmp_path, growing(), 0.1)
    assert ask_server(str(tmp_path), ASK, Unwatched()) == {"name": "x"}


def test_a_server_that_hangs_up(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.join(tmp_path, "kcoord.sock"))
    listening.listen()
    threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
    with pytest.raises(ControlError, match="does not respond"):
        ask_server(str(tmp_path), ASK, Unwatched())
