"""What Kafka says of a data directory: a broker of the same release is started on a copy of it and asked."""

from __future__ import annotations

import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from tests.data import broker_reading
from tests.data.broker_dump import dump, write_lines
from tests.data.broker_life import PASSING, Life, wait_until
from tests.harness.real_broker import RealBroker
from tests.interop import tools

DUMPED = ("__consumer_offsets-", "__transaction_state-", "payments-")
COLUMN = re.compile(r"COORDINATOR \(ID\)|\S+")


def table(text: str) -> list[dict[str, str]]:
    """Rows of what kafka-consumer-groups prints, by column; the coordinator's address is left out.

    A cell begins below its column's name, and may be empty or hold blanks.
    """
    rows = []
    columns: list[tuple[str, int]] = []
    for line in text.splitlines():
        if line.startswith("GROUP "):
            columns = [(match[0], match.start()) for match in COLUMN.finditer(line)]
        elif not line.strip() or line.startswith(("Consumer group ", "Warning: ")):
            columns = []
        elif columns:
            assert all(line[start - 1 : start].strip() == "" for _, start in columns[1:]), line
            ends = [*(start for _, start in columns[1:]), len(line)]
            cells = [line[start:end].strip() for (_, start), end in zip(columns, ends, strict=True)]
            rows.append(dict(zip((name for name, _ in columns), cells, strict=True)))
    for row in rows:
        row.pop("COORDINATOR (ID)", None)
    return sorted(rows, key=lambda row: list(row.values()))


def tool_answers(life: Life) -> dict[str, Any]:
    """What Kafka's own tools of that release print."""
    at = ["--bootstrap-server", life.bootstrap]
    asked = {
        "list": ["--list", "--state", "--type"],
        "offsets": ["--describe", "--all-groups", "--offsets"],
        "members": ["--describe", "--all-groups", "--members", "--verbose"],
        "state": ["--describe", "--all-groups", "--state"],
    }
    found: dict[str, Any] = {}
    for name, args in asked.items():
        told = tools.run(tools.GROUPS, *at, *args, release=life.release)
        assert told.code == 0, told
        found[name] = table(told.out)
        assert found[name], told
    for name, when in (("first_offsets", "-2"), ("end_offsets", "-1")):
        told = tools.run(
            tools.GET_OFFSETS, *at, "--time", when, "--exclude-internal-topics", release=life.release
        )
        assert told.code == 0, told
        found[name] = sorted(told.lines)
    return found


def client_answers(life: Life, groups: list[str]) -> dict[str, Any]:
    """What admin clients and consumers receive."""
    wait_until("the coordinator to load its groups", lambda: is_loaded(life, groups))
    return {
        "described": {group: life.describe(group) for group in groups},
        "committed": {group: life.committed(group) for group in groups},
        "ends": broker_reading.ends(life),
    }


def is_loaded(life: Life, groups: list[str]) -> bool:
    try:
        for future in life.admin.describe_consumer_groups(groups).values():
            future.result(20)
    except KafkaException as e:
        if e.args[0].code() not in PASSING:
            raise
        return False
    return True


def ask(data: Path, settings: Mapping[str, str], release: str) -> dict[str, Any]:
    """All answers about `data`, which stays as it is."""
    home = Path(tempfile.mkdtemp(prefix="kcoord-asked-"))
    try:
        shutil.copytree(data, home / "data")
        with RealBroker(settings, data=home / "data", release=release) as broker:
            life = Life(release)
            life.use(broker.bootstrap)
            tool = tool_answers(life)
            return {"tool": tool, **client_answers(life, sorted(row["GROUP"] for row in tool["list"]))}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def store(target: Path, data: Path, answers: str) -> None:
    """Replaces one data set: its logs as an archive, the dump of coordinators' logs, and the answers."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "answers.json").write_text(answers, encoding="utf-8")
    for path in sorted(data.iterdir()):
        if path.name.startswith(DUMPED) and re.fullmatch(r".+-\d+", path.name):
            write_lines(target / "dump" / f"{path.name}.jsonl.gz", dump(path, (".log",)))
    with tarfile.open(target / "logs.tar.gz", "w:gz", compresslevel=9) as archive:
        for path in sorted(data.rglob("*")):
            archive.add(path, path.relative_to(data).as_posix(), recursive=False, filter=plain)


def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what says who made it."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry
