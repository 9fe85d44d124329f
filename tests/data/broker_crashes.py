"""Makes tests/data/broker/crashes anew: what a broker leaves when it ends at any moment of a change to segments.

    python -m tests.data.broker_crashes

Needs what `make interop` needs; two minutes. Kafka's own cleaner, loader and roll run under a debugger, which stops
them before each operation on files and copies the directory (tests/interop/java/LogStates.java). Then Kafka opens each
copy as at a start after a crash, and says which segments there are (LogRecovery.java).
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcoord.log.segment import segment_name
from kcoord.wire.record_batch import BatchBuilder
from tests.data.broker_dump import write_lines
from tests.data.known import LOGS
from tests.harness import java

TARGET = Path(__file__).resolve().parent / "broker" / "crashes"
PARTITION = "__consumer_offsets-0"
DEADLINE_S = 120
NOW_MS = 1_769_860_800_000
FAR = 1 << 31
EPOCH = 4


@dataclass
class State:
    """A directory as it is at one moment, and what Kafka makes of it: base offset, size and CRC-32 of each segment."""

    path: Path
    names: list[str] = field(default_factory=list)
    end: int = -1
    segments: list[tuple[int, int, int]] = field(default_factory=list)


def batches(*offsets: int, keys: str = "k") -> bytes:
    data = b""
    for offset in offsets:
        builder = BatchBuilder()
        for key in keys:
            builder.append(NOW_MS, key.encode(), b"%d" % offset)
        data += builder.build(offset, EPOCH)
    return data


def compacted_to_nothing(directory: Path) -> None:
    """Of the first segment compaction leaves no record."""
    directory.mkdir()
    for base, keys in ((0, "abc"), (3, "abcd"), (7, "e")):
        (directory / f"{segment_name(base)}.log").write_bytes(batches(base, keys=keys))


def overflowing(directory: Path) -> None:
    """A segment as brokers before 2.0 could write it: its offsets do not fit into 31 bits. Two others beside it."""
    directory.mkdir()
    (directory / f"{segment_name(0)}.log").write_bytes(batches(0, 1))
    wide = batches(2, 3, FAR + 5, FAR + 6, 2 * FAR + 9)
    (directory / f"{segment_name(2)}.log").write_bytes(wide)
    (directory / f"{segment_name(3 * FAR)}.log").write_bytes(batches(3 * FAR))


def overflowing_after_its_base(directory: Path) -> None:
    """The same after compaction took its first records: the first new segment has a larger base."""
    overflowing(directory)
    path = directory / f"{segment_name(2)}.log"
    path.write_bytes(batches(7, FAR + 5, FAR + 6, 2 * FAR + 9))


def states_of(home: Path, name: str, source: Path, *arguments: str) -> list[Path]:
    """Every state of the partition's directory `source` while LogRecovery does something to a copy of it."""
    partition = home / name / "work" / PARTITION
    shutil.copytree(source, partition)
    found = home / name / "states"
    command = java.command(
        "LogStates", str(partition), str(found), "LogRecovery", *arguments, str(partition)
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
    return sorted(found.iterdir())


def make_states(home: Path) -> dict[str, list[Path]]:
    """The states of each change, as directories that are named like a partition's."""
    made: dict[str, list[Path]] = {}
    log = LOGS / PARTITION
    made["two groups of segments are compacted"] = states_of(home, "groups", log, "clean", "40000")
    whole = made["all closed segments are compacted into one"] = states_of(home, "one", log, "clean", "1000000")
    for name, make in (("nothing", compacted_to_nothing), ("split", overflowing), ("gap", overflowing_after_its_base)):
        make(home / f"{name}-source")
    made["a segment is compacted to nothing"] = states_of(home, "nothing", home / "nothing-source", "clean", "200")
    made["a segment is split"] = states_of(home, "split", home / "split-source", "load")
    made["a segment that lost its first records is split"] = states_of(home, "gap", home / "gap-source", "load")
    made["a segment is rolled"] = states_of(home, "roll", log, "roll")
    swaps = [path for path in whole if list(path.glob("*.txnindex.swap"))]
    made["an exchange is finished at a start"] = states_of(home, "finish", swaps[0], "load")
    undone = [path for path in whole if list(path.glob("*.log.swap")) and list(path.glob("*.cleaned"))]
    made["an exchange is undone at a start"] = states_of(home, "undo", undone[0], "load")
    return made


def ask_kafka(home: Path, paths: list[Path]) -> list[State]:
    """What Kafka makes of directories, which it changes."""
    states = [State(path, sorted(file.name for file in path.iterdir())) for path in paths]
    copies = []
    for number, path in enumerate(paths):
        copies.append(home / f"asked-{number}" / PARTITION)
        shutil.copytree(path, copies[-1])
    command = java.command("LogRecovery", "load", *map(str, copies))
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "err "))]
    for state, line in zip(states, lines, strict=True):
        if not line.startswith("ok "):
            raise RuntimeError(f"{state.path}: {line}")
        _, end, *segments = line.split()
        state.end = int(end)
        state.segments = [tuple(int(number) for number in one.split(":")) for one in segments]  # type: ignore[misc]
    for copy in copies:
        shutil.rmtree(copy.parent)
    return states


def store(made: dict[str, list[State]]) -> None:
    """Each file once, by its content, and for each state which file has which content.

    Two states that differ in nothing but indexes' sizes are one.
    """
    shutil.rmtree(TARGET, ignore_errors=True)
    (TARGET / "files").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for change, states in made.items():
        known: set[tuple[Any, ...]] = set()
        for state in states:
            logs = [(state.path / name).stat().st_size for name in state.names if ".log" in name]
            if (*state.names, *logs) in known:
                continue
            known.add((*state.names, *logs))
            files = {name: keep(state.path / name) for name in state.names}
            rows.append({"change": change, "files": files, "end": state.end, "segments": state.segments})
    write_lines(TARGET / "states.jsonl.gz", rows)


def keep(path: Path) -> str:
    data = path.read_bytes()
    name = hashlib.sha256(data).hexdigest()[:16]
    (TARGET / "files" / name).write_bytes(data)
    return name


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kcoord-crashes-") as folder:
        home = Path(folder)
        made = {change: ask_kafka(home, paths) for change, paths in make_states(home).items()}
        store(made)
        for change, states in made.items():
            print(f"{len(states):4} {change}")


if __name__ == "__main__":
    main()
