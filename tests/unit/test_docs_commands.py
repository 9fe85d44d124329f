"""The command lines of README and docs: each command and option exists, and has the values and arguments that it takes.

They are only parsed, not run. A line stands in a block or in code within a sentence. Words in capitals and in brackets
are placeholders.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kcoord.cli.main import main
from kcoord.cli.settings_options import load_settings
from kcoord.server.settings.table import SETTINGS
from tests.unit.test_docs_links import OF_THE_SITE

ROOT = Path(__file__).resolve().parents[2]
# docs/cli.md is generated from the commands, and CHANGELOG.md describes those of earlier versions.
PAGES = [page for page in OF_THE_SITE if page not in ("CHANGELOG.md", "docs/cli.md")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "console")
INDENTED = re.compile(r"^ {4,}(\S.*)$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(kcoord [^`]+)`(?!`)")
# What ends a command in a line of a shell.
ENDS = re.compile(r"[|;&<>]+")
OUTPUT = ("ready", "control", "--help")
SETTING_NAMES = {name for setting in SETTINGS for name in (setting.name, *(alias for alias, _ in setting.aliases))}


def lines(text: str) -> Iterator[str]:
    """The lines in which a command may be."""
    for language, code in FENCE.findall(text):
        if language in SHELL:
            yield from code.replace("\\\n", " ").splitlines()
    outside = FENCE.sub("", text)
    yield from INDENTED.findall(outside.replace("\\\n", " "))
    # A sentence may name an option without its value.
    yield from (
        re.sub(r"(--[a-z-]+)$", r"\1 X", code.replace("\\|", "|").replace("\n", " "))
        for code in INLINE.findall(outside)
    )


def commands(line: str) -> Iterator[list[str]]:
    """The words after `kcoord` of each command of the line."""
    words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
    words.commenters = "#"
    words.whitespace_split = True
    words.escape = ""
    found: list[str] | None = None
    try:
        every = list(words)
    except ValueError:  # an apostrophe: a sentence, not a command
        return
    for at, word in enumerate([*every, ";"]):
        # `docker compose exec kcoord kcoord`: a service of this name.
        if found is not None and (found or word != "kcoord"):
            if not ENDS.fullmatch(word):
                found.append(word)
                continue
            if found:
                yield found
            found = None
        elif re.fullmatch(r"(\S*/)?kcoord", word) and is_program(every[:at]):
            found = []


def is_program(before: list[str]) -> bool:
    """Whether the next word is the name of a program, after these words of the line."""
    return (
        not before or ENDS.fullmatch(before[-1]) is not None or before[-1] in ("until", "exec") or "exec" in before[:-1]
    )


def problem(words: list[str]) -> str:
    """What is wrong with the words after `kcoord`; empty if nothing is."""
    if words[0] in OUTPUT:
        return ""
    # Brackets and dots say that something is optional or may be repeated.
    words = [word.strip("[]").replace("]", "").removesuffix("...") or "X" for word in words]
    command: click.Command = main
    context = click.Context(main, info_name="kcoord")
    while isinstance(command, click.Group) and words:
        default = vars(type(command)).get("default_command")
        if default and command.get_command(context, words[0]) is None:
            words.insert(0, default)
        child = command.get_command(context, words[0])
        if child is None:
            return "" if words[0].isupper() else f"no command {words[0]}"
        context = click.Context(child, parent=context, info_name=words.pop(0))
        command = child
    try:
        values, rest, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.params:
            check(context, parameter, values.get(parameter.name or ""))
    except click.UsageError as error:
        return error.format_message()
    return f"unexpected {rest}" if rest and rest != ["X"] else ""


def check(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Raise UsageError if a parameter does not take the value."""
    if parameter.name == "assignments" and isinstance(value, list):
        for name in (one.partition("=")[0] for one in value):
            if not name.isupper() and name not in SETTING_NAMES:
                raise click.UsageError(f"no setting {name}")
    if isinstance(parameter.type, click.Choice):
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, str) and not re.search(r"[A-Z|]", one):
                parameter.type.convert(one, parameter, context)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_can_be_parsed(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    wrong = [(words, problem(words)) for line in lines(text) for words in commands(line)]
    assert [one for one in wrong if one[1]] == []


def test_command_lines_are_found() -> None:
    texts = [(ROOT / page).read_text("utf-8") for page in PAGES]
    assert len([words for text in texts for line in lines(text) for words in commands(line)]) > 200
    text = (
        "    /opt/bin/kcoord health | jq .\n\n`kcoord topics\nlist`\n\n```sh\necho a | kcoord produce \\\n o # x\n```\n"
    )
    assert [words for line in lines(text) for words in commands(line)] == [
        ["produce", "o"],
        ["health"],
        ["topics", "list"],
    ]


@pytest.mark.parametrize(
    "line",
    [
        "frobnicate",
        "topics lst",
        "health --bootstap x",
        "groups list -o xml",
        "health x",
        "groups reset --topic",
        "serve --set a.b=1",
    ],
)
def test_mistakes_are_found(line: str) -> None:
    assert problem(line.split())


SETTINGS_FILES = [
    (page, code)
    for page in PAGES
    for language, code in FENCE.findall((ROOT / page).read_text("utf-8"))
    if language == "toml" and "listeners" in code
]


@pytest.mark.parametrize(("page", "code"), SETTINGS_FILES)
def test_files_of_settings_are_valid(page: str, code: str, tmp_path: Path) -> None:
    file = tmp_path / "kcoord.toml"
    file.write_text(code)
    assert load_settings(config_file=str(file)).listeners


def test_files_of_settings_are_found() -> None:
    assert len(SETTINGS_FILES) >= 2
