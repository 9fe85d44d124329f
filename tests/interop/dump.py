"""Log segments as Kafka's own dumper reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.interop import tools

RECORD = re.compile(r"\| offset: (\d+) .*? headerKeys: \[.*?\] (?:key: (.*?) )?payload: ?(.*)$")


def parsed(text: str) -> Any:
    """JSON where it is JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def dump(option: str, path: Path) -> list[dict[str, Any]]:
    """Key and payload of every record; every batch must be valid."""
    shown = tools.run(tools.DUMP_LOG, option, "--files", str(path))
    assert shown.code == 0, shown
    assert "isvalid: false" not in shown.out
    records = []
    for line in shown.lines:
        if match := RECORD.match(line):
            records.append({"key": json.loads(match[2]) if match[2] else None, "payload": parsed(match[3])})
    return records
