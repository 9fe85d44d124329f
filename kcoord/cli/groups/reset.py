"""`kcoord groups reset` and `copy`: new committed offsets for groups without members."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import quote

import click

from kcoord.cli.groups.common import (
    TOPICS_HELP,
    describe_one,
    is_code,
    is_meant,
    names_of,
    parse_topics,
    partitions_of,
    print_failures,
    unknown_group,
)
from kcoord.cli.groups.reset_plan import (
    CURRENT,
    EARLIEST,
    GIVEN,
    LATEST,
    NO_OFFSET,
    OFFSET,
    SHIFT,
    TIME,
    Change,
    Facts,
    PlanProblem,
    Wish,
    change_of,
    export_rows,
    parse_duration_ms,
    read_plan,
    undo_rows,
)
from kcoord.cli.log.points import parse_time
from kcoord.cli.online.contexts import state_directory
from kcoord.cli.online.run import (
    EXIT_CLUSTER,
    EXIT_PROBLEMS,
    CommandProblem,
    cluster_options,
    complain,
    execute_option,
    friendly,
    online,
    output_option,
    warn,
)
from kcoord.cli.output import Column, csv_text, emit, plural
from kcoord.client.errors import BrokerError, KafkaError, may_retry
from kcoord.client.partition import TopicPartition
from kcoord.protocol.errors import GROUP_ID_NOT_FOUND

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin
    from kcoord.client.admin.group_offsets import GroupOffsets

COLUMNS: Final = [
    Column("group", "GROUP"), Column("topic", "TOPIC"), Column("partition", "PARTITION", True),
    Column("old_offset", "OLD OFFSET", True), Column("new_offset", "NEW OFFSET", True), Column("note", "NOTE"),
]  # fmt: skip
INACTIVE: Final = ("Empty", "Dead")
# Notes of changes that an executed reset has not made, or may not have made.
REFUSED: Final = "refused"
NOT_CONFIRMED: Final = "not confirmed: the offset may be set or not"
NOT_REACHED: Final = "not set: the command ended before"


@dataclass(frozen=True, slots=True)
class Scope:
    """The groups of a reset and their partitions: those of `topics`, or all with a committed offset."""

    groups: tuple[str, ...]
    all_groups: bool
    topics: dict[str, set[int] | None]


@dataclass(frozen=True, slots=True)
class Options:
    """What is done with a plan."""

    execute: bool
    export: bool
    undo_file: str | None
    output: str


@click.command()
@cluster_options
@click.argument("groups", metavar="[GROUP]...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option("--topic", "-t", "topics", multiple=True, metavar="TOPIC[:PARTITIONS]", help=TOPICS_HELP)
@click.option("--all-topics", is_flag=True, help="All partitions with a committed offset.")
@click.option("--to-earliest", is_flag=True, help="To the first offset of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-current", is_flag=True, help="To the committed offset, or to the end of the log if there is none.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="Forward by N records, or back if N is negative.")
@click.option("--to-datetime", type=parse_time, metavar="TIME", help="To the first record of this time or later: "
              "2026-01-31T12:00 (UTC, or with a zone), 15m (ago), @1769860800000.")  # fmt: skip
@click.option(
    "--by-duration", metavar="DURATION", help="The same, for a time this long ago: P1DT2H30M, 90s, 15m, 2h, 7d."
)
@click.option("--to-group", metavar="GROUP", help="To the committed offsets of another group.")
@click.option("--from-file", type=click.Path(exists=True, dir_okay=False, allow_dash=True), metavar="FILE",
              help="To the offsets of a CSV file: topic,partition,offset or group,topic,partition,offset.")  # fmt: skip
@execute_option
@click.option("--dry-run", is_flag=True, help="Change nothing (the default).")
@click.option("--export", is_flag=True, help="Print the plan as CSV for --from-file.")
@click.option("--undo-file", type=click.Path(dir_okay=False), metavar="FILE", help="With --execute: where to write "
              "the old offsets (default: a new file in ~/.local/state/kcoord/undo).")  # fmt: skip
@output_option
@friendly
def reset(
    bootstrap: str, timeout: float, groups: tuple[str, ...], all_groups: bool, topics: tuple[str, ...],
    all_topics: bool, execute: bool, dry_run: bool, export: bool, undo_file: str | None, output: str, **targets: Any,
) -> None:  # fmt: skip
    """Set the committed offsets of groups without members.

    Without --execute it only prints the plan. With it, it first writes the old offsets to a file, and prints the
    command that undoes the reset with that file. An offset outside the log becomes its start or end.

    \b
    Examples:
      kcoord groups reset billing --all-topics --to-earliest
      kcoord groups reset billing --topic orders:0,1 --by-duration PT1H --execute
      kcoord groups reset --from-file undo.csv --execute
    """
    if execute and dry_run:
        raise click.UsageError("give --execute or --dry-run, not both")
    chosen = {name: value for name, value in targets.items() if value is not None and value is not False}
    if len(chosen) != 1:
        raise click.UsageError(
            "give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime, "
            "--by-duration, --to-group, --from-file"
        )
    options = Options(execute, export, undo_file, output)
    scope = Scope(groups, all_groups, parse_topics(topics))
    name, value = next(iter(chosen.items()))
    try:
        if name == "from_file":
            if topics or all_topics or all_groups:
                raise click.UsageError("--from-file names the topics itself")
            # Excel begins its files with a byte order mark, which must not become a part of a name.
            with click.open_file(value, encoding="utf-8-sig") as file:
                plan = read_plan(file, list(groups))
            _finish(bootstrap, timeout, options, lambda admin: _plan_given(admin, plan))
            return
        if bool(topics) == all_topics:
            raise click.UsageError("give --topic or --all-topics")
        if name == "to_group":
            if set(groups) == {value}:
                raise click.UsageError(f"--to-group {value!r} is the group to reset: name another one")
            _finish(bootstrap, timeout, options, lambda admin: _plan_copy(admin, value, scope))
            return
        wish = _wish(name, value)
        _finish(bootstrap, timeout, options, lambda admin: _plan_wish(admin, scope, wish))
    except PlanProblem as error:
        raise click.UsageError(str(error)) from None


@click.command()
@cluster_options
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--topic", "-t", "topics", multiple=True, metavar="TOPIC[:PARTITIONS]", help=TOPICS_HELP)
@execute_option
@click.option("--export", is_flag=True, help="Print the plan as CSV for `kcoord groups reset --from-file`.")
@click.option("--undo-file", type=click.Path(dir_okay=False), metavar="FILE", help="As for `kcoord groups reset`.")
@output_option
@friendly
def copy(
    bootstrap: str, timeout: float, source: str, target: str, topics: tuple[str, ...], execute: bool, export: bool,
    undo_file: str | None, output: str,
) -> None:  # fmt: skip
    """Copy the committed offsets of group FROM to group TO, which must have no members.

    \b
    Example:
      kcoord groups copy billing billing-test --execute
    """
    if source == target:
        raise click.UsageError(f"FROM and TO are the same group {source!r}")
    scope = Scope((target,), False, parse_topics(topics))
    options = Options(execute, export, undo_file, output)
    _finish(bootstrap, timeout, options, lambda admin: _plan_copy(admin, source, scope))


def _wish(name: str, value: Any) -> Wish:
    if name == "by_duration":
        # Negative times have meanings of their own in ListOffsets.
        return Wish(TIME, max(time.time_ns() // 1_000_000 - parse_duration_ms(value), 0))
    kind = {
        "to_earliest": EARLIEST, "to_latest": LATEST, "to_current": CURRENT, "to_offset": OFFSET,
        "shift_by": SHIFT, "to_datetime": TIME,
    }[name]  # fmt: skip
    return Wish(kind, value if not isinstance(value, bool) else 0)


# --- plans


async def _plan_wish(admin: Admin, scope: Scope, wish: Wish) -> list[Change]:
    names = await names_of(admin, scope.groups, scope.all_groups)
    may_create = bool(scope.topics) and not scope.all_groups
    committed = await _committed(admin, names, may_create)
    named = await partitions_of(admin, scope.topics) if scope.topics else []
    changes: list[Change] = []
    for name, offsets in committed.items():
        partitions = named if scope.topics else list(offsets)
        changes += await _changes(admin, name, partitions, wish, offsets)
    return changes


async def _plan_given(admin: Admin, plan: dict[str, dict[TopicPartition, int]]) -> list[Change]:
    committed = await _committed(admin, list(plan), may_create=True)
    changes: list[Change] = []
    for name, given in plan.items():
        # Fails for partitions that do not exist, like --topic.
        await partitions_of(admin, _as_topics(given))
        changes += await _changes(admin, name, sorted(given), Wish(GIVEN, given=given), committed[name])
    return changes


def _as_topics(partitions: dict[TopicPartition, int]) -> dict[str, set[int] | None]:
    topics: dict[str, set[int] | None] = {}
    for topic, number in partitions:
        some = topics.setdefault(topic, set())
        if some is not None:
            some.add(number)
    return topics


async def _plan_copy(admin: Admin, source: str, scope: Scope) -> list[Change]:
    await describe_one(admin, source)
    offsets = await admin.list_group_offsets(source)
    given: dict[TopicPartition, int] = {}
    for partition, found in offsets.items():
        if is_meant(partition, scope.topics):
            if isinstance(found, KafkaError):
                raise found
            given[partition] = found.offset
    if not given:
        raise CommandProblem(f"group {source!r} has no committed offsets" + (" for --topic" if scope.topics else ""))
    names = await names_of(admin, scope.groups, scope.all_groups)
    committed = await _committed(admin, [name for name in names if name != source], may_create=True)
    changes: list[Change] = []
    for name, own in committed.items():
        changes += await _changes(admin, name, sorted(given), Wish(GIVEN, given=given), own)
    return changes


async def _committed(admin: Admin, names: list[str], may_create: bool) -> dict[str, GroupOffsets]:
    """The offsets of groups that can be reset. Raises CommandProblem for one with members, or that does not exist."""
    described = await admin.describe_groups(*names)
    for name in names:
        group = described[name]
        if is_code(group, GROUP_ID_NOT_FOUND):
            if not may_create:
                raise await unknown_group(admin, name)
            warn(f"group {name!r} does not exist; the reset creates it")
        elif isinstance(group, KafkaError):
            raise group
        elif group.state not in INACTIVE:
            raise CommandProblem(
                f"group {name!r} has active members (state {group.state}); only groups without members can be reset"
            )
    found = await admin.list_groups_offsets(dict.fromkeys(names))
    offsets: dict[str, GroupOffsets] = {}
    for name in names:
        own = found[name]
        if isinstance(own, KafkaError):
            raise own
        offsets[name] = own
    return offsets


async def _changes(
    admin: Admin, name: str, partitions: list[TopicPartition], wish: Wish, committed: GroupOffsets
) -> list[Change]:
    from kcoord.client.admin import results
    from kcoord.client.admin.spread import only

    starts = await admin.list_offsets(dict.fromkeys(partitions, results.EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, results.LATEST))
    timed = await admin.list_offsets(dict.fromkeys(partitions, wish.number)) if wish.kind == TIME else {}
    changes = []
    for partition in partitions:
        own = committed.get(partition)
        if isinstance(own, KafkaError):
            raise own
        at = only(timed, partition).offset if timed else NO_OFFSET
        facts = Facts(
            own.offset if own else None,
            only(starts, partition).offset,
            only(ends, partition).offset,
            at if at != NO_OFFSET else None,
        )
        changes.append(change_of(name, partition, wish, facts))
    return changes


# --- printing and executing


@final
class Outcome:
    """What was done with a plan, also when an error has ended it."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.is_begun = False
        self.code = 0
        # What happened to changes that were not made.
        self.notes: dict[tuple[str, TopicPartition], str] = {}

    def note(self, changes: list[Change], text: str) -> None:
        for one in changes:
            self.notes[one.group_id, one.partition] = text

    def shown(self) -> list[Change]:
        return [replace(one, note=self.notes.get((one.group_id, one.partition), one.note)) for one in self.changes]


def _finish(bootstrap: str, timeout_s: float, options: Options, plan: Any) -> None:
    """Make the plan, carry it out with --execute, and print it."""
    outcome = Outcome()

    async def work(admin: Admin) -> None:
        outcome.changes = await plan(admin)
        if options.execute and outcome.changes:
            undo = _write_undo(outcome.changes, options.undo_file)
            # At once: whatever happens next, the user must know the file.
            warn(f"undo with: kcoord groups reset --from-file {undo} --execute")
            outcome.is_begun = True
            await _execute(admin, outcome)

    try:
        online(bootstrap, timeout_s, work)
    except KafkaError as error:
        if not outcome.is_begun:
            raise
        complain(str(error))
        outcome.code = EXIT_CLUSTER
    changes = outcome.shown()
    if options.export:
        with_group = len({one.group_id for one in changes}) > 1
        click.echo(csv_text(export_rows(changes, with_group)), nl=False)
    else:
        emit(COLUMNS, [_row(one) for one in changes], options.output)
    for one in changes:
        if one.note and options.export:
            warn(f"partition {one.partition} of group {one.group_id!r}: {one.note}")
    if not changes:
        warn("there is nothing to reset: no committed offset")
    elif not options.execute:
        warn(f"dry run: {plural(len(changes), 'offset')} would be set; add --execute to do it")
    if outcome.code:
        click.get_current_context().exit(outcome.code)


def _row(change: Change) -> dict[str, Any]:
    return {
        "group": change.group_id,
        "topic": change.partition.topic,
        "partition": change.partition.partition,
        "old_offset": change.old,
        "new_offset": None if change.new == NO_OFFSET else change.new,
        "note": change.note,
    }


def _write_undo(changes: list[Change], given: str | None) -> str:
    """Write the old offsets, before any is changed. Raises OSError."""
    if given is not None:
        path = Path(given)
    else:
        now = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        groups = sorted({one.group_id for one in changes})
        name = quote(groups[0], safe="")[:100] if len(groups) == 1 else f"{len(groups)}-groups"
        folder = state_directory() / "undo"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}-{now}-{time.time_ns() % 1_000_000_000:09d}.csv"
    path.write_text(csv_text(undo_rows(changes)), encoding="utf-8")
    return str(path)


async def _execute(admin: Admin, outcome: Outcome) -> None:
    """Set the offsets, group by group. An error of one group does not end the others."""
    kept = [one for one in outcome.changes if one.new != NO_OFFSET]
    dropped = [one for one in outcome.changes if one.new == NO_OFFSET and one.old is not None]
    outcome.note([*kept, *dropped], NOT_REACHED)
    for name in dict.fromkeys(one.group_id for one in outcome.changes):
        for some in (kept, dropped):
            own = [one for one in some if one.group_id == name]
            if own:
                await _change(admin, name, own, outcome)


async def _change(admin: Admin, name: str, own: list[Change], outcome: Outcome) -> None:
    """Set the offsets of a group, or delete them."""
    # Until the answers are there, and if there are none.
    outcome.note(own, NOT_CONFIRMED)
    results: dict[TopicPartition, KafkaError | None]
    try:
        if own[0].new == NO_OFFSET:
            results = await admin.delete_group_offsets(name, [one.partition for one in own])
        else:
            results = await admin.alter_group_offsets(name, {one.partition: one.new for one in own})
    except KafkaError as error:
        complain(f"group {name!r}: {error}")
        outcome.code = EXIT_CLUSTER
        if isinstance(error, BrokerError) and not may_retry(error):
            outcome.note(own, REFUSED)
        return
    if print_failures(results):
        outcome.code = outcome.code or EXIT_PROBLEMS
    for one in own:
        if isinstance(results.get(one.partition), KafkaError):
            outcome.note([one], REFUSED)
        else:
            del outcome.notes[name, one.partition]
