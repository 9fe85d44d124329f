"""`kcoord log state`: groups, members, generations and offsets at a point of the log."""

from __future__ import annotations

from typing import Any, Final

import click

from kcoord.cli.log.common import (
    directory_argument,
    emit_json,
    emit_rows,
    exit_if,
    note,
    plural,
    progress,
    say,
    table,
    wrapped,
)
from kcoord.cli.log.past.options import open_past, past_options
from kcoord.cli.log.past.plain_state import (
    ends_text,
    group_ids,
    group_plain,
    other_ids,
    other_plain,
    topics_plain,
)
from kcoord.cli.log.past.replay import PastState, replay_until
from kcoord.cli.log.past.typed_groups import group_text, member_text
from kcoord.cli.log.points import Point, parse_point
from kcoord.cli.log.records import assignment_text

# The columns of CSV: one line for each committed offset.
FIELDS: Final = (
    "group", "topic", "partition", "offset", "leader_epoch", "metadata", "commit_timestamp", "commit_timestamp_ms",
    "expire_timestamp_ms", "record_offset",
)  # fmt: skip


def print_group(past: PastState, group_id: str) -> None:
    document = group_plain(past.core, group_id)
    group = past.core.groups.get(group_id)
    value = None if group is None else group.value
    if value is None:
        head = f"{group_id}: offsets only"
    else:
        head = f"{group_id}: {document['state']}, generation {value.generation}"
        head += f", {value.protocol_type}" if value.protocol_type else ""
        head += f", {value.protocol}" if value.protocol else ""
        head += f", since {document['state_timestamp']}" if document["state_timestamp"] else ""
    say(head, 4, 0)
    for member in value.members if value is not None else []:
        text = f"member {member.member_id}"
        if member.group_instance_id is not None:
            text += f" ({member.group_instance_id})"
        text += f" of {member.client_id} at {member.client_host}"
        if value is not None and member.member_id == value.leader:
            text += ", leads"
        text += f", assigned {assignment_text(member.assignment)}"
        say(text, 4, 2)
    print_offsets(document["offsets"])


def print_offsets(offsets: list[dict[str, Any]]) -> None:
    if not offsets:
        return
    rows = []
    details: list[list[str]] = []
    for row in offsets:
        rows.append([f"  {row['topic']}", str(row["partition"]), str(row["offset"]), row["commit_timestamp"] or "-"])
        details.append(wrapped(f"metadata: {row['metadata']}", 6, 4) if row["metadata"] else [])
    head = ["  TOPIC", "PARTITION", "OFFSET", "COMMITTED"]
    click.echo("\n".join(table(head, rows, "lrrl", details)))


def print_other(document: dict[str, Any]) -> None:
    say(group_text(document), 4, 0)
    for member in document["members"]:
        say(member_text(member), 4, 2)
    for expression in document.get("regular_expressions", []):
        topics = " ".join(expression["topics"]) or "nothing"
        say(f"/{expression['regular_expression']}/ matches {topics}", 4, 2)
    print_offsets(document["offsets"])


@click.command()
@directory_argument
@click.option("--as-of", "point", type=parse_point, default="end", metavar="POINT", help="OFFSET, TIME or end.")
@past_options
def state(
    directory: str, point: Point, groups: tuple[str, ...], partition: int, inexact: bool, unsynced: bool,
    output: str,
) -> None:  # fmt: skip
    """Show the coordinator's state at any point that the log in DIR still holds.

    Shows groups, members, generations, assignments and committed offsets, by the same replay of the log as in the
    server. The phase of a rebalance is not in the log: a classic group shows the last stored generation. For consumer,
    share and streams groups it shows their records: epochs, members, assignments and targets.

    A state checkpoint before the point shortens the reading.

    \b
    POINT is  end               the end of the log (the default)
              1234              before the record at offset 1234 of the
                                coordinator's log (`log dump` shows them)
              2026-01-31T12:00  up to that time; UTC unless it has a zone
              15m, @UNIX_MS     see `log dump --help`

    \b
    Examples:
      kcoord log state data --as-of 1d --group billing
      kcoord log state data -o json | jq '.groups[] | {group, generation}'
    """
    found, logs = open_past(directory, unsynced, groups, partition, [point])
    with progress("Replaying", sum(files.size_bytes for files in logs)) as step:
        past = replay_until(found, logs, point, inexact, step)
    ids = group_ids(past, groups)
    others = [other_plain(past, group) for group in other_ids(past, groups)]
    for group in groups:
        if group not in ids and group not in past.typed.groups:
            note(f"group {group} did not exist")
    if output == "json":
        emit_json(
            {
                "as_of": point.text,
                "logs": [end.plain() for end in past.ends],
                "topics": topics_plain(past.core),
                "groups": [group_plain(past.core, group) for group in ids],
                "other_groups": others,
            }
        )
    elif output == "csv":
        groups_found = [*(group_plain(past.core, group) for group in ids), *others]
        rows = [{"group": one["group"], **offset} for one in groups_found for offset in one["offsets"]]
        emit_rows(FIELDS, rows)
    else:
        say(ends_text(past), 2, 0)
        for group in ids:
            click.echo()
            print_group(past, group)
        for other in others:
            click.echo()
            print_other(other)
        click.echo()
        click.echo(plural(len(ids) + len(others), "group"))
    exit_if(bool(groups) and not ids and not others)
