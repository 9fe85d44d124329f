"""Nullable tagged fields of a broker's records: null is written out, and where one is left out it is empty.

Kafka's definitions give these fields `"default": null`, which its generator takes for the empty value. The records have
bytes that Kafka's Java codec wrote. Spark's tables show what a broker would read, and an import keeps the bytes. How
kcoord's own older directories are read, by another rule, is in test_format_1.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcoord.log.reader import StoredBatch, read_batches
from tests.golden.test_golden import golden
from tests.harness import schema_json
from tests.unit.cli.rig import run, run_json
from tests.unit.cli.test_log_import import OFFSETS, Broker
from tests.unit.spark.log_rig import rows

GROUP = "g"
STEMS = (
    "ConsumerGroupMemberMetadata",
    "ConsumerGroupCurrentMemberAssignment",
    "StreamsGroupMetadata",
    "StreamsGroupCurrentMemberAssignment",
)
FIELDS = ("classicMemberMetadata", "assignmentEpochs", "lastAssignmentConfigs")
STATES = ("null", "empty", "absent")


def samples(stem: str) -> list[tuple[str, dict[str, Any], bytes]]:
    """(`null of FIELD` and so on, JSON as Kafka reads it, bytes as Kafka writes them) of a value."""
    return [
        (style, content, bytes(2) + body)
        for version, style, content, body in golden()[f"{stem}Value"]
        if version == 0 and " of " in style and style.lower().endswith(tuple(field.lower() for field in FIELDS))
    ]


def key_of(stem: str, member: str) -> bytes:
    """The key of a record of `GROUP`; compact strings do not exist in keys."""
    kind = schema_json.module_of(f"{stem}Key").RECORD_TYPE
    fields = [GROUP] if stem == "StreamsGroupMetadata" else [GROUP, member]
    words = [len(field).to_bytes(2, "big") + field.encode() for field in fields]
    return b"".join([int(kind).to_bytes(2, "big"), *words])


@pytest.fixture(params=STEMS)
def stem(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(stem: str, tmp_path: Path) -> Path:
    """A broker's directory with one record for each sample, in order; each is of another member."""
    broker = Broker(tmp_path / "broker", partitions=1)
    broker.metadata()
    pairs: list[tuple[bytes | None, bytes | None]] = [
        (key_of(stem, f"m{number}"), body) for number, (_, _, body) in enumerate(samples(stem))
    ]
    broker.write(OFFSETS, 0, pairs)
    broker.close()
    return tmp_path / "broker"


def test_null_differs_from_the_others(stem: str) -> None:
    bodies = {style: body for style, _, body in samples(stem)}
    fields = {style.partition(" of ")[2] for style in bodies}
    assert fields and len(bodies) == len(STATES) * len(fields)
    for field in fields:
        null, empty, absent = (bodies[f"{state} of {field}"] for state in STATES)
        assert null != empty == absent


def holds(shown: Any, expected: Any) -> bool:
    """Whether all that `told` says is in `shown`, which names fields too that Kafka leaves out."""
    if isinstance(expected, dict):
        return all(name in shown and holds(shown[name], item) for name, item in expected.items())
    if isinstance(expected, list):
        return len(shown) == len(expected) and all(
            holds(one, other) for one, other in zip(shown, expected, strict=True)
        )
    return bool(shown == expected)


def test_records_show_what_a_broker_reads(stem: str, data: Path) -> None:
    found = [row for row in rows(data, "records") if row["log_topic"] == OFFSETS]
    for row, (style, content, body) in zip(found, samples(stem), strict=True):
        assert row["value"] == body
        shown = json.loads(row["value_json"])
        assert holds(shown, content), (style, shown)
        # What is left out is empty: in a sample of null the one field is null, in others none.
        nulls = [field for field in FIELDS if f'"{field[0].lower()}{field[1:]}":null' in row["value_json"]]
        assert len(nulls) == style.startswith("null of"), (style, shown)
    assert rows(data, "_corrupt") == []


def test_sessions_of_members(tmp_path: Path) -> None:
    """Empty is a member of the classic protocol with a session of 0 ms, null one of the new protocol."""
    broker = Broker(tmp_path / "broker", partitions=1)
    broker.metadata()
    kinds = samples("ConsumerGroupMemberMetadata")
    broker.write(OFFSETS, 0, [(key_of("ConsumerGroupMemberMetadata", style), body) for style, _, body in kinds])
    broker.close()
    sessions = {row["member_id"]: row["session_timeout_ms"] for row in rows(tmp_path / "broker", "members")}
    assert sessions == {style: None if style.startswith("null") else 0 for style, _, _ in kinds}


def test_an_import_keeps_the_bytes(stem: str, data: Path, tmp_path: Path) -> None:
    done = run("import", data, "--data", tmp_path / "new")
    assert done.exit_code == 0, done.output
    kept = []
    for batch in read_batches(str(tmp_path / "new" / f"{OFFSETS}-0")):
        assert isinstance(batch, StoredBatch)
        kept += [(record.key, record.value) for record in batch.records(1 << 20)]
    newest = {key_of(stem, f"m{number}"): body for number, (_, _, body) in enumerate(samples(stem))}
    assert dict(kept) == newest
    assert "kcoord.format=2\n" in (tmp_path / "new" / "meta.properties").read_text()
    if stem == "ConsumerGroupMemberMetadata":
        [group] = run_json("state", tmp_path / "new")["other_groups"]
        is_null = [member["classic_member_metadata"] is None for member in group["members"]]
        assert is_null == [style.startswith("null") for style, _, _ in samples(stem)]
