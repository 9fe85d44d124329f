"""The convention of docs/commands.md, for every command and option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click
import pytest

from kcoord.cli.lazy import LazyGroup
from kcoord.cli.main import main
from kcoord.cli.options import OUTPUTS, AliasedOption

# Commands that print no result: a server, single changes without a result, a script, and records in forms of their own.
WITHOUT_OUTPUT: Final = {"serve", "consume", "completion", "configs set", "configs unset"}
# Facts about one thing, in lines of text.
TEXT_OR_JSON: Final = {"health", "version"}
# What a short option means, wherever it is.
MEANINGS: Final = {
    "-b": {"--bootstrap"},
    "-d": {"--data"},
    "-g": {"--group"},
    "-h": {"--help"},
    "-n": {"--limit"},
    "-o": {"--output"},
    "-p": {"--partition"},
    "-t": {"--topic"},
    "-w": {"--watch"},
    "-z": {"--compression"},
}
SHORT_HELP_MAX: Final = 60


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def groups(group: click.Group) -> Iterator[click.Group]:
    yield group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command)


COMMANDS: Final = dict(commands(main))


def options(name: str) -> list[click.Option]:
    return [one for one in COMMANDS[name].params if isinstance(one, click.Option)]


def test_the_walk_finds_commands() -> None:
    assert {"serve", "groups list", "log dump", "pipeline lag", "transactions abort", "trace"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_output(name: str) -> None:
    """-o, --output is the format; it is one of table, json and csv wherever a table is printed."""
    found = [one for one in options(name) if one.name == "output"]
    if name in WITHOUT_OUTPUT:
        assert not found
        return
    (output,) = found
    assert output.opts[:2] == ["--output", "-o"]
    assert isinstance(output.type, click.Choice)
    if name in TEXT_OR_JSON:
        assert tuple(output.type.choices) == ("text", "json")
    else:
        assert tuple(output.type.choices)[:3] == OUTPUTS
        assert output.default in ("table", ("table",))


@pytest.mark.parametrize("name", COMMANDS)
def test_short_options(name: str) -> None:
    """A short option means the same in all commands."""
    for option in options(name):
        for short in (one for one in option.opts if len(one) == 2):
            if short in MEANINGS:
                assert MEANINGS[short] & set(option.opts), f"{short} of {name} is {option.opts}"
        for short, meanings in MEANINGS.items():
            if meanings & set(option.opts) and short != "-h":
                assert short in option.opts, f"{option.opts} of {name} has no {short}"


@pytest.mark.parametrize("name", COMMANDS)
def test_numbers(name: str) -> None:
    """Partitions and limits are not negative; both are called N."""
    for option in options(name):
        if {"-p", "-n"} & set(option.opts):
            assert isinstance(option.type, click.IntRange), option.opts
            assert (option.type.min or 0) >= 0
            assert option.metavar == "N"


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name: str) -> None:
    """Every option is explained, and the directory is DIR."""
    for option in options(name):
        assert option.help or option.hidden, option.opts
        if "--data" in option.opts:
            assert option.metavar == "DIR"
    command = COMMANDS[name]
    for argument in command.params:
        if isinstance(argument, click.Argument) and argument.name == "directory":
            assert argument.metavar == "DIR"
    assert command.help


def test_short_helps_are_one_line() -> None:
    for group in groups(main):
        assert isinstance(group, LazyGroup)
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            assert command is not None
            text = group.lazy[name][1] if name in group.lazy else command.short_help or ""
            assert 0 < len(text) <= SHORT_HELP_MAX and text.endswith(".") and "..." not in text, (name, text)


def test_old_names_work_and_are_not_shown() -> None:
    aliases = {
        (name, alias)
        for name in COMMANDS
        for option in options(name)
        if isinstance(option, AliasedOption)
        for alias in option.aliases
    }
    assert aliases >= {
        ("topics create", "-p"), ("topics alter", "-p"), ("transactions list", "-p"), ("pipeline lag", "--show"),
        ("pipeline lag", "--output-format"),
    }  # fmt: skip
    for name, alias in aliases:
        command = COMMANDS[name]
        context = click.Context(command)
        assert not any(alias in option.opts for option in options(name))
        parser = command.make_parser(context)
        assert alias in {**parser._short_opt, **parser._long_opt}
