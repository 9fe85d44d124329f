"""Sends a command to a running server through its control socket (`kcoord.server.control`)."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import Any, BinaryIO, Final

from kcoord.log.steps import Steps
from kcoord.server.control import SOCKET_NAME, frame_of
from kcoord.server.failures import EXIT_INTERNAL

# A server that sends no frame for this long is stopped or hangs.
ANSWER_S_MAX: Final = 30.0
# One step of a snapshot is a copy of 1 MiB, or a sync of at most 64 MiB.
STEP_S_MAX: Final = 120.0


class ControlError(Exception):
    """The server answered with an error or not at all. `code` is the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _read_answer(stream: BinaryIO) -> dict[str, Any]:
    head = stream.read(4)
    data = stream.read(struct.unpack(">I", head)[0]) if len(head) == 4 else b""
    answer: dict[str, Any] = json.loads(data)
    return answer


def ask_server(data_dir: str, request: dict[str, Any], steps: Steps) -> dict[str, Any]:
    """Send a request to the server that has `data_dir` open, and return its answer. Raises ControlError.

    Waits while the server is alive: it sends a frame within ANSWER_S_MAX and makes progress within STEP_S_MAX.
    """
    request = {**request, "progress": True}
    path = os.path.join(os.path.abspath(data_dir), SOCKET_NAME)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(ANSWER_S_MAX)
            link.connect(path)
            link.sendall(frame_of(request))
            with link.makefile("rb") as stream:
                answer = _wait_for_answer(stream, steps)
    except TimeoutError:
        text = f"{path} does not respond: the server sent nothing for {ANSWER_S_MAX:g} s"
        raise ControlError(EXIT_INTERNAL, text) from None
    except (OSError, ValueError) as error:
        raise ControlError(EXIT_INTERNAL, f"{path} does not respond: {error}") from None
    if "error" in answer:
        raise ControlError(int(answer.get("code", EXIT_INTERNAL)), str(answer["error"]))
    return answer


def _wait_for_answer(stream: BinaryIO, steps: Steps) -> dict[str, Any]:
    """The first frame that is not a progress report. Raises ControlError, OSError and ValueError."""
    done = -1
    before: dict[str, Any] = {}
    moved_s = time.monotonic()
    while True:
        answer = _read_answer(stream)
        if "done" not in answer or "total" not in answer:
            return answer
        if answer != before:
            before = answer
            moved_s = time.monotonic()
        elif time.monotonic() - moved_s >= STEP_S_MAX:
            raise ControlError(EXIT_INTERNAL, f"the server made no progress for {STEP_S_MAX:g} s; it may continue")
        if answer["total"]:
            if done < 0:
                steps.begin("Copying", answer["total"])
            steps.step(answer["done"] - max(done, 0))
            done = answer["done"]
