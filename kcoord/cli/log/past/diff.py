"""`kcoord log diff`: what changed between two points of the log."""

from __future__ import annotations

from typing import Any, Final

import click

from kcoord.cli.log.common import (
    directory_argument,
    emit_json,
    emit_rows,
    exit_if,
    json_line,
    plural,
    progress,
    say,
    table,
)
from kcoord.cli.log.past.options import open_past, past_options
from kcoord.cli.log.past.plain_state import ends_text, group_ids, group_plain, other_ids, other_plain
from kcoord.cli.log.past.replay import PastState, replay_until
from kcoord.cli.log.points import Point, parse_point

APPEARED: Final = "appeared"
WENT: Final = "went"
CHANGED: Final = "changed"
MOVED: Final = "moved"
REWOUND: Final = "rewound"
CLASSIC: Final = "classic"
# The compared fields of a group: first of a classic group, then of the newer kinds.
FIELDS: Final = (
    "kind", "state", "protocol_type", "protocol", "generation", "leader",
    "epoch", "assignment_epoch", "validated_topology_epoch", "regular_expressions", "share_state", "topology",
)  # fmt: skip
# The compared fields of a member of the newer kinds, besides its assignment and target.
MEMBER_FIELDS: Final = (
    "instance_id", "rack_id", "client_id", "client_host", "subscribed_topic_names", "subscribed_topic_regex",
    "rebalance_timeout_ms", "server_assignor", "classic_member_metadata", "topology_epoch", "process_id",
    "user_endpoint", "client_tags", "member_epoch", "previous_member_epoch", "state",
)  # fmt: skip
CSV_FIELDS: Final = ("group", "what", "name", "change", "from", "to", "by")
ASSIGNMENTS: Final = ("assignment", "target")

Offsets = dict[tuple[str, int], dict[str, Any]]


def diff_states(old: PastState, new: PastState, groups: tuple[str, ...]) -> list[dict[str, Any]]:
    """The groups that differ, in order of id."""
    found: list[dict[str, Any]] = []
    before, after = _documents(old, groups), _documents(new, groups)
    for group in sorted(before.keys() | after.keys()):
        changes = diff_group(group, before.get(group), after.get(group))
        if changes is not None:
            found.append(changes)
    return found


def _documents(past: PastState, groups: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """All groups of a state, of whatever kind."""
    found = {group: other_plain(past, group) for group in other_ids(past, groups)}
    for group in group_ids(past, groups):
        found[group] = {"kind": CLASSIC, **group_plain(past.core, group)}
    return found


def diff_group(group: str, a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, Any] | None:
    """The changes of a group from `a` to `b`; None as an argument means no such group, as a result no change."""
    old_members, new_members = _members(a), _members(b)
    offsets = diff_offsets(_offsets(a), _offsets(b))
    fields: dict[str, dict[str, Any]] = {}
    members_changed: list[dict[str, Any]] = []
    if a is not None and b is not None:
        fields = diff_fields(a, b, FIELDS)
        for member in sorted(set(old_members) & set(new_members)):
            changed = diff_fields(old_members[member], new_members[member], MEMBER_FIELDS)
            if changed and b.get("kind", CLASSIC) != CLASSIC:
                members_changed.append({"member_id": member, "fields": changed})
    joined = sorted(set(new_members) - set(old_members))
    left = sorted(set(old_members) - set(new_members))
    reassigned = sorted(
        member
        for member in set(old_members) & set(new_members)
        if any(old_members[member].get(name) != new_members[member].get(name) for name in ASSIGNMENTS)
    )
    kind = CHANGED
    if a is None or b is None:
        kind = APPEARED if a is None else WENT
    elif not (fields or joined or left or reassigned or members_changed or offsets):
        return None
    return {
        "group": group,
        "kind": (b or a or {}).get("kind", CLASSIC),
        "change": kind,
        "fields": fields,
        "members_joined": joined,
        "members_left": left,
        "members_reassigned": reassigned,
        "members_changed": members_changed,
        "offsets": offsets,
    }


def diff_fields(a: dict[str, Any], b: dict[str, Any], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """The fields that differ; either side may lack some."""
    found = {}
    for name in names:
        if a.get(name) != b.get(name):
            found[name] = {"from": a.get(name), "to": b.get(name)}
    return found


def diff_offsets(old: Offsets, new: Offsets) -> list[dict[str, Any]]:
    """Every committed offset that changed; `by` is the difference, negative for a rewind."""
    found: list[dict[str, Any]] = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        at = None if a is None else a["offset"]
        to = None if b is None else b["offset"]
        by = None
        if at is None or to is None:
            kind = APPEARED if at is None else WENT
        elif at != to:
            by = to - at
            kind = MOVED if by > 0 else REWOUND
        elif a is not None and b is not None and a["metadata"] != b["metadata"]:
            kind = CHANGED
        else:
            continue
        found.append({"topic": key[0], "partition": key[1], "change": kind, "from": at, "to": to, "by": by})
    return found


def _members(group: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {} if group is None else {member["member_id"]: member for member in group["members"]}


def _offsets(group: dict[str, Any] | None) -> Offsets:
    return {} if group is None else {(row["topic"], row["partition"]): row for row in group["offsets"]}


def print_group(changes: dict[str, Any]) -> None:
    kind = f" ({changes['kind']} group)" if changes["kind"] != CLASSIC else ""
    say(f"{changes['group']}{kind}: {changes['change']}", 4, 0)
    for name, field in changes["fields"].items():
        text = f"{name.replace('_', ' ')} {_text(field['from'])} -> {_text(field['to'])}"
        say(text, 4, 2)
    for what in ("joined", "left", "reassigned"):
        for member in changes[f"members_{what}"]:
            say(f"member {member} {what}", 4, 2)
    for changed in changes["members_changed"]:
        for name, field in changed["fields"].items():
            text = f"member {changed['member_id']}: {name.replace('_', ' ')}"
            say(f"{text} {_text(field['from'])} -> {_text(field['to'])}", 4, 2)
    if not changes["offsets"]:
        return
    rows = []
    for row in changes["offsets"]:
        by = "" if row["by"] is None else f"{row['by']:+d}"
        change = row["change"].upper() if row["change"] == REWOUND else row["change"]
        rows.append([f"  {row['topic']}", str(row["partition"]), _text(row["from"]), _text(row["to"]), by, change])
    click.echo("\n".join(table(["  TOPIC", "PARTITION", "FROM", "TO", "BY", "CHANGE"], rows, "lrrrrl")))


def csv_rows(changes: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for the group, for each changed field and member, and for each committed offset."""

    def row(what: str, name: Any, change: str, before: Any = None, after: Any = None, by: Any = None) -> dict[str, Any]:
        values = (changes["group"], what, name, change, before, after, by)
        return dict(zip(CSV_FIELDS, values, strict=True))

    rows = [row("group", None, changes["change"])]
    rows += [row("field", name, CHANGED, one["from"], one["to"]) for name, one in changes["fields"].items()]
    for change in ("joined", "left", "reassigned"):
        rows += [row("member", member, change) for member in changes[f"members_{change}"]]
    for member in changes["members_changed"]:
        for name, one in member["fields"].items():
            rows.append(row("member", member["member_id"], f"{name} {CHANGED}", one["from"], one["to"]))
    for one in changes["offsets"]:
        name = f"{one['topic']}-{one['partition']}"
        rows.append(row("offset", name, one["change"], one["from"], one["to"], one["by"]))
    return rows


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value) or "-"
    if isinstance(value, list | dict):
        return json_line(value)
    return "-" if value is None or value == "" else str(value)


@click.command()
@directory_argument
@click.argument("a", type=parse_point)
@click.argument("b", type=parse_point, default="end")
@click.option("--rewinds", is_flag=True, help="Only groups whose offsets moved back.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there are differences.")
@past_options
def diff(
    directory: str, a: Point, b: Point, groups: tuple[str, ...], partition: int, rewinds: bool, inexact: bool,
    exit_code: bool, unsynced: bool, output: str,
) -> None:  # fmt: skip
    """Show the changes in DIR from point A to point B (default: end).

    Shows groups and offsets that appeared, moved (by how much; rewinds are marked) or disappeared, and members that
    joined, left or got other partitions. Points are those of `log state`: an offset, a time or end.

    \b
    Examples:
      kcoord log diff data 1d
      kcoord log diff data 2026-01-31T12:00 2026-01-31T13:00 -g billing
      kcoord log diff data 1h --rewinds --exit-code
      kcoord log diff data 1200 1300 -o json |
        jq '.groups[].offsets[] | select(.change == "rewound")'
    """
    found, logs = open_past(directory, unsynced, groups, partition, [a, b])
    with progress("Replaying", 2 * sum(files.size_bytes for files in logs)) as step:
        old = replay_until(found, logs, a, inexact, step)
        new = replay_until(found, logs, b, inexact, step)
    changes = diff_states(old, new, groups)
    if rewinds:
        changes = [group for group in changes if any(row["change"] == REWOUND for row in group["offsets"])]
    if output == "json":
        emit_json(
            {
                "from": {"point": a.text, "logs": [end.plain() for end in old.ends]},
                "to": {"point": b.text, "logs": [end.plain() for end in new.ends]},
                "groups": changes,
            }
        )
    elif output == "csv":
        emit_rows(CSV_FIELDS, [row for group in changes for row in csv_rows(group)])
    else:
        for label, past in (("from", old), ("to", new)):
            say(f"{label:<4} {ends_text(past)}", 5, 0)
        for group in changes:
            click.echo()
            print_group(group)
        click.echo()
        click.echo(f"{plural(len(changes), 'group')} changed")
    exit_if(exit_code and bool(changes))
