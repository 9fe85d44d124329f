"""A progress bar on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Final, Self, final

import click

# How many times a progress bar is drawn at most.
DRAWN_MAX: Final = 400


@final
class Bar:
    """A progress bar on stderr if that is a terminal and the output is not for programs; otherwise nothing.

    Use it as a context manager; `begin` shows the bar and `step` advances it.
    """

    is_drawn: ClassVar[bool] = False

    def __init__(self, is_for_people: bool = True) -> None:
        self._is_for_people = is_for_people
        self._stack = ExitStack()
        self._bar: Any = None
        self._left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if self._bar is not None and error is None and self._left > 0:
            # The part that did not have to be read.
            self._bar.update(self._left)
        self._stack.close()
        Bar.is_drawn = False

    def begin(self, label: str, total: int) -> None:
        context = click.get_current_context(silent=True)
        is_for_people = self._is_for_people and (context is None or context.params.get("output") not in ("json", "csv"))
        if not sys.stderr.isatty() or not is_for_people or total <= 0:
            return
        # Drawing the bar takes longer than most steps.
        least = max(total // DRAWN_MAX, 1)
        bar = click.progressbar(length=total, label=label, file=sys.stderr, update_min_steps=least)
        self._bar = self._stack.enter_context(bar)
        self._left = total
        Bar.is_drawn = True

    def step(self, count: int) -> None:
        if self._bar is not None and self._left > 0:
            count = min(count, self._left)
            self._left -= count
            self._bar.update(count)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar with a known total; yields a function that advances it."""
    with Bar() as bar:
        bar.begin(label, total)
        yield bar.step
