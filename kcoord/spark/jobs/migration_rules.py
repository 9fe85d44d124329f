"""Rules of a migration for groups and topics. A small TOML or JSON file, checked as a whole.

    unmatched = "keep"              # groups that no rule matches: keep (default) or drop

    [[cluster]]                     # logs that are copies of one cluster's, one per broker
    name = "east"
    logs = "east/.*"

    [[group]]
    match = "test-.*"               # the whole name
    drop = true

    [[group]]
    match = "(.*)-v1"
    cluster = "east"                # only there
    rename = '\\1'                    # as in Python: \\1 and \\g<name> are what matched

    [[topic]]
    match = "orders"
    rename = "shop.orders"

    [[conflict]]                    # two sources with one name after renaming
    match = "billing"               # the new name
    winner = "east"                 # the cluster whose group it is to be; or "newest", by the last commit

Of each kind the first rule that matches counts.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

NEWEST: Final = "newest"
KEEP: Final = "keep"
DROP: Final = "drop"
SECTIONS: Final = {
    "cluster": ("name", "logs"),
    "group": ("match", "cluster", "rename", "drop"),
    "topic": ("match", "cluster", "rename", "drop"),
    "conflict": ("match", "winner"),
}
# Kafka's limit for names of topics; a group's name is a string of the protocol.
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
GROUP_BYTES_MAX: Final = 0x7FFF


class BadRules(ValueError):
    """Invalid rules; the message names them, and what they may be."""


@dataclass(frozen=True)
class NameRule:
    """`number` counts from 1 in its section. A rule without `rename` keeps the name, unless it drops."""

    number: int
    match: re.Pattern[str]
    cluster: re.Pattern[str] | None
    rename: str | None
    drops: bool


@dataclass(frozen=True)
class ConflictRule:
    number: int
    match: re.Pattern[str]
    winner: str


@dataclass(frozen=True)
class Verdict:
    """What becomes of a name: `name` is the new one, None if it is dropped; `why` names the rule. `problem`: what is
    wrong with the new name, or ""."""

    name: str | None
    why: str
    problem: str = ""


@dataclass(frozen=True)
class Rules:
    clusters: tuple[tuple[str, re.Pattern[str]], ...] = ()
    groups: tuple[NameRule, ...] = ()
    topics: tuple[NameRule, ...] = ()
    conflicts: tuple[ConflictRule, ...] = ()
    drops_unmatched: bool = False

    def cluster_of(self, log: str) -> str:
        """The cluster that a log is of: the first that matches, else one of its own, named like it."""
        for name, logs in self.clusters:
            if logs.fullmatch(log):
                return name
        return log

    def group(self, cluster: str, group_id: str) -> Verdict:
        verdict = _apply(self.groups, "group", cluster, group_id)
        if verdict is not None:
            size = len((verdict.name or "").encode("utf-8", "replace"))
            if verdict.name is not None and not 0 < size <= GROUP_BYTES_MAX:
                return Verdict(group_id, verdict.why, f"{verdict.why}: the new name has {size} bytes")
            return verdict
        return Verdict(None, "no rule matches") if self.drops_unmatched else Verdict(group_id, "")

    def topic(self, cluster: str, topic: str) -> Verdict:
        verdict = _apply(self.topics, "topic", cluster, topic) or Verdict(topic, "")
        if verdict.name is not None and verdict.name != topic and TOPIC_NAME.fullmatch(verdict.name) is None:
            problem = f"{verdict.why}: {verdict.name[:100]!r} is not a topic name"
            return Verdict(topic, verdict.why, problem)
        return verdict

    def winner(self, new_group: str) -> ConflictRule | None:
        for rule in self.conflicts:
            if rule.match.fullmatch(new_group):
                return rule
        return None


def _apply(rules: tuple[NameRule, ...], kind: str, cluster: str, name: str) -> Verdict | None:
    for rule in rules:
        if rule.cluster is not None and rule.cluster.fullmatch(cluster) is None:
            continue
        match = rule.match.fullmatch(name)
        if match is None:
            continue
        why = f"{kind} rule {rule.number}"
        if rule.drops:
            return Verdict(None, why)
        return Verdict(name if rule.rename is None else match.expand(rule.rename), why)
    return None


# --- reading


def load_rules(path: str) -> Rules:
    """From a `.toml` or `.json` file. Raises BadRules and OSError."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode("utf-8")
        document = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise BadRules(f"{path}: {error}") from None
    try:
        return parse_rules(document)
    except BadRules as error:
        raise BadRules(f"{path}: {error}") from None


def parse_rules(document: Any) -> Rules:
    """Raises BadRules."""
    if not isinstance(document, dict):
        raise BadRules("rules are a table with unmatched, cluster, group, topic and conflict")
    for name in document:
        if name != "unmatched" and name not in SECTIONS:
            raise BadRules(f"there is no {name}; there are unmatched, {', '.join(SECTIONS)}")
    unmatched = document.get("unmatched", KEEP)
    if unmatched not in (KEEP, DROP):
        raise BadRules(f"unmatched is keep or drop, not {unmatched!r}")
    clusters = []
    for where, entry in _entries(document, "cluster"):
        clusters.append((_text(entry, "name", where), _pattern(entry, "logs", where)))
    conflicts = []
    for number, (where, entry) in enumerate(_entries(document, "conflict"), 1):
        conflicts.append(ConflictRule(number, _pattern(entry, "match", where), _text(entry, "winner", where)))
    return Rules(
        tuple(clusters),
        _name_rules(document, "group"),
        _name_rules(document, "topic"),
        tuple(conflicts),
        unmatched == DROP,
    )


def _entries(document: Mapping[str, Any], section: str) -> list[tuple[str, Mapping[str, Any]]]:
    entries = document.get(section, [])
    if not isinstance(entries, list):
        raise BadRules(f"{section} is a list of tables: [[{section}]]")
    found: list[tuple[str, Mapping[str, Any]]] = []
    for number, entry in enumerate(entries, 1):
        where = f"{section} rule {number}"
        if not isinstance(entry, dict):
            raise BadRules(f"{where} is not a table")
        for name in entry:
            if name not in SECTIONS[section]:
                raise BadRules(f"{where} has no {name}; there are {', '.join(SECTIONS[section])}")
        found.append((where, entry))
    return found


def _name_rules(document: Mapping[str, Any], section: str) -> tuple[NameRule, ...]:
    rules = []
    for number, (where, entry) in enumerate(_entries(document, section), 1):
        match = _pattern(entry, "match", where)
        cluster = _pattern(entry, "cluster", where) if "cluster" in entry else None
        rename = _text(entry, "rename", where) if "rename" in entry else None
        drops = entry.get("drop", False)
        if not isinstance(drops, bool):
            raise BadRules(f"{where}: drop is true or false, not {drops!r}")
        if drops and rename is not None:
            raise BadRules(f"{where} has both rename and drop")
        if rename is not None:
            _check_template(match, rename, where)
        rules.append(NameRule(number, match, cluster, rename, drops))
    return tuple(rules)


def _check_template(match: re.Pattern[str], rename: str, where: str) -> None:
    try:
        match.sub(rename, "")
    except (re.error, IndexError) as error:
        raise BadRules(f"{where}: rename {rename!r}: {error}") from None


def _pattern(entry: Mapping[str, Any], name: str, where: str) -> re.Pattern[str]:
    text = _text(entry, name, where)
    try:
        return re.compile(text)
    except re.error as error:
        raise BadRules(f"{where}: {name} {text!r}: {error}") from None


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise BadRules(f"{where} needs {name}, a text")
    return value
