"""Records of groups for tests that go through a log batch by batch: made by hand, or taken from a recorded broker."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from kcoord.core.config import CoreConfig
from kcoord.core.coordinator import Core
from kcoord.core.outcome import OFFSETS_TOPIC, LogId
from kcoord.history.invariants import GroupInvariants, Violation
from kcoord.protocol.records.partition_record import PartitionRecord
from kcoord.protocol.records.topic_record import TopicRecord
from kcoord.wire.message import Message
from tests.harness import schema_json

LOG = LogId(OFFSETS_TOPIC, 0)
Pair = tuple[Message, Message | None]
# A batch that is left of a log: its end offset, and (offset, key, value) of what is left of its records.
Left = tuple[int, list[tuple[int, Message, Message | None]]]


def offsets_core() -> Core:
    """A core that knows of one partition of `__consumer_offsets` and of no topic else."""
    core = Core(CoreConfig())
    core.replay(core.metadata_log, 0, None, TopicRecord(OFFSETS_TOPIC, b"o" * 16))
    core.replay(core.metadata_log, 1, None, PartitionRecord(0, b"o" * 16))
    return core


def whole(batches: list[list[Pair]]) -> list[Left]:
    """Offsets for a log from which nothing is gone."""
    left: list[Left] = []
    offset = 0
    for batch in batches:
        records = [(offset + index, key, value) for index, (key, value) in enumerate(batch)]
        offset += len(batch)
        left.append((offset, records))
    return left


def compacted(log: list[Left], upto: int, rng: random.Random | None = None) -> list[Left]:
    """The log as the cleaner may leave it that came as far as `upto`: the last record of every key below it, and
    with `rng` some of those before that, since older ones go first and a crash may come in between; tombstones with
    nothing before them may be gone or not."""
    below: dict[str, list[int]] = {}
    for _, records in log:
        for offset, key, _ in records:
            if offset < upto:
                below.setdefault(repr(key), []).append(offset)
    first = {name: offsets[-1] if rng is None else rng.choice(offsets) for name, offsets in below.items()}
    seen: dict[str, bool] = {}
    left: list[Left] = []
    for end, records in log:
        kept = []
        for offset, key, value in records:
            name = repr(key)
            if offset < first.get(name, 0):
                continue
            if offset < upto and value is None and name not in seen and (rng is None or rng.random() < 0.5):
                continue
            seen[name] = True
            kept.append((offset, key, value))
        if kept:
            left.append((end, kept))
    return left


def check(log: list[Left], expect: int = 0, core: Core | None = None) -> list[Violation]:
    """What the rules find in it, if states are known from `expect` on."""
    rules = GroupInvariants(offsets_core() if core is None else core)
    rules.expect(LOG, expect)
    found: list[Violation] = []
    for end, records in log:
        for offset, key, value in records:
            found += rules.replay(LOG, offset, key, value)
        found += rules.end_batch(LOG, end)
    return found + rules.end_log(LOG)


def recorded_pairs(batches: list[dict[str, Any]]) -> list[list[Pair]]:
    """The batches of a recording of consumer groups (tests/golden/consumer) as records. What was random in them, and
    stands there as a symbol, is made up; classic members are left without their assignment."""
    made: list[list[Pair]] = []
    for batch in batches:
        pairs: list[Pair] = []
        for record in batch["records"]:
            name = record["type"]
            key = schema_json.build(f"{name}Key", 0, _plain("", record["key"]))
            value = record["value"]
            if value is not None:
                value = schema_json.build(f"{name}Value", record["version"], _plain("", value))
            pairs.append((key, value))
        made.append(pairs)
    return made


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return "" if name == "assignment" else {key: _plain(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(name, item) for item in value]
    if isinstance(value, str) and value.startswith("<"):
        if value.startswith("<id of "):
            return schema_json.uuid_text(hashlib.sha256(value.encode()).digest()[:16])
        if value.startswith("<hash "):
            return int(value[6:-1])
        if value in ("<now>", "<metadata offset>"):
            return 1
    return value
