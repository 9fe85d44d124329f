"""docs/cli.md, which is generated from the commands."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from kcoord.cli.reference import page, plain, words

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: make gen"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\n  two", "one two"),
        ("set --topic or __consumer_offsets-0", "set `--topic` or `__consumer_offsets-0`"),
        ("files *.cut in <DIR>", "files \\*.cut in &lt;DIR>"),
        ("see `a|b` or a|b", "see `a\\|b` or a\\|b"),
        ("the KCOORD_* variables", "the `KCOORD_*` variables"),
    ],
)
def test_text_has_no_marks_but_those_of_code(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_examples_keep_their_lines() -> None:
    @click.command()
    def show() -> None:
        """Show it.

        \b
        Examples:
          kcoord show |
            jq .
        """

    assert words(click.Context(show)) == "Show it.\n\nExamples:\n\n    kcoord show |\n      jq ."
