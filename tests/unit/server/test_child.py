"""Processes that a server starts: what became of them is told, and they end when nobody wants them any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.clean_worker import CleanFailed, CleanRequest, run_worker
from kcoord.log.cleaner import CleanConfig
from kcoord.server.child import Child, Leash, run_child

WAIT_S = 60.0


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


def test_a_process_that_nobody_waits_for_any_more_writes_nothing(tmp_path: Path) -> None:
    """The server stopped between the start of the thread and that of the process."""
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    leash = Leash()
    leash.kill()
    with pytest.raises(CleanFailed, match="ended with -9"):
        run_worker(CleanRequest(str(tmp_path), "t-0", [0], 0, CleanConfig(), 0, None), leash.started)
    work: dict[str, Any] = {"root": str(tmp_path), "niceness": 0, "plans": []}
    assert run_child("kcoord.server.state_child", work, leash.started) == []
    assert [path.name for path in (tmp_path / "t-0").iterdir()] == [f"{0:020d}.log"]


def test_a_process_that_ends_before_it_was_told_what_to_do_says_why() -> None:
    """Whoever starts it may get to its stdin later than that."""

    def started(child: Child | None) -> None:
        if child is not None:
            child.wait(WAIT_S)

    said = run_child("kcoord.server.no_such_module", {"niceness": 0}, started)
    assert "no_such_module" in said[-1]


def test_a_cleaner_that_ends_before_it_was_told_what_to_do_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.exit('no room for it')\n")
    request = CleanRequest(str(tmp_path), "t-0", [0], 0, CleanConfig(), 0, None)

    def begun_late(process: subprocess.Popen[bytes]) -> None:
        process.wait(WAIT_S)

    with pytest.raises(CleanFailed, match="no room for it"):
        run_worker(request, begun_late)
