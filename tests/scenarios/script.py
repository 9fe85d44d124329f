"""The scenario file format: blocks of comments, one command, a line of dashes, and what is expected of it.

    # Why this step is there.
    join client=a group=g protocols=range:00
    ----
    reply a: JoinGroup MEMBER_ID_REQUIRED member_id=a-#1

Blocks end with an empty line. A command is a word followed by `key=value` pairs and bare words; values with spaces
are quoted as in a shell.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

RULE = "----"


@dataclass
class Block:
    comments: list[str]
    command: str
    line: int
    expected: list[str] = field(default_factory=list)


@dataclass
class Command:
    """`words` are the arguments without a key, in order."""

    name: str
    words: list[str]
    options: dict[str, str]

    def text(self, key: str, default: str = "") -> str:
        return self.options.pop(key, default)

    def optional(self, key: str) -> str | None:
        return self.options.pop(key, None)

    def number(self, key: str, default: int) -> int:
        value = self.options.pop(key, None)
        return default if value is None else int(value)

    def flag(self, key: str) -> bool:
        return self.options.pop(key, "no") == "yes"

    def names(self, key: str) -> list[str]:
        value = self.options.pop(key, "")
        return value.split(",") if value else []

    def done(self) -> None:
        """Complain about options that nobody asked for: a misspelt one would be silently ignored."""
        if self.options:
            raise ValueError(f"{self.name}: unknown {', '.join(self.options)}")


def parse_script(text: str) -> list[Block]:
    blocks: list[Block] = []
    comments: list[str] = []
    current: Block | None = None
    in_output = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            if current is not None:
                blocks.append(current)
                current = None
            elif comments:
                comments.append("")
            in_output = False
        elif current is None and line.startswith("#"):
            comments.append(line)
        elif current is None:
            current = Block(comments, line.strip(), number)
            comments = []
        elif not in_output:
            if line != RULE:
                raise ValueError(f"line {number}: {RULE} expected after a command")
            in_output = True
        else:
            current.expected.append(line)
    if current is not None:
        blocks.append(current)
    return blocks


def format_script(blocks: list[Block]) -> str:
    parts: list[str] = []
    for block in blocks:
        lines = [*block.comments, block.command, RULE, *block.expected]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def parse_command(line: str) -> Command:
    words: list[str] = []
    options: dict[str, str] = {}
    name, *rest = shlex.split(line)
    for part in rest:
        key, equals, value = part.partition("=")
        # `t:0=5` is an offset, not an option.
        if equals and ":" not in key:
            options[key] = value
        else:
            words.append(part)
    return Command(name, words, options)
