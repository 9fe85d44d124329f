"""Processes that a server starts: whatever they do wrong is a reason in words, within a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.clean_worker import CleanRequest
from kcoord.log.cleaner import CleanConfig
from kcoord.server.maintenance import child
from kcoord.server.maintenance.child import BadAnswer, ChildRun, Leash, int_of, run_child

# A server and its processes, at their own pace.
pytestmark = pytest.mark.slow

WAIT_S = 60.0
# Starting an interpreter takes less, on a busy machine too.
SILENCE_S = 20.0
CHILDREN = (
    "kcoord.log.clean_worker",
    "kcoord.server.maintenance.state_child",
    "kcoord.server.maintenance.metadata_child",
)

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Makes a module with these lines after it took its work; its name."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def make(lines: str) -> str:
        head = "import json, os, signal, sys, time\nwork = sys.stdin.readline()\n"
        (tmp_path / "some_child.py").write_text(head + lines)
        return "some_child"

    return make


def run(module: str, silence_s: float = SILENCE_S, wanted: int = 1, **work: Any) -> ChildRun:
    return run_child(module, {"niceness": 0, **work}, Leash(), silence_s, wanted)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-P", "-c", "import time; time.sleep(600)"])


@pytest.mark.parametrize("is_late", [False, True])
def test_a_process_is_ended_whether_or_not_it_has_begun(is_late: bool) -> None:
    leash = Leash()
    if is_late:
        leash.kill()
    with sleeper() as process:
        leash.started(process)
        if not is_late:
            assert process.poll() is None
            leash.kill()
        assert process.wait(WAIT_S) == -9
    assert leash.is_over


def test_a_process_of_a_stopped_server_writes_nothing(tmp_path: Path) -> None:
    """The server stopped between the start of the thread and that of the process."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    leash = Leash()
    leash.kill()
    work = CleanRequest(str(tmp_path), "t-0", [0], 0, CleanConfig(), 0, None, 1.0).encode()
    for module in CHILDREN:
        found = run_child(module, work, leash, SILENCE_S)
        assert found.answers == [] and found.reason
    assert [path.name for path in (tmp_path / "t-0").iterdir()] == [f"{0:020d}.log"]


def test_answers_come_in_order_and_what_is_printed_beside_them_is_no_answer(write: Write) -> None:
    module = write(
        "for n in range(3):\n"
        "    print('{', flush=True)\n"
        "    print(json.dumps({'answer': {'n': n}}), flush=True)\n"
        "    print('[1]', 'null', '{\"answer\": 3}', sep='\\n', flush=True)\n"
        "    os.write(1, b'\\xff{}\\n{\"\\xff\"}\\n')\n"
        "    print('on stderr', file=sys.stderr, flush=True)\n"
        "os._exit(0)\n"
    )
    found = run(module, wanted=3)
    assert ([answer["n"] for answer in found.answers], found.reason) == ([0, 1, 2], "")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("", "it ended with 0"),
        ("print('{\"answer\": {\"n\": 1', flush=True, end='')", 'it ended with 0: {"answer": {"n": 1'),
        # A whole object, but the line has no end.
        ("print('{\"answer\": {}}', flush=True, end='')", 'it ended with 0: {"answer": {}}'),
        ("print('junk', flush=True); sys.exit(3)", "it ended with 3: junk"),
        ("raise MemoryError('none left')", "it ended with 1: MemoryError: none left"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "it ended by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it ended by SIGKILL"),
        ("print('[' * 1000000, flush=True); os._exit(1)", "it ended with 1: [["),
        ("os.fork() and os._exit(4)\nsys.stdin.read()", "it ended with 4"),
        ("os.close(1); time.sleep(600)", "it closed its output but did not end"),
        ("data = b'x' * 65536\nwhile True: os.write(1, data)", "a line of more than"),
        ("data = b'x\\n' * 32768\nwhile True: os.write(1, data)", "an output of more than"),
        ("data = b'x' * 65536\nwhile True: os.write(2, data)", "an output of more than"),
    ],
)
def test_why_there_is_no_answer(write: Write, lines: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "LINE_BYTES_MAX", 1 << 21)
    monkeypatch.setattr(child, "OUTPUT_BYTES_MAX", 1 << 22)
    found = run(write(lines))
    assert found.answers == [] and found.reason.startswith(reason), found.reason
    assert len(found.reason) < 2 * child.SAID_BYTES_MAX


@pytest.mark.parametrize(
    "lines",
    [
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "time.sleep(600)",
        # Junk is no progress, and neither is the same number again.
        "while True: print('still here', json.dumps({'progress': 7}), sep='\\n', flush=True); time.sleep(0.01)",
        # Another process holds its output, and ends with its input.
        "os.fork() and os.kill(os.getpid(), signal.SIGSTOP)\nsys.stdin.read()",
    ],
)
def test_a_process_without_progress_is_ended(write: Write, lines: str) -> None:
    leash = Leash()
    seen: list[int] = []
    module = write("print('{\"progress\": 7}', flush=True)\n" + lines)
    began = time.monotonic()

    def watch() -> None:
        while leash.child is None:
            time.sleep(0.001)
        seen.append(leash.child.pid)

    watcher = threading.Thread(target=watch)
    watcher.start()
    found = run_child(module, {"niceness": 0}, leash, 2.0)
    watcher.join()
    assert (found.answers, found.reason) == ([], "no progress for 2 s")
    assert time.monotonic() - began < WAIT_S
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_a_process_that_makes_progress_is_not_stopped(write: Write) -> None:
    module = write(
        "for n in range(20):\n"
        "    print(json.dumps({'progress': n}), flush=True)\n"
        "    time.sleep(0.5)\n"
        "print(json.dumps({'answer': {}}), flush=True)\n"
    )
    assert run(module, 8.0).answers == [{}]


def test_answers_before_the_end_count(write: Write) -> None:
    module = write("print(json.dumps({'answer': {'n': 1}}), flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n")
    found = run(module, wanted=2)
    assert (found.answers, found.reason) == ([{"n": 1}], "it ended by SIGKILL")


def test_who_answered_everything_need_not_end(write: Write) -> None:
    """Nor close its output, nor keep silent."""
    module = write("print(json.dumps({'answer': {}}), flush=True)\nwhile True: print('more')\n")
    began = time.monotonic()
    assert run(module, 600.0).answers == [{}]
    assert time.monotonic() - began < WAIT_S


def test_work_that_is_not_read_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is larger than a pipe."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "some_child.py").write_text("import time\ntime.sleep(600)\n")
    assert run("some_child", 2.0, bases=list(range(200_000))).reason == "no progress for 2 s"


def test_work_of_any_size_arrives(write: Write) -> None:
    module = write("print(json.dumps({'answer': {'count': len(json.loads(work)['bases'])}}), flush=True)\n")
    assert run(module, bases=list(range(200_000))).answers == [{"count": 200_000}]


def test_a_process_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    message = run("kcoord.server.no_such_module").reason
    assert message.startswith("it ended with 1") and "no_such_module" in message
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert run("kcoord.server.maintenance.state_child").reason.startswith("it cannot be started: ")
    (tmp_path / "python").write_bytes(b"no program")
    (tmp_path / "python").chmod(0o755)
    assert run("kcoord.server.maintenance.state_child").reason.startswith("it cannot be started: ")


def test_a_process_that_ends_before_it_receives_its_work_reports_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.exit('out of memory')\n")
    for module in CHILDREN:
        assert "out of memory" in run(module).reason


def test_a_stopped_process_is_ended_at_once_when_its_work_is_not_wanted(write: Write) -> None:
    leash = Leash()
    found: list[ChildRun] = []
    module = write("os.kill(os.getpid(), signal.SIGSTOP)\n")
    thread = threading.Thread(target=lambda: found.append(run_child(module, {}, leash, 600.0)))
    thread.start()
    while leash.child is None:
        time.sleep(0.01)
    os.kill(leash.child.pid, signal.SIGSTOP)
    leash.kill()
    thread.join(WAIT_S)
    assert found[0].reason in ("it was cancelled", "it ended by SIGKILL")
    assert leash.child is None


def test_all_children_speak_one_protocol() -> None:
    for module in CHILDREN:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b'{"niceness": 0, "root": "/", "plans": []}\n')
            process.stdin.flush()
            assert process.stdout.readline() == b'{"progress": 0}\n'
            process.kill()


@pytest.mark.parametrize("value", [None, True, 1.5, "7", -2, [1], {}])
def test_an_answer_without_its_number(value: Any) -> None:
    with pytest.raises(BadAnswer, match="its answer has records ="):
        int_of({"records": value}, "records")
