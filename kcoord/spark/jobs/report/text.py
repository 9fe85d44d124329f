"""Text for the page. Names come from logs, so anybody may have chosen them: all text goes through `visible`."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Final

from kcoord.spark.reader.slices import TIME_MS_MAX

TEXT_MAX: Final = 200
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_MS_MIN: Final = -62_135_596_800_000
NONE: Final = "–"


def visible(value: object, limit: int = TEXT_MAX) -> str:
    """At most `limit` characters, none of which ends a line, turns the direction of writing or is not to be seen."""
    # Whatever is not to be seen becomes longer: no more of a text is looked at than could be shown.
    given = str(value)
    parts = [one if one.isprintable() else repr(one)[1:-1] for one in given[: limit + 1]]
    if len(given) <= limit and sum(map(len, parts)) <= limit:
        return "".join(parts)
    length = 0
    for number, part in enumerate(parts):
        length += len(part)
        if length > limit - 1:
            return "".join(parts[:number]) + "…"
    return "".join(parts) + "…"


def fitted(value: object, width: float) -> str:
    """`visible`, and cut in the middle to what is about `width` wide, in small letters: ends of names differ most."""
    text = visible(value)
    if sum(map(_width, text)) <= width:
        return text
    left, right = 0, len(text)
    space = width - 1
    while left < right:
        is_left = left <= len(text) - right
        need = _width(text[left if is_left else right - 1])
        if need > space:
            break
        space -= need
        left, right = (left + 1, right) if is_left else (left, right - 1)
    return f"{text[:left]}…{text[right:]}"


def _width(one: str) -> float:
    """In small letters of a font without serifs: how wide one is at most, in most fonts."""
    if unicodedata.east_asian_width(one) in "WF":
        return 2
    if one in "mwMW@%—…":
        return 1.7
    return 1.25 if one.isupper() or ord(one) > 0x2FF else 1


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def short_number(value: float) -> str:
    """For axes: 0.5, 20, 1,500, 2.5 M."""
    for size, unit in ((1e15, None), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value:.1e}" if unit is None else f"{value / size:,.6g} {unit}"
    return f"{value:,.6g}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit}"
    if abs(seconds) < 1 and seconds:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.3g} s"


def unit_of(seconds: float) -> tuple[int, str]:
    """In what unit an axis up to so many seconds is read best: its length in seconds, and its name."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return size, unit
    return 1, "s"


def time_of(at_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=min(max(at_ms, TIME_MS_MIN), TIME_MS_MAX))


def when(at_ms: int | None) -> str:
    return NONE if at_ms is None else f"{time_of(at_ms):%Y-%m-%d %H:%M:%S}"
