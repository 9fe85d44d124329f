"""`kcoord groups list`, `describe` and `members`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kcoord.cli.groups.common import TOPICS_HELP, describe_existing, is_meant, names_of, parse_topics
from kcoord.cli.online.run import (
    EXIT_PROBLEMS,
    cluster_options,
    friendly,
    online,
    output_option,
    warn,
    watch_options,
    watching,
)
from kcoord.cli.output import Column, emit

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin
    from kcoord.client.admin.lag import PartitionLag
    from kcoord.client.admin.results import GroupDescription

LIST: Final = [
    Column("group", "GROUP"), Column("type", "TYPE"), Column("state", "STATE"), Column("protocol_type", "PROTOCOL TYPE")
]  # fmt: skip
OFFSETS: Final = [
    Column("group", "GROUP"), Column("topic", "TOPIC"), Column("partition", "PARTITION", True),
    Column("offset", "OFFSET", True), Column("start_offset", "START", True), Column("end_offset", "END", True),
    Column("lag", "LAG", True), Column("lag_seconds", "LAG SECONDS", True), Column("member", "MEMBER"),
    Column("host", "HOST"), Column("client_id", "CLIENT ID"),
]  # fmt: skip
STATES: Final = [
    Column("group", "GROUP"), Column("type", "TYPE"), Column("state", "STATE"), Column("assignor", "ASSIGNOR"),
    Column("epoch", "EPOCH", True), Column("members", "MEMBERS", True), Column("partitions", "PARTITIONS", True),
    Column("lag", "LAG", True), Column("lag_seconds", "LAG SECONDS", True), Column("coordinator", "COORDINATOR"),
]  # fmt: skip
MEMBERS: Final = [
    Column("group", "GROUP"), Column("member", "MEMBER"), Column("instance_id", "INSTANCE ID"),
    Column("host", "HOST"), Column("client_id", "CLIENT ID"), Column("epoch", "EPOCH", True),
    Column("partitions", "PARTITIONS", True), Column("assignment", "ASSIGNMENT"),
]  # fmt: skip


@click.command("list")
@cluster_options
@click.option("--state", "-s", "states", multiple=True, metavar="STATE", help="Only this state: Empty, Stable, ...")
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(["classic", "consumer", "share", "streams"]),
    help="Only this type.",
)
@watch_options
@output_option
@friendly
def list_command(
    bootstrap: str, timeout: float, states: tuple[str, ...], types: tuple[str, ...], watch: float | None,
    times: int | None, output: str,
) -> None:  # fmt: skip
    """List groups with their type and state.

    \b
    Examples:
      kcoord groups list --state Empty
      kcoord groups list --type consumer -o json
    """

    async def find(admin: Admin) -> list[dict[str, Any]]:
        return [
            {"group": one.group_id, "type": one.type, "state": one.state, "protocol_type": one.protocol_type}
            for one in await admin.list_groups([part for text in states for part in text.split(",")], types)
        ]

    watching(watch, times, lambda: emit(LIST, online(bootstrap, timeout, find), output))


@click.command()
@cluster_options
@click.argument("groups", metavar="[GROUP]...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option("--topic", "-t", "topics", multiple=True, metavar="TOPIC[:PARTITIONS]", help=TOPICS_HELP)
@click.option("--assigned", is_flag=True, help="Only partitions that a member owns.")
@click.option(
    "--read-committed", is_flag=True, help="Count lag up to the last stable offset, as read_committed consumers see it."
)
@click.option("--no-time", is_flag=True, help="Leave out the lag in seconds, and read no records.")
@click.option("--state", "is_summary", is_flag=True, help="Print one line per group: state, members, totals.")
@watch_options
@output_option
@friendly
def describe(
    bootstrap: str, timeout: float, groups: tuple[str, ...], all_groups: bool, topics: tuple[str, ...],
    assigned: bool, read_committed: bool, no_time: bool, is_summary: bool, watch: float | None,
    times: int | None, output: str,
) -> None:  # fmt: skip
    """Print the committed offsets and the lag of groups, with the owner of each partition.

    The lag in seconds is the age of the first record that was not read. A group without members is described like all
    others, with a warning on standard error.

    \b
    Examples:
      kcoord groups describe billing
      kcoord groups describe --all-groups --state --watch 5
    """
    wanted = parse_topics(topics)
    is_complete = True

    async def find(admin: Admin) -> tuple[list[GroupDescription], list[PartitionLag]]:
        from kcoord.client.admin.lag import group_lags

        nonlocal is_complete
        described, is_complete = await describe_existing(admin, await names_of(admin, groups, all_groups))
        rows = await group_lags(
            admin, described, assigned_only=assigned, read_committed=read_committed, with_time=not no_time
        )
        return described, [row for row in rows if is_meant(row.partition, wanted)]

    def show() -> None:
        described, rows = online(bootstrap, timeout, find)
        for group in described:
            if not group.members and not all_groups:
                warn(f"group {group.group_id!r} has no active members (state {group.state})")
            if not is_summary and group.group_id not in {row.group_id for row in rows}:
                warn(f"group {group.group_id!r} has no committed offsets" + (" for --topic" if wanted else ""))
        if is_summary:
            emit(STATES, [_summary(group, rows) for group in described], output)
        else:
            emit(OFFSETS, [_offset_row(row) for row in rows], output)

    watching(watch, times, show)
    if not is_complete:
        click.get_current_context().exit(EXIT_PROBLEMS)


def _offset_row(row: PartitionLag) -> dict[str, Any]:
    member = row.member
    return {
        "group": row.group_id,
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "offset": row.committed.offset if row.committed else None,
        "start_offset": row.start,
        "end_offset": row.end,
        "lag": row.lag,
        "lag_seconds": None if row.lag_ms is None else round(row.lag_ms / 1000, 1),
        "member": member.member_id if member else None,
        "host": member.client_host if member else None,
        "client_id": member.client_id if member else None,
    }


def _summary(group: GroupDescription, rows: list[PartitionLag]) -> dict[str, Any]:
    own = [row for row in rows if row.group_id == group.group_id]
    lags = [row.lag for row in own if row.lag is not None]
    ages = [row.lag_ms for row in own if row.lag_ms is not None]
    return {
        "group": group.group_id,
        "type": group.type,
        "state": group.state,
        "assignor": group.assignor,
        "epoch": group.epoch,
        "members": len(group.members),
        "partitions": len(own),
        "lag": sum(lags) if lags else None,
        "lag_seconds": round(max(ages) / 1000, 1) if ages else None,
        "coordinator": f"{group.coordinator.host}:{group.coordinator.port}",
    }


@click.command()
@cluster_options
@click.argument("groups", metavar="[GROUP]...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups.")
@watch_options
@output_option
@friendly
def members(
    bootstrap: str, timeout: float, groups: tuple[str, ...], all_groups: bool, watch: float | None,
    times: int | None, output: str,
) -> None:  # fmt: skip
    """Print the members of groups with their partitions.

    \b
    Example:
      kcoord groups members billing
    """
    is_complete = True

    async def find(admin: Admin) -> list[GroupDescription]:
        nonlocal is_complete
        described, is_complete = await describe_existing(admin, await names_of(admin, groups, all_groups))
        return described

    def show() -> None:
        described = online(bootstrap, timeout, find)
        for group in described:
            if not group.members and not all_groups:
                warn(f"group {group.group_id!r} has no active members (state {group.state})")
        emit(MEMBERS, [row for group in described for row in _member_rows(group)], output)

    watching(watch, times, show)
    if not is_complete:
        click.get_current_context().exit(EXIT_PROBLEMS)


def _member_rows(group: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "group": group.group_id,
            "member": one.member_id,
            "instance_id": one.instance_id,
            "host": one.client_host,
            "client_id": one.client_id,
            "epoch": one.epoch,
            "partitions": len(one.assignment),
            "assignment": [str(partition) for partition in one.assignment],
        }
        for one in group.members
    ]
