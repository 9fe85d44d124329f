"""`kcoord groups delete`, `delete-offsets` and `remove-members`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kcoord.cli.groups.common import (
    TOPICS_HELP,
    describe_existing,
    describe_one,
    is_meant,
    names_of,
    parse_topics,
    print_failures,
)
from kcoord.cli.online.run import (
    EXIT_PROBLEMS,
    CommandProblem,
    cluster_options,
    execute_option,
    friendly,
    online,
    output_option,
    warn,
)
from kcoord.cli.output import Column, emit, plural
from kcoord.client.errors import KafkaError

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin

GROUPS: Final = [Column("group", "GROUP"), Column("type", "TYPE"), Column("state", "STATE"), Column("result", "RESULT")]
OFFSETS: Final = [
    Column("group", "GROUP"), Column("topic", "TOPIC"), Column("partition", "PARTITION", True),
    Column("offset", "OFFSET", True), Column("result", "RESULT"),
]  # fmt: skip
REMOVED: Final = [
    Column("group", "GROUP"), Column("member", "MEMBER"), Column("client_id", "CLIENT ID"), Column("result", "RESULT"),
]  # fmt: skip


def _result(results: dict[Any, Any], key: Any, done: str) -> str:
    found = results.get(key, "")
    if isinstance(found, KafkaError):
        return "refused"
    return done if key in results else f"would be {done}"


def _end(execute: bool, is_complete: bool, results: dict[Any, Any], what: str, count: int) -> None:
    """Report what was refused, and that nothing was done; set the exit code."""
    has_failed = print_failures(results)
    if not execute:
        warn(f"dry run: {plural(count, what)} would be removed; add --execute to do it")
    if has_failed or not is_complete:
        click.get_current_context().exit(EXIT_PROBLEMS)


@click.command()
@cluster_options
@click.argument("groups", metavar="[GROUP]...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups.")
@execute_option
@output_option
@friendly
def delete(
    bootstrap: str, timeout: float, groups: tuple[str, ...], all_groups: bool, execute: bool, output: str
) -> None:
    """Delete groups without members, and their committed offsets.

    \b
    Example:
      kcoord groups delete billing-test --execute
    """

    async def work(admin: Admin) -> tuple[list[dict[str, Any]], bool, dict[str, KafkaError | None]]:
        found, is_complete = await describe_existing(admin, await names_of(admin, groups, all_groups))
        results = await admin.delete_groups(*(one.group_id for one in found)) if execute and found else {}
        rows = [
            {
                "group": one.group_id,
                "type": one.type,
                "state": one.state,
                "result": _result(results, one.group_id, "deleted"),
            }
            for one in found
        ]
        return rows, is_complete, results

    rows, is_complete, results = online(bootstrap, timeout, work)
    emit(GROUPS, rows, output)
    _end(execute, is_complete, results, "group", len(rows))


@click.command("delete-offsets")
@cluster_options
@click.argument("group", metavar="GROUP")
@click.option("--topic", "-t", "topics", multiple=True, metavar="TOPIC[:PARTITIONS]", help=TOPICS_HELP)
@click.option("--all-topics", is_flag=True, help="All committed offsets of the group.")
@execute_option
@output_option
@friendly
def delete_offsets(
    bootstrap: str, timeout: float, group: str, topics: tuple[str, ...], all_topics: bool, execute: bool, output: str
) -> None:
    """Delete committed offsets of topics to which no member of the group subscribes.

    \b
    Example:
      kcoord groups delete-offsets billing --topic orders:0,1 --execute
    """
    if bool(topics) == all_topics:
        raise click.UsageError("give --topic or --all-topics")
    wanted = parse_topics(topics)

    async def work(admin: Admin) -> tuple[list[dict[str, Any]], dict[Any, KafkaError | None]]:
        await describe_one(admin, group)
        committed = {
            one: offset for one, offset in (await admin.list_group_offsets(group)).items() if is_meant(one, wanted)
        }
        if not committed:
            raise CommandProblem(f"group {group!r} has no such committed offsets")
        results = await admin.delete_group_offsets(group, committed) if execute else {}
        rows = [
            {
                "group": group,
                "topic": one.topic,
                "partition": one.partition,
                "offset": None if isinstance(offset, KafkaError) else offset.offset,
                "result": _result(results, one, "deleted"),
            }
            for one, offset in committed.items()
        ]
        return rows, results

    rows, results = online(bootstrap, timeout, work)
    emit(OFFSETS, rows, output)
    _end(execute, True, results, "offset", len(rows))


@click.command("remove-members")
@cluster_options
@click.argument("group", metavar="GROUP")
@click.option("--member", "members", multiple=True, metavar="ID", help="This member id; repeatable.")
@click.option("--all-members", is_flag=True, help="All members.")
@click.option(
    "--reason", default="removed with kcoord groups", metavar="TEXT", help="The reason that the coordinator logs."
)
@execute_option
@output_option
@friendly
def remove_members(
    bootstrap: str, timeout: float, group: str, members: tuple[str, ...], all_members: bool, reason: str,
    execute: bool, output: str,
) -> None:  # fmt: skip
    """Remove members from a group. A client that is still running joins again.

    \b
    Example:
      kcoord groups remove-members billing --all-members --execute
    """
    if bool(members) == all_members:
        raise click.UsageError("give --member or --all-members")

    async def work(admin: Admin) -> tuple[list[dict[str, Any]], dict[str, KafkaError | None]]:
        known = {one.member_id: one for one in (await describe_one(admin, group)).members}
        chosen = list(known) if all_members else list(dict.fromkeys(members))
        for one in chosen:
            if one not in known:
                raise CommandProblem(f"group {group!r} has no member {one!r}; `kcoord groups members` lists them")
        results = await admin.remove_members(group, chosen, reason=reason) if execute and chosen else {}
        rows = [
            {
                "group": group,
                "member": one,
                "client_id": known[one].client_id,
                "result": _result(results, one, "removed"),
            }
            for one in chosen
        ]
        return rows, results

    rows, results = online(bootstrap, timeout, work)
    emit(REMOVED, rows, output)
    _end(execute, True, results, "member", len(rows))
