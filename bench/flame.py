"""`make profile`: a flame graph of a server under load, with Python's functions and native ones.

    python -m bench.flame PY_SPY [--interpreted] [--picture FILE] [WORKLOAD ... and options of `kcoord bench run`]

py-spy starts the server, so that it may look into it without further rights, and samples it until the load is over. The
picture also has the start of the server (importlib) and threads that wait (epoll_pwait, PyThread_acquire_lock_timed).
The table of the ten functions with the largest share leaves them out. The picture is an SVG file for a browser, where a
click on a function shows it alone.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import servers
from kcoord.cli.bench.common import EVERYTHING
from kcoord.cli.bench.options import SETS
from kcoord.log.storage import LOCK_FILE

FOLDER: Final = servers.ROOT / "build" / "profile"
WORKLOADS: Final = ("commit-5", "offset-fetch", "heartbeat", "consumer-heartbeat")
LOAD: Final = ("--connections", "8", "--in-flight", "32", "--rounds", "1")
# Samples a second. Not a divisor of the server's timers, so that it does not only meet the same moments.
RATE: Final = 199
STOP_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
SHOWN: Final = 10
NAME_WIDTH: Final = 76

# Parts of names of functions that import, and that wait. py-spy cannot tell a waiting native thread from one that runs.
IMPORTS: Final = ("importlib._bootstrap", "CPyImport_")
WAITS: Final = ("PyThread_acquire_lock_timed ", "epoll_pwait ", "epoll_wait ", "poll ")
PLATFORM: Final = re.compile(r"\.cpython-[\w-]+(?=\.so\))")
# A frame in the picture: its name with a count, its place, and from where on it has how many samples.
DRAWN: Final = re.compile(
    r'<title>([^<]*) \([\d,]+ samples?, [\d.]+%\)</title><rect [^>]*\by="(\d+)"[^>]* fg:x="(\d+)" fg:w="(\d+)"'
)


@dataclass(frozen=True)
class Frame:
    """A function on a stack: `begin` and `count` are samples, `depth` the number of its callers."""

    name: str
    begin: int
    count: int
    depth: int

    @property
    def end(self) -> int:
        return self.begin + self.count


@dataclass
class Share:
    """Samples in which a function runs, itself or also through those that it calls."""

    own: int = 0
    total: int = 0


def read_frames(path: Path) -> list[Frame]:
    """The frames of a flame graph that py-spy has drawn, callers first. They are above those that they call."""
    found = [
        (html.unescape(name), int(top), int(begin), int(count))
        for name, top, begin, count in DRAWN.findall(path.read_text("utf-8"))
    ]
    if not found:
        raise RuntimeError(f"{path} has no frames")
    depths = {top: depth for depth, top in enumerate(sorted({top for _, top, _, _ in found}))}
    frames = [Frame(name, begin, count, depths[top]) for name, top, begin, count in found]
    return sorted(frames, key=lambda frame: (frame.depth, frame.begin))


def left_out(frames: Sequence[Frame]) -> list[tuple[int, int]]:
    """The samples of imports, which are part of the start, and of waiting: from and to."""
    found: list[tuple[int, int]] = []
    for frame in frames:
        is_wanted = not frame.name.startswith(WAITS) and not any(part in frame.name for part in IMPORTS)
        if not is_wanted and not is_in(frame, found):
            found.append((frame.begin, frame.end))
    return found


def is_in(frame: Frame, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether all samples of the frame are in one of the ranges."""
    return any(begin <= frame.begin and frame.end <= end for begin, end in ranges)


def shares(frames: Sequence[Frame]) -> tuple[dict[str, Share], int]:
    """The share of each function, and the number of all samples, without what is left out.

    A function that calls itself counts once.
    """
    skipped = left_out(frames)
    by_depth: dict[int, list[Frame]] = {}
    for frame in frames:
        by_depth.setdefault(frame.depth, []).append(frame)
    found: dict[str, Share] = {}
    samples = 0
    # Where each function runs already, further out on the same stacks.
    outer: dict[str, list[tuple[int, int]]] = {}
    for frame in frames:
        if is_in(frame, skipped):
            continue
        total = frame.count - sum(end - begin for begin, end in skipped if frame.begin <= begin < frame.end)
        samples = max(samples, total)
        share = found.setdefault(frame.name, Share())
        called = by_depth.get(frame.depth + 1, [])
        share.own += frame.count - sum(one.count for one in called if frame.begin <= one.begin < frame.end)
        ranges = outer.setdefault(frame.name, [])
        if not is_in(frame, ranges):
            share.total += total
            ranges.append((frame.begin, frame.end))
    return found, samples


def print_shares(found: dict[str, Share], samples: int) -> None:
    print(f"\n{'own %':>7}{'all %':>7}  function, of {samples:,} samples without imports and waiting")
    ranked = sorted(((name, share) for name, share in found.items() if name != "all"), key=lambda one: -one[1].own)
    for name, share in ranked[:SHOWN]:
        # The library of native code has the platform in its name.
        name = PLATFORM.sub("", name)
        shown = name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 3]}..."
        print(f"{share.own / samples * 100:>7.1f}{share.total / samples * 100:>7.1f}  {shown}")


class SampledServer(servers.Server):
    """`kcoord serve`, started by py-spy."""

    def __init__(self, py_spy: Path, picture: Path, compiled: bool, data: Path) -> None:
        sampling = [str(py_spy), "record", "--nolineno", "--rate", str(RATE), "--output", str(picture)]
        # py-spy cannot do this on macOS.
        sampling += [] if sys.platform == "darwin" else ["--native"]
        command = [sys.executable, "-P", "-m", "kcoord.cli.main", "serve", "--listen", "127.0.0.1:0"]
        self.lock = data / LOCK_FILE
        command += ["--data", str(data), "--set", "log.sync=os", "--exit-with-parent"]
        super().__init__([*sampling, "--", *command], servers.environment(compiled))

    def wait_ready(self) -> tuple[str, int]:
        """py-spy writes to the same output as the server."""
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            if " ready " in line:
                host, _, port = line.strip().rpartition(" ")[2].rpartition(":")
                return host, int(port)
            lines.append(line)
        raise RuntimeError("the server did not start:\n" + "".join(lines) + self.tail())

    def end(self) -> None:
        """End sampling: py-spy draws the picture, and the server ends after py-spy. Raises RuntimeError."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(STOP_SECONDS)
        if self.process.returncode:
            raise RuntimeError(f"py-spy failed ({self.process.returncode}):\n{self.tail()}")
        deadline = time.monotonic() + STOP_SECONDS
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)

    def is_running(self) -> bool:
        """Whether a server has the lock of its directory. It is no child of this process."""
        with self.lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def load(address: str, compiled: bool, words: Sequence[str]) -> None:
    """Run `kcoord bench run`. What it prints goes to the terminal. Raises CalledProcessError."""
    command = [sys.executable, "-P", "-m", "kcoord.cli.main", "bench", "run", "-b", address, *LOAD]
    # Without a name, that command would run all workloads.
    command += () if any(word in SETS or word in SETS[EVERYTHING] for word in words) else WORKLOADS
    variables = servers.environment(compiled)
    subprocess.run([*command, *words], env=variables, cwd=tempfile.gettempdir(), check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("py_spy", type=Path, metavar="PY_SPY", help="the program")
    parser.add_argument("--interpreted", action="store_true", help="the server of the source tree")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="where the picture goes (build/profile/TREE.svg)")
    args, words = parser.parse_known_args()
    compiled = not args.interpreted
    tree = "compiled" if compiled else "interpreted"
    picture = (args.picture or FOLDER / f"{tree}.svg").absolute()
    picture.parent.mkdir(parents=True, exist_ok=True)
    # It may be started from any folder.
    data = Path(tempfile.mkdtemp(dir=picture.parent))
    try:
        with SampledServer(args.py_spy.absolute(), picture, compiled, data / "data") as server:
            load(f"{server.host}:{server.port}", compiled, words)
            server.end()
        found = shares(read_frames(picture))
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise SystemExit(f"profile: {error}") from None
    finally:
        shutil.rmtree(data, ignore_errors=True)
    print_shares(*found)
    print(f"\n{os.path.relpath(picture)} ({tree})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
