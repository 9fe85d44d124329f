"""What Kafka's own kafka-dump-log says of a partition's files, line by line as JSON.

One object per line of its output: {"file": NAME} begins a file; {"batch": {…}} and {"record": {…}} are of a `.log`,
{"entry": {…}} of an index or a snapshot of producers, {"invalid_bytes": N} ends a `.log` that is cut short. The names
are the dumper's, numbers are numbers. Of records:

    offset, time (ms), key_size, value_size, sequence (if printed), header_keys,
    marker, coordinator_epoch       of the end of a transaction
    key, value                      of coordinators' logs: JSON as the dumper's decoders show it, null for a tombstone;
                                    of topics: text, which the dumper makes of the bytes as if they were UTF-8, or null
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.interop import tools

DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__share_group_state": "--share-group-state-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint")
BEGINNINGS = ("| offset: ", "baseOffset: ", "Dumping ", "Log starting ", "Snapshot end ", "Found ")
PAIR = re.compile(r"(\w+): (\S+)")
DUMPING = re.compile(r"Dumping (?:.*/)?([^/]+)$")
RECORD = re.compile(
    r"\| offset: (?P<offset>\d+) (?:CreateTime|LogAppendTime): (?P<time>-?\d+) keySize: (?P<key_size>-?\d+)"
    r" valueSize: (?P<value_size>-?\d+)(?: sequence: (?P<sequence>-?\d+))?(?: headerKeys: \[(?P<header_keys>.*?)\])?"
    r"(?P<rest>.*)$",
    re.S,
)
INVALID = re.compile(r"Found (\d+) invalid bytes at the end of ")
MARKER = re.compile(r" endTxnMarker: (\w+) coordinatorEpoch: (\d+)")


def dump(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> Iterator[dict[str, Any]]:
    """The lines of the files with these endings in a partition's directory. Every batch must be valid."""
    topic = path.name.rsplit("-", 1)[0]
    files = [str(file) for file in sorted(path.iterdir()) if file.suffix in suffixes]
    decoder = DECODERS.get(topic, "--print-data-log")
    args = [decoder, "--print-data-log", "--files", ",".join(files)]
    shown = tools.run(tools.DUMP_LOG, *args)
    assert shown.code == 0, shown.err
    assert "isvalid: false" not in shown.out
    for line in logical_lines(shown.out):
        found = parse(line, topic)
        if found is not None:
            yield found


def logical_lines(text: str) -> list[str]:
    """Values with line feeds in them are printed as they are; such lines belong to the one before."""
    lines: list[str] = []
    for line in text.split("\n"):
        begins = line.startswith(BEGINNINGS)
        if begins or not lines or not lines[-1].startswith("| "):
            lines.append(line)
        else:
            lines[-1] += "\n" + line
    return lines


def parse(line: str, topic: str) -> dict[str, Any] | None:
    if match := DUMPING.match(line):
        return {"file": match[1]}
    if match := INVALID.match(line):
        return {"invalid_bytes": int(match[1])}
    if line.startswith("| "):
        return {"record": record(line, topic)}
    facts = {name: number(value) for name, value in PAIR.findall(line)}
    if line.startswith("baseOffset: "):
        return {"batch": facts}
    if line.startswith(("offset: ", "timestamp: ", "producerId: ", "version: ")):
        return {"entry": facts}
    return None


def record(line: str, topic: str) -> dict[str, Any]:
    match = RECORD.match(line.rstrip("\n"))
    assert match is not None, line
    found: dict[str, Any] = {
        name: int(match[name]) for name in ("offset", "time", "key_size", "value_size") if match[name]
    }
    if match["sequence"]:
        found["sequence"] = int(match["sequence"])
    if match["header_keys"]:
        found["header_keys"] = match["header_keys"].split(",")
    rest = match["rest"]
    if marker := MARKER.match(rest):
        found.update(marker=marker[1], coordinator_epoch=int(marker[2]))
        return found
    head, _, value = rest.partition(" payload: ")
    key = head.removeprefix(" key: ") if head.startswith(" key: ") else None
    found["key"] = text_or_json(key, topic)
    found["value"] = None if found["value_size"] < 0 else text_or_json(value, topic)
    return found


def text_or_json(text: str | None, topic: str) -> Any:
    if text is None or topic not in DECODERS:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def number(text: str) -> Any:
    text = text.rstrip(",")
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"true": True, "false": False}.get(text, text)


def write_lines(path: Path, items: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> int:
    """JSON lines, compressed, the same bytes for the same content. Returns their number."""
    lines = [json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n" for item in items]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(lines).encode("utf-8", "surrogatepass"), 9, mtime=0))
    return len(lines)
