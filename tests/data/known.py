"""What is known of the brokers' logs in tests/data/broker; README.md there explains each field."""

from __future__ import annotations

import gzip
import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

BROKER = Path(__file__).resolve().parent / "broker"
LOGS = BROKER / "logs"
# The small data sets beside it.
SMALL = ("release-3.9", "release-4.0", "copied", "killed", "torn", "compacted")


@cache
def answers() -> dict[str, Any]:
    """What clients did and were told."""
    found: dict[str, Any] = json.loads((BROKER / "answers.json").read_text(encoding="utf-8"))
    return found


@cache
def messages() -> list[dict[str, Any]]:
    """What consumers saw of topics, by topic, partition and offset. Bytes are in base64."""
    return lines_of(BROKER / "messages.jsonl.gz")


@cache
def dump(name: str) -> list[dict[str, Any]]:
    """What kafka-dump-log says of the partition `name`, such as `__consumer_offsets-0`."""
    return lines_of(BROKER / "dump" / f"{name}.jsonl.gz")


def dumped_partitions() -> list[str]:
    return sorted(path.name.removesuffix(".jsonl.gz") for path in (BROKER / "dump").iterdir())


def unpack_small(name: str, path: Path) -> Path:
    """The logs of a small data set, in a new folder `path`."""
    with tarfile.open(BROKER / name / "logs.tar.gz") as archive:
        archive.extractall(path, filter="data")
    return path


@cache
def small_answers(name: str) -> dict[str, Any]:
    """What a broker that was started on a copy of the logs answered, and what clients did."""
    found: dict[str, Any] = json.loads((BROKER / name / "answers.json").read_text(encoding="utf-8"))
    return found


@cache
def small_dump(name: str, partition: str) -> list[dict[str, Any]]:
    """As `dump`, of the `.log` files of coordinators' partitions in a small data set."""
    return lines_of(BROKER / name / "dump" / f"{partition}.jsonl.gz")


def small_dumped(name: str, beginning: str = "") -> list[str]:
    names = (path.name.removesuffix(".jsonl.gz") for path in (BROKER / name / "dump").iterdir())
    return sorted(partition for partition in names if partition.startswith(beginning))


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogatepass")
    # Not splitlines, which takes more for the end of a line than JSON does.
    return [json.loads(line) for line in text.split("\n") if line]
