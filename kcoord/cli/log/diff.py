"""`kcoord log diff`: what changed between two points of the log."""

from __future__ import annotations

from typing import Any, Final

import click

from kcoord.cli.log.common import (
    EXIT_PROBLEMS,
    directory_argument,
    emit_json,
    friendly,
    look_at,
    output_option,
    plural,
    progress,
    table,
    unsynced_option,
    wrapped,
)
from kcoord.cli.log.points import Point, parse_point
from kcoord.cli.log.replay import (
    PastState,
    coordinator_logs,
    ends_text,
    group_ids,
    group_plain,
    replay_until,
)

APPEARED: Final = "appeared"
WENT: Final = "went"
CHANGED: Final = "changed"
MOVED: Final = "moved"
REWOUND: Final = "rewound"
# What is compared of a group itself.
FIELDS: Final = ("state", "protocol_type", "protocol", "generation", "leader")

Offsets = dict[tuple[str, int], dict[str, Any]]


def diff_states(old: PastState, new: PastState, groups: tuple[str, ...]) -> list[dict[str, Any]]:
    """The groups that differ, in order of id."""
    found: list[dict[str, Any]] = []
    before, after = set(group_ids(old.core, groups)), set(group_ids(new.core, groups))
    for group in sorted(before | after):
        a = group_plain(old.core, group) if group in before else None
        b = group_plain(new.core, group) if group in after else None
        changes = diff_group(group, a, b)
        if changes is not None:
            found.append(changes)
    return found


def diff_group(group: str, a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, Any] | None:
    """How a group went from `a` to `b`, where None is that there is no such group; None if it did not change."""
    old_members, new_members = _members(a), _members(b)
    offsets = diff_offsets(_offsets(a), _offsets(b))
    fields = {
        name: {"from": a[name], "to": b[name]} for name in FIELDS if a and b and a[name] != b[name]
    }
    joined = sorted(set(new_members) - set(old_members))
    left = sorted(set(old_members) - set(new_members))
    reassigned = sorted(
        member
        for member in set(old_members) & set(new_members)
        if old_members[member]["assignment"] != new_members[member]["assignment"]
    )
    kind = CHANGED
    if a is None or b is None:
        kind = APPEARED if a is None else WENT
    elif not (fields or joined or left or reassigned or offsets):
        return None
    return {
        "group": group,
        "change": kind,
        "fields": fields,
        "members_joined": joined,
        "members_left": left,
        "members_reassigned": reassigned,
        "offsets": offsets,
    }


def diff_offsets(old: Offsets, new: Offsets) -> list[dict[str, Any]]:
    """Every committed offset that is not as it was; `by` is how far it moved, negative for a rewind."""
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
        found.append(
            {"topic": key[0], "partition": key[1], "change": kind, "from": at, "to": to, "by": by}
        )
    return found


def _members(group: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    return {} if group is None else {member["member_id"]: member for member in group["members"]}


def _offsets(group: dict[str, Any] | None) -> Offsets:
    return {} if group is None else {(row["topic"], row["partition"]): row for row in group["offsets"]}


def print_group(changes: dict[str, Any]) -> None:
    click.echo("\n".join(wrapped(f"{changes['group']}: {changes['change']}", 4, 0)))
    for name, field in changes["fields"].items():
        text = f"{name.replace('_', ' ')} {_text(field['from'])} -> {_text(field['to'])}"
        click.echo("\n".join(wrapped(text, 4, 2)))
    for what in ("joined", "left", "reassigned"):
        for member in changes[f"members_{what}"]:
            click.echo("\n".join(wrapped(f"member {member} {what}", 4, 2)))
    if not changes["offsets"]:
        return
    rows = []
    for row in changes["offsets"]:
        by = "" if row["by"] is None else f"{row['by']:+d}"
        change = row["change"].upper() if row["change"] == REWOUND else row["change"]
        rows.append([f"  {row['topic']}", str(row["partition"]), _text(row["from"]), _text(row["to"]), by, change])
    click.echo("\n".join(table(["  TOPIC", "PARTITION", "FROM", "TO", "BY", "CHANGE"], rows, "lrrrrl")))


def _text(value: Any) -> str:
    return "-" if value is None or value == "" else str(value)


@click.command()
@directory_argument
@click.argument("a", type=parse_point)
@click.argument("b", type=parse_point, default="end")
@click.option("--group", "-g", "groups", multiple=True, metavar="ID", help="Only this group; repeatable.")
@click.option("--partition", "-p", default=-1, metavar="N", help="Only groups in this partition of the log.")
@click.option("--rewinds", is_flag=True, help="Only groups with offsets that went back.")
@click.option("--inexact", is_flag=True, help="Also where compaction has removed part of the history.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 where there are differences.")
@unsynced_option
@output_option
@friendly
def diff(
    directory: str, a: Point, b: Point, groups: tuple[str, ...], partition: int, rewinds: bool, inexact: bool,
    exit_code: bool, unsynced: bool, output: str,
) -> None:  # fmt: skip
    """Show what changed in DIR from point A to point B (default: end).

    Groups and offsets that appeared, moved (by how much; rewinds stand out) and went, members that joined, left or
    got other partitions. Points are those of `log state`: an offset, a time or end.

    \b
    Examples:
      kcoord log diff data 1d
      kcoord log diff data 2026-01-31T12:00 2026-01-31T13:00 -g billing
      kcoord log diff data 1h --rewinds --exit-code
      kcoord log diff data 1200 1300 -o json |
        jq '.groups[].offsets[] | select(.change == "rewound")'
    """
    found = look_at(directory, unsynced)
    logs = coordinator_logs(found, groups[0] if len(groups) == 1 else "", partition)
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
    else:
        for label, past in (("from", old), ("to", new)):
            click.echo("\n".join(wrapped(f"{label:<4} {ends_text(past)}", 5, 0)))
        for group in changes:
            click.echo()
            print_group(group)
        click.echo()
        click.echo(f"{plural(len(changes), 'group')} changed")
    if changes and exit_code:
        click.get_current_context().exit(EXIT_PROBLEMS)
