"""Readable lines for replies, records, facts and timers.

Only what differs from a field's default is printed. Member ids end in a counter instead of a UUID, and times in
records are told from the start of the scenario, so that a file says what matters and nothing else.
"""

from __future__ import annotations

import re

from kcoord.core.cause import NO_TIME, Cause
from kcoord.core.outcome import (
    DEBUG,
    ERROR,
    INFO,
    TIMER_CONSUMER_JOIN,
    TIMER_CONSUMER_REBALANCE,
    TIMER_CONSUMER_SYNC,
    TIMER_INITIAL_REBALANCE,
    TIMER_OFFSET_EXPIRY,
    TIMER_PENDING_MEMBER,
    TIMER_REBALANCE,
    TIMER_SESSION,
    TIMER_SYNC,
    WARNING,
    Fact,
    Timer,
)
from kcoord.protocol.errors import ERROR_NAMES
from kcoord.wire.message import Message
from tests.scenarios.embedded import embedded_assignment, embedded_subscription

START_WALL_MS = 1_600_000_000_000
LEVEL_NAMES = {DEBUG: "DEBUG", INFO: "INFO", WARNING: "WARNING", ERROR: "ERROR"}
TIMER_NAMES = {
    TIMER_SESSION: "session",
    TIMER_REBALANCE: "rebalance",
    TIMER_SYNC: "sync",
    TIMER_PENDING_MEMBER: "pending-member",
    TIMER_INITIAL_REBALANCE: "initial-rebalance",
    TIMER_OFFSET_EXPIRY: "offset-expiry",
    TIMER_CONSUMER_REBALANCE: "consumer-rebalance",
    TIMER_CONSUMER_JOIN: "consumer-join",
    TIMER_CONSUMER_SYNC: "consumer-sync",
}
# UUIDs in hexadecimal, and in base64 as Kafka writes them (a scenario makes small ones).
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|A{16}[\w-]{6}")
_SUBSCRIPTIONS = ("metadata", "subscription", "member_metadata")
_ASSIGNMENTS = ("assignment", "member_assignment")
# Said even if it is the default: a partition without its number says nothing.
_ALWAYS = ("partition_index",)
# The same in every scenario, and what hangs on how many records the metadata log begins with.
_NEVER = ("client_host", "version")
# Left out where a field has this value, which is not its default: members of the new protocol are the rule.
_USUAL = {"classic_member_metadata": None}
_PLAIN = re.compile(r"[\w.#:/+-]+")


class Printer:
    def __init__(self) -> None:
        self.short: dict[str, str] = {}
        self.full: dict[str, str] = {}
        self.hashes: dict[int, int] = {}
        # The ids of topics by name, and how they are printed.
        self.topic_ids: dict[str, bytes] = {}
        self.topic_names: dict[bytes, str] = {}

    def add_topic(self, name: str, topic_id: bytes) -> None:
        again = "" if name not in self.topic_ids else "'"
        self.topic_names[topic_id] = f"<{name}{again}>"
        self.topic_ids[name] = topic_id

    def shorten(self, text: str) -> str:
        """UUIDs become #1, #2, ... in order of appearance."""
        return _UUID.sub(self._number, text)

    def _number(self, match: re.Match[str]) -> str:
        uuid = match.group()
        if uuid not in self.short:
            self.short[uuid] = f"#{len(self.short) + 1}"
            self.full[self.short[uuid]] = uuid
        return self.short[uuid]

    def lengthen(self, text: str) -> str:
        """The member id that a script calls `a-#1`."""
        head, mark, number = text.rpartition("#")
        uuid = self.full.get("#" + number) if mark else None
        return text if uuid is None else head + uuid

    def value(self, name: str, value: object) -> str:
        if "timestamp" in name and isinstance(value, int) and value >= START_WALL_MS:
            return f"t+{duration(value - START_WALL_MS)}"
        if name == "metadata_hash" and isinstance(value, int) and value:
            # It hangs on the ids of topics. Numbers by appearance still tell which ones are the same.
            return f"#{self.hashes.setdefault(value, len(self.hashes) + 1)}"
        if name.endswith("error_code") and isinstance(value, int):
            return "NONE" if value == 0 else ERROR_NAMES.get(value, str(value))
        if isinstance(value, bytes):
            embedded = None
            if name in _SUBSCRIPTIONS:
                embedded = embedded_subscription(value)
            elif name in _ASSIGNMENTS:
                embedded = embedded_assignment(value)
            return self.topic_names.get(value, value.hex()) if embedded is None else f"<{embedded}>"
        if isinstance(value, str):
            text = self.shorten(value)
            return text if _PLAIN.fullmatch(text) else repr(text)
        if isinstance(value, list):
            return "[" + ", ".join(self.value("", item) for item in value) + "]"
        if isinstance(value, Message):
            return "{" + " ".join(self.fields(value)) + "}"
        return str(value)

    def fields(self, message: Message) -> list[str]:
        default = type(message)()
        parts = []
        for name in message.FIELDS:
            value = getattr(message, name)
            usual = _USUAL[name] if name in _USUAL else getattr(default, name)
            if name not in _NEVER and (name in _ALWAYS or value != usual):
                parts.append(f"{name}={self.value(name, value)}")
        return parts

    def reply(self, who: str, response: Message) -> str:
        name = type(response).__name__.removesuffix("Response")
        parts = self.fields(response)
        return " ".join([f"reply {who}: {name}", *parts])

    def record(self, place: str, key: Message | None, value: Message | None, cause: Cause | None = None) -> str:
        named = key if key is not None else value
        assert named is not None
        name = type(named).__name__.removesuffix("Key")
        keys = ", ".join(self.value("", getattr(key, field)) for field in key.FIELDS) if key is not None else ""
        body = ["tombstone"] if value is None else self.fields(value)
        return " ".join([f"record {place} {name}({keys})", *body, *self.cause(cause)])

    def cause(self, cause: Cause | None) -> list[str]:
        """Why, as the record's header says it."""
        if cause is None:
            return []
        parts = [self.value("", cause.kind)]
        if cause.member_id:
            parts.append(self.value("", cause.member_id))
        if cause.since_ms != NO_TIME:
            parts.append(f"since {self.value('timestamp', cause.since_ms)}")
        if cause.detail:
            parts.append(self.value("", cause.detail))
        return [f"cause=<{' '.join(parts)}>"]

    def fact(self, fact: Fact) -> str:
        level = LEVEL_NAMES[fact.level]
        fields = [f"{name}={self.value(name, value)}" for name, value in fact.fields.items()]
        return " ".join([f"fact {level} {fact.event}", *fields])

    def timer(self, timer: Timer, now_ms: int) -> str:
        parts = [f"arm {TIMER_NAMES.get(timer.kind, str(timer.kind))}"]
        parts += [self.shorten(text) for text in (timer.group_id, timer.member_id) if text]
        return " ".join([*parts, f"in {duration(timer.deadline_ms - now_ms)}"])


def duration(ms: int) -> str:
    if ms % 1000:
        return f"{ms}ms"
    seconds = ms // 1000
    if seconds and seconds % 86400 == 0:
        return f"{seconds // 86400}d"
    if seconds and seconds % 3600 == 0:
        return f"{seconds // 3600}h"
    if seconds and seconds % 60 == 0:
        return f"{seconds // 60}m"
    return f"{seconds}s"


def milliseconds(text: str) -> int:
    for unit, factor in (("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)):
        if text.endswith(unit) and text[: -len(unit)].isdigit():
            return int(text[: -len(unit)]) * factor
    raise ValueError(f"{text}: a duration like 10s or 500ms expected")
