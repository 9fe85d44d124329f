"""`kcoord configs`: the configs of topics, brokers and groups of a running server or of a Kafka cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from kcoord.cli.lazy import LazyGroup
from kcoord.cli.online.run import (
    CommandProblem,
    cluster_options,
    friendly,
    online,
    output_option,
)
from kcoord.cli.online.suggestions import suggestion
from kcoord.cli.output import Column, emit
from kcoord.cli.topics import parse_assignments
from kcoord.client.errors import KafkaError

if TYPE_CHECKING:
    from kcoord.client.admin.admin import Admin
    from kcoord.client.admin.results import ConfigEntry, ConfigResource

COLUMNS: Final = [
    Column("name", "NAME"), Column("value", "VALUE"), Column("source", "SOURCE"), Column("read_only", "READ ONLY"),
]  # fmt: skip
KINDS: Final = ("topic", "broker", "group")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def configs() -> None:
    """Print and change the configs of topics, brokers and groups.

    The commands talk to a running kcoord or to any Kafka cluster from version 2.3 on. `kcoord config` lists the
    settings of kcoord itself.

    \b
    Exit codes: 0 success; 1 a topic, config or group does not exist;
    2 wrong usage; 3 no response in time, or the cluster refused the request.
    """


async def _resource(admin: Admin, kind: str, name: str) -> ConfigResource:
    """Raises CommandProblem for a topic that does not exist: brokers answer with an error of little help."""
    from kcoord.client.admin.results import ConfigResource

    if kind == "topic":
        known = [one.name for one in await admin.list_topics(include_internal=True)]
        if name not in known:
            raise CommandProblem(f"topic {name!r} does not exist{suggestion(name, known)}")
    return ConfigResource(kind, name)


async def _entries(admin: Admin, resource: ConfigResource) -> dict[str, ConfigEntry]:
    found = (await admin.describe_configs(resource))[resource]
    if isinstance(found, KafkaError):
        raise found
    return found


def _row(entry: ConfigEntry) -> dict[str, Any]:
    value = "(hidden)" if entry.is_sensitive else entry.value
    return {"name": entry.name, "value": value, "source": entry.source, "read_only": entry.is_read_only}


@configs.command(short_help="Print configs that differ from the defaults.")
@cluster_options
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.argument("configs", metavar="[CONFIG]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="Print defaults, too.")
@output_option
@friendly
def describe(
    bootstrap: str, timeout: float, kind: str, name: str, configs: tuple[str, ...], is_all: bool, output: str
) -> None:
    """Print the configs of a topic, broker or group: those that differ from the defaults, or the named ones.

    \b
    Examples:
      kcoord configs describe topic orders
      kcoord configs describe topic orders retention.ms
      kcoord configs describe broker 1 --all
    """

    async def find(admin: Admin) -> list[dict[str, Any]]:
        entries = await _entries(admin, await _resource(admin, kind, name))
        for one in configs:
            if one not in entries:
                raise CommandProblem(f"{kind} {name!r} has no config {one!r}{suggestion(one, entries)}")
        chosen = configs or [one for one, entry in entries.items() if is_all or not entry.is_default]
        return [_row(entries[one]) for one in chosen]

    emit(COLUMNS, online(bootstrap, timeout, find), output)


def _change(bootstrap: str, timeout_s: float, kind: str, name: str, values: dict[str, str | None], dry: bool) -> None:
    """None as a value means: back to the default."""

    async def work(admin: Admin) -> None:
        from kcoord.client.admin.results import DELETE, SET, ConfigChange

        resource = await _resource(admin, kind, name)
        entries = await _entries(admin, resource)
        for one in values:
            if entries and one not in entries:
                raise CommandProblem(f"{kind} {name!r} has no config {one!r}{suggestion(one, entries)}")
        changes = [ConfigChange(one, value, DELETE if value is None else SET) for one, value in values.items()]
        result = (await admin.alter_configs({resource: changes}, validate_only=dry))[resource]
        if result is not None:
            raise result

    online(bootstrap, timeout_s, work)


dry_run_option = click.option("--dry-run", is_flag=True, help="Validate the change without making it.")


@configs.command("set", short_help="Set configs.")
@cluster_options
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.argument("assignments", metavar="CONFIG=VALUE...", nargs=-1, required=True)
@dry_run_option
@friendly
def set_command(
    bootstrap: str, timeout: float, kind: str, name: str, assignments: tuple[str, ...], dry_run: bool
) -> None:
    """Set configs of a topic, broker or group. The others stay as they are.

    \b
    Example:
      kcoord configs set topic orders retention.ms=86400000
    """
    _change(bootstrap, timeout, kind, name, {**parse_assignments(assignments)}, dry_run)


@configs.command(short_help="Set configs back to their defaults.")
@cluster_options
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@click.argument("configs", metavar="CONFIG...", nargs=-1, required=True)
@dry_run_option
@friendly
def unset(bootstrap: str, timeout: float, kind: str, name: str, configs: tuple[str, ...], dry_run: bool) -> None:
    """Reset configs of a topic, broker or group to their defaults.

    \b
    Example:
      kcoord configs unset topic orders retention.ms
    """
    _change(bootstrap, timeout, kind, name, dict.fromkeys(configs), dry_run)
