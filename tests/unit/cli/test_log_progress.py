"""Progress bars: on stderr, on a terminal, where a person reads the output; and nowhere else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from pathlib import Path

import pytest

from kcoord.cli.log import common
from kcoord.log import snapshot
from kcoord.log.steps import Step, copy_open_file
from kcoord.server.control_client import ask_server
from kcoord.server.settings.load import load
from kcoord.server.thread import ServerThread
from tests.e2e.process import clean_environment, kcoord_command
from tests.unit.cli.rig import LogRig, run

WAIT_S = 60.0


def on_a_terminal(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and what a terminal that is stderr was shown."""
    ours, theirs = pty.openpty()
    command = kcoord_command("log", *map(str, arguments))
    environment = {**clean_environment(), "TERM": "xterm"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:
        pass  # the child has gone
    finally:
        os.close(ours)
    out, _ = child.communicate(timeout=WAIT_S)
    return child.returncode, out, shown.decode()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped, with an empty snapshot, and something to look at in every log."""
    path = tmp_path_factory.mktemp("progress") / "data"
    rig = LogRig(path)
    rig.history()
    rig.produce("orders", bytes(3000), 8)
    rig.stop()
    assert run("snapshot", "one", "--data", path).exit_code == 0
    return path


@pytest.fixture(scope="module")
def broker(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("progress") / "broker"
    assert run("export", path, "--data", data).exit_code == 0
    # As a broker leaves it: its metadata log is not what an export holds.
    os.symlink(data / "__cluster_metadata-0", path / "__cluster_metadata-0")
    return path


COMMANDS = {
    "verify": ("Checking", ["verify", "DATA"]),
    "dump": ("Reading", ["dump", "DATA"]),
    "ls": ("Reading", ["ls", "DATA"]),
    "state": ("Replaying", ["state", "DATA"]),
    "diff": ("Replaying", ["diff", "DATA", "3"]),
    "repair": ("Reading", ["repair", "DATA"]),
    "compact": ("Compacting", ["compact", "DATA", "--roll", "--history", "0"]),
    "export": ("Copying", ["export", "NEW", "--data", "DATA"]),
    "offsets": ("Reading", ["export", "NEW", "--data", "DATA", "--csv"]),
    "import": ("Importing", ["import", "BROKER", "--data", "NEW", "--topics"]),
    "import without records": ("Importing", ["import", "BROKER", "--data", "NEW"]),
    "snapshot": ("Copying", ["snapshot", "two", "--data", "DATA"]),
    "restore": ("Copying", ["restore", "one", "--data", "DATA"]),
}


@pytest.fixture
def places(data: Path, broker: Path, tmp_path: Path) -> dict[str, str]:
    copy = tmp_path / "data"
    subprocess.run(["cp", "-a", str(data), str(copy)], check=True)
    return {"DATA": str(copy), "BROKER": str(broker), "NEW": str(tmp_path / "new")}


@pytest.mark.parametrize("name", COMMANDS)
def test_long_work_shows_how_far_it_is(name: str, places: dict[str, str]) -> None:
    label, words = COMMANDS[name]
    arguments = [places.get(word, word) for word in words]
    code, out, shown = on_a_terminal(*arguments)
    assert code == 0, shown
    assert label in shown and "100%" in shown
    assert "%" not in out


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "offsets"])
def test_json_has_no_progress_bar(name: str, places: dict[str, str]) -> None:
    label, words = COMMANDS[name]
    arguments = [places.get(word, word) for word in words]
    code, out, shown = on_a_terminal(*arguments, "-o", "json")
    assert code == 0, shown
    assert label not in shown and "%" not in shown
    for document in out.splitlines() if name == "dump" else [out]:
        json.loads(document)


def test_a_note_takes_the_place_of_the_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with common.progress("Reading", 10) as step:
        common.note("one thing")
        step(10)
    common.note("another")
    shown = capsys.readouterr().err
    assert "\r\x1b[Kkcoord: one thing\n" in shown and shown.endswith("100%\x1b[?25h\nkcoord: another\n")


class Watcher:
    def __init__(self) -> None:
        self.totals: list[int] = []
        self.done: list[int] = []

    def begin(self, label: str, total_bytes: int) -> None:
        self.totals.append(total_bytes)

    def step(self, done_bytes: int) -> None:
        self.done.append(done_bytes)


def test_a_running_server_reports_its_progress(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["cp", "-a", str(data), str(tmp_path / "data")], check=True)
    copy = copy_open_file
    watcher = Watcher()
    copied: list[str] = []

    def slowly(fd: int, target: str, size: int, step: Step) -> None:
        """After each of the first two, until that was told."""
        copy(fd, target, size, step)
        copied.append(target)
        ends_at = time.monotonic() + WAIT_S
        while len(watcher.done) < min(len(copied), 2) and time.monotonic() < ends_at:
            time.sleep(0.01)

    monkeypatch.setattr(snapshot, "copy_open_file", slowly)
    config = load(assignments=["listeners=127.0.0.1:0", f"log.dirs={tmp_path / 'data'}"])
    server = ServerThread(config)
    server.start()
    try:
        made = ask_server(str(tmp_path / "data"), {"command": "snapshot", "name": "slow"}, watcher)
    finally:
        server.stop()
    assert made["name"] == "slow" and len(made["ends"]) == 4
    assert watcher.totals == [2 * sum(path.stat().st_size for path in (tmp_path / "data").glob("*/*.log"))]
    assert len(watcher.done) >= 2 and 0 < sum(watcher.done) <= watcher.totals[0]
