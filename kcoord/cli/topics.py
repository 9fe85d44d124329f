"""`kcoord topics`: the topics of a running server or of a Kafka cluster."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any, Final

import click

from kcoord.cli.groups.common import is_code, print_failures
from kcoord.cli.lazy import LazyGroup
from kcoord.cli.online.run import (
    EXIT_PROBLEMS,
    cluster_options,
    complain,
    execute_option,
    friendly,
    online,
    output_option,
    warn,
)
from kcoord.cli.online.suggestions import suggestion
from kcoord.cli.options import AliasedOption
from kcoord.cli.output import Column, emit, plural
from kcoord.client.errors import KafkaError
from kcoord.client.partition import TopicPartition
from kcoord.protocol.errors import TOPIC_ALREADY_EXISTS, UNKNOWN_TOPIC_OR_PARTITION

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin
    from kcoord.client.admin.results import TopicDescription

LIST: Final = [Column("topic", "TOPIC"), Column("partitions", "PARTITIONS", True), Column("internal", "INTERNAL")]
PARTITIONS: Final = [
    Column("topic", "TOPIC"), Column("partition", "PARTITION", True), Column("leader", "LEADER", True),
    Column("replicas", "REPLICAS"), Column("in_sync", "IN SYNC"), Column("start_offset", "START", True),
    Column("end_offset", "END", True), Column("records", "RECORDS", True),
]  # fmt: skip
RESULTS: Final = [Column("topic", "TOPIC"), Column("partitions", "PARTITIONS", True), Column("result", "RESULT")]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def topics() -> None:
    """List, describe, create, change and delete topics.

    The commands talk to a running kcoord or to any Kafka cluster from version 2.1 on. `delete` only prints the topics;
    --execute deletes them.

    \b
    Exit codes: 0 success; 1 something does not exist, or part of the work was
    refused; 2 wrong usage; 3 no response in time, or the cluster refused the
    request.
    """


def parse_assignments(given: tuple[str, ...]) -> dict[str, str]:
    """NAME=VALUE. Raises UsageError."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{text!r}: give NAME=VALUE")
        found[name] = value
    return found


async def _existing(admin: Admin, names: tuple[str, ...]) -> tuple[list[TopicDescription], bool]:
    """The topics that exist, and whether all do; an error is printed for each of the others."""
    found: list[TopicDescription] = []
    described = await admin.describe_topics(*names)
    for name, topic in described.items():
        if is_code(topic, UNKNOWN_TOPIC_OR_PARTITION):
            known = [one.name for one in await admin.list_topics(include_internal=True)]
            complain(f"topic {name!r} does not exist{suggestion(name, known)}")
        elif isinstance(topic, KafkaError):
            raise topic
        else:
            found.append(topic)
    return found, len(found) == len(described)


def _exit_unless(is_complete: bool) -> None:
    if not is_complete:
        click.get_current_context().exit(EXIT_PROBLEMS)


@topics.command("list", short_help="List topics.")
@cluster_options
@click.argument("pattern", metavar="[PATTERN]", required=False)
@click.option("--internal", is_flag=True, help="Internal topics too.")
@output_option
@friendly
def list_command(bootstrap: str, timeout: float, pattern: str | None, internal: bool, output: str) -> None:
    """List all topics, or those that match PATTERN (with * and ?).

    \b
    Example:
      kcoord topics list 'orders*'
    """

    async def find(admin: Admin) -> list[dict[str, Any]]:
        return [
            {"topic": one.name, "partitions": one.partition_count, "internal": one.is_internal}
            for one in await admin.list_topics(include_internal=internal)
            if pattern is None or fnmatch.fnmatchcase(one.name, pattern)
        ]

    rows = online(bootstrap, timeout, find)
    emit(LIST if internal else LIST[:2], rows, output)


@topics.command(short_help="Print partitions with leader, replicas and offsets.")
@cluster_options
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@output_option
@friendly
def describe(bootstrap: str, timeout: float, names: tuple[str, ...], output: str) -> None:
    """Print the partitions of topics: leader, replicas, first and last offset.

    \b
    Example:
      kcoord topics describe orders
    """

    async def find(admin: Admin) -> tuple[list[dict[str, Any]], bool]:
        from kcoord.client.admin.results import EARLIEST, LATEST

        found, is_complete = await _existing(admin, names)
        partitions = [TopicPartition(topic.name, one.partition) for topic in found for one in topic.partitions]
        starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
        rows = []
        for topic in found:
            for one in topic.partitions:
                key = TopicPartition(topic.name, one.partition)
                start, end = starts[key], ends[key]
                first = None if isinstance(start, KafkaError) else start.offset
                last = None if isinstance(end, KafkaError) else end.offset
                row = {
                    "topic": topic.name,
                    "partition": one.partition,
                    "leader": one.leader if one.leader >= 0 else None,
                    "replicas": list(one.replicas),
                    "in_sync": list(one.in_sync),
                    "start_offset": first,
                    "end_offset": last,
                    "records": None if first is None or last is None else last - first,
                }
                rows.append(row)
        return rows, is_complete

    rows, is_complete = online(bootstrap, timeout, find)
    emit(PARTITIONS, rows, output)
    _exit_unless(is_complete)


@topics.command(short_help="Create topics.")
@cluster_options
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--partitions", cls=AliasedOption, aliases=("-p",), type=click.IntRange(min=1), metavar="N",
    help="The number of partitions (default: the broker's).",
)  # fmt: skip
@click.option("--replication-factor", type=click.IntRange(min=1), default=None, help="Default: the broker's.")
@click.option("--config", "-c", "configs", multiple=True, metavar="NAME=VALUE", help="A config; repeatable.")
@click.option("--if-not-exists", is_flag=True, help="Leave existing topics alone.")
@click.option("--dry-run", is_flag=True, help="Validate the request without creating topics.")
@output_option
@friendly
def create(
    bootstrap: str, timeout: float, names: tuple[str, ...], partitions: int | None, replication_factor: int | None,
    configs: tuple[str, ...], if_not_exists: bool, dry_run: bool, output: str,
) -> None:  # fmt: skip
    """Create topics.

    \b
    Example:
      kcoord topics create orders --partitions 6 --config cleanup.policy=compact
    """
    values: dict[str, str | None] = {**parse_assignments(configs)}

    async def work(admin: Admin) -> dict[str, Any]:
        from kcoord.client.admin.results import NewTopic

        new = [NewTopic(name, partitions or -1, replication_factor or -1, values) for name in names]
        return {**await admin.create_topics(*new, validate_only=dry_run)}

    results = online(bootstrap, timeout, work)
    rows = []
    for name, result in list(results.items()):
        done = "would be created" if dry_run else "created"
        if isinstance(result, KafkaError):
            exists = if_not_exists and is_code(result, TOPIC_ALREADY_EXISTS)
            done = "exists" if exists else "refused"
            if exists:
                del results[name]
        count = None if isinstance(result, KafkaError) or result.partitions < 0 else result.partitions
        rows.append({"topic": name, "partitions": count, "result": done})
    emit(RESULTS, rows, output)
    _exit_unless(not print_failures(results))


@topics.command(short_help="Raise the number of partitions.")
@cluster_options
@click.argument("name", metavar="TOPIC")
@click.option(
    "--partitions", cls=AliasedOption, aliases=("-p",), type=click.IntRange(min=1), metavar="N", required=True,
    help="The new number, larger than now.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Validate the change without making it.")
@output_option
@friendly
def alter(bootstrap: str, timeout: float, name: str, partitions: int, dry_run: bool, output: str) -> None:
    """Raise the number of partitions of a topic. Keys may then go to other partitions than before.

    \b
    Example:
      kcoord topics alter orders --partitions 12
    """

    async def work(admin: Admin) -> tuple[dict[str, KafkaError | None], bool]:
        found, is_complete = await _existing(admin, (name,))
        if not found:
            return {}, is_complete
        return await admin.create_partitions({name: partitions}, validate_only=dry_run), is_complete

    results, is_complete = online(bootstrap, timeout, work)
    done = "would be changed" if dry_run else "changed"
    rows = [
        {"topic": one, "partitions": partitions, "result": "refused" if result else done}
        for one, result in results.items()
    ]
    emit(RESULTS, rows, output)
    _exit_unless(not print_failures(results) and is_complete)


@topics.command(short_help="Delete topics and their records.")
@cluster_options
@click.argument("names", metavar="TOPIC...", nargs=-1, required=True)
@execute_option
@output_option
@friendly
def delete(bootstrap: str, timeout: float, names: tuple[str, ...], execute: bool, output: str) -> None:
    """Delete topics and their records.

    \b
    Example:
      kcoord topics delete orders-test --execute
    """

    async def work(admin: Admin) -> tuple[list[TopicDescription], bool, dict[str, KafkaError | None]]:
        found, is_complete = await _existing(admin, names)
        results = await admin.delete_topics(*(one.name for one in found)) if execute and found else {}
        return found, is_complete, results

    found, is_complete, results = online(bootstrap, timeout, work)
    done = "deleted" if execute else "would be deleted"
    rows = [
        {
            "topic": one.name,
            "partitions": len(one.partitions),
            "result": "refused" if results.get(one.name) is not None else done,
        }
        for one in found
    ]
    emit(RESULTS, rows, output)
    if not execute:
        warn(f"dry run: {plural(len(found), 'topic')} would be deleted; add --execute to do it")
    _exit_unless(not print_failures(results) and is_complete)
