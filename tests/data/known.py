"""What is known of the broker's logs in tests/data/broker; README.md there tells what each field is."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

BROKER = Path(__file__).resolve().parent / "broker"
LOGS = BROKER / "logs"


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


def lines_of(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "surrogatepass")
    # Not splitlines, which takes more for the end of a line than JSON does.
    return [json.loads(line) for line in text.split("\n") if line]
