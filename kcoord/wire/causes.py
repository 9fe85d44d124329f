"""Exceptions that other exceptions have caused, in code that may be native."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def caused_by(error: E, cause: BaseException) -> E:
    """The error, with its cause. To be raised as `raise caused_by(error, cause) from cause`: native code ignores the
    second half, and without it linters and readers would miss it.
    """
    error.__cause__ = cause
    return error
