"""Shared code of `kcoord groups`: which groups and which partitions are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from kcoord.cli.online.run import CommandProblem, complain
from kcoord.cli.online.suggestions import suggestion
from kcoord.client.errors import BrokerError, KafkaError
from kcoord.client.partition import TopicPartition
from kcoord.protocol.errors import GROUP_ID_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin
    from kcoord.client.admin.results import GroupDescription

TOPICS_HELP = "Only this topic, or only some of its partitions: orders, orders:0,1; repeatable."


def is_code(result: object, code: int) -> bool:
    return isinstance(result, BrokerError) and result.code == code


def parse_topics(given: Iterable[str]) -> dict[str, set[int] | None]:
    """`orders` or `orders:0,1` as partitions by topic, None for all of them. Raises UsageError."""
    found: dict[str, set[int] | None] = {}
    for text in given:
        name, colon, numbers = text.partition(":")
        parts = numbers.split(",")
        if not name or (colon and not all(re.fullmatch(r"\d{1,10}", part) for part in parts)):
            raise click.UsageError(f"--topic {text!r}: give TOPIC or TOPIC:PARTITION,...")
        some = found.setdefault(name, set())
        if not colon or some is None:
            found[name] = None
        else:
            some.update(map(int, parts))
    return found


def is_meant(partition: TopicPartition, topics: dict[str, set[int] | None]) -> bool:
    """Whether --topic names a partition, or was not given."""
    if not topics:
        return True
    some = topics.get(partition.topic, set())
    return some is None or partition.partition in some


async def partitions_of(admin: Admin, topics: dict[str, set[int] | None]) -> list[TopicPartition]:
    """The partitions that --topic names, in order. Raises CommandProblem for one that does not exist."""
    described = await admin.describe_topics(*topics)
    found: list[TopicPartition] = []
    for name, some in topics.items():
        topic = described[name]
        if is_code(topic, UNKNOWN_TOPIC_OR_PARTITION):
            known = [one.name for one in await admin.list_topics(include_internal=True)]
            raise CommandProblem(f"topic {name!r} does not exist{suggestion(name, known)}")
        if isinstance(topic, KafkaError):
            raise topic
        numbers = {one.partition for one in topic.partitions}
        for missing in sorted((some or set()) - numbers):
            raise CommandProblem(f"topic {name!r} has no partition {missing}, only 0 to {len(numbers) - 1}")
        found += [TopicPartition(name, one) for one in sorted(numbers if some is None else some)]
    return sorted(found)


async def describe_existing(admin: Admin, names: Iterable[str]) -> tuple[list[GroupDescription], bool]:
    """The groups that exist, and whether all do; an error is printed for each of the others. Raises KafkaError."""
    wanted = list(names)
    described = await admin.describe_groups(*wanted)
    found: list[GroupDescription] = []
    for name in wanted:
        group = described[name]
        if is_code(group, GROUP_ID_NOT_FOUND):
            complain(str(await unknown_group(admin, name)))
        elif isinstance(group, KafkaError):
            raise group
        else:
            found.append(group)
    return found, len(found) == len(wanted)


async def unknown_group(admin: Admin, name: str) -> CommandProblem:
    """The error for a group that does not exist."""
    known = [one.group_id for one in await admin.list_groups()]
    return CommandProblem(f"group {name!r} does not exist{suggestion(name, known)}")


async def describe_one(admin: Admin, name: str) -> GroupDescription:
    """Raises CommandProblem if the group does not exist."""
    group = (await admin.describe_groups(name))[name]
    if is_code(group, GROUP_ID_NOT_FOUND):
        raise await unknown_group(admin, name)
    if isinstance(group, KafkaError):
        raise group
    return group


async def names_of(admin: Admin, given: tuple[str, ...], all_groups: bool) -> list[str]:
    """The groups that a command is about. Raises UsageError."""
    if bool(given) == all_groups:
        raise click.UsageError("give GROUPS or --all-groups")
    if given:
        return list(dict.fromkeys(given))
    return [one.group_id for one in await admin.list_groups()]


def print_failures(results: dict[Any, Any]) -> bool:
    """Print the errors among results; whether there are any."""
    failures = [one for one in results.values() if isinstance(one, KafkaError)]
    for one in failures:
        complain(str(one))
    return bool(failures)
