"""What a reset would do: from the wish and the offsets to the new offset of each partition. Pure functions."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kcoord.client.partition import TopicPartition

# In a file: delete the committed offset. Undo files have it for partitions that had none.
NO_OFFSET: Final = -1

EARLIEST: Final = "to-earliest"
LATEST: Final = "to-latest"
CURRENT: Final = "to-current"
OFFSET: Final = "to-offset"
SHIFT: Final = "shift-by"
TIME: Final = "to-datetime"
GIVEN: Final = "from-file"

ISO_DURATION: Final = re.compile(
    r"P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", re.IGNORECASE
)
UNITS_MS: Final = (604_800_000, 86_400_000, 3_600_000, 60_000, 1000)
# As many digits as the largest offset or time has.
DIGITS_MAX: Final = 19
TOO_LONG: Final = re.compile(rf"\d{{{DIGITS_MAX + 1}}}")
PARTITION: Final = re.compile(r"\d{1,10}")
OFFSET_IN_FILE: Final = re.compile(rf"-?\d{{1,{DIGITS_MAX}}}")


class PlanProblem(Exception):
    """The reset is not possible; the message says why."""


@dataclass(frozen=True, slots=True)
class Wish:
    """`number` is the offset, the shift or the Unix time in ms; `given` are offsets from a file or another group."""

    kind: str
    number: int = 0
    given: dict[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """The offsets of a partition: `committed` is None without one, `timed` the first one at the time or later."""

    committed: int | None
    start: int
    end: int
    timed: int | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """`new` is NO_OFFSET if the committed offset is deleted. `note` says that the wish could not be kept exactly."""

    group_id: str
    partition: TopicPartition
    old: int | None
    new: int
    note: str = ""


def change_of(group_id: str, partition: TopicPartition, wish: Wish, facts: Facts) -> Change:
    """Raises PlanProblem."""
    wanted = _wanted(partition, wish, facts)
    if wanted == NO_OFFSET and wish.kind == GIVEN:
        return Change(group_id, partition, facts.committed, NO_OFFSET)
    new = min(max(wanted, facts.start), facts.end)
    note = ""
    if wish.kind != CURRENT and new != wanted:
        which = "first" if new == facts.start and wanted < facts.start else "last"
        note = f"{wanted} is outside the log; the {which} offset is {new}"
    elif wish.kind == CURRENT:
        # As Kafka's tool: a committed offset stays as it is.
        new = wanted
    return Change(group_id, partition, facts.committed, new, note)


def _wanted(partition: TopicPartition, wish: Wish, facts: Facts) -> int:
    if wish.kind == EARLIEST:
        return facts.start
    if wish.kind == LATEST:
        return facts.end
    if wish.kind == CURRENT:
        return facts.end if facts.committed is None else facts.committed
    if wish.kind == OFFSET:
        return wish.number
    if wish.kind == SHIFT:
        if facts.committed is None:
            raise PlanProblem(f"partition {partition} has no committed offset to shift")
        # Below 0 is outside of every log; -1 has a meaning of its own only in files.
        return max(facts.committed + wish.number, -2)
    if wish.kind == TIME:
        return facts.end if facts.timed is None else facts.timed
    assert wish.given is not None
    return wish.given[partition]


def parse_duration_ms(text: str) -> int:
    """`P1DT2H30M`, or `90s`, `15m`, `2h`, `7d`. Raises PlanProblem."""
    if TOO_LONG.search(text) is not None:
        raise PlanProblem(f"a number of a duration has at most {DIGITS_MAX} digits")
    short = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    if short is not None:
        return int(short.group(1)) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[short.group(2)]
    match = ISO_DURATION.fullmatch(text)
    if match is None or not any(match.groups()) or text[-1] in "tT":
        raise PlanProblem(f"{text!r} is not a duration, such as P1DT2H30M, 90s, 15m, 2h or 7d")
    total_ms = sum(int(match.group(number + 1) or 0) * unit for number, unit in enumerate(UNITS_MS))
    return total_ms + int((match.group(6) or "").ljust(3, "0")[:3])


# --- files


def read_plan(lines: Iterable[str], groups: list[str]) -> dict[str, dict[TopicPartition, int]]:
    """Offsets by group from CSV: `topic,partition,offset` for one group, or `group,topic,partition,offset`.

    A header line is skipped. Raises PlanProblem with the number of the line.
    """
    found: dict[str, dict[TopicPartition, int]] = {}
    try:
        for number, row in enumerate(csv.reader(lines, strict=True), 1):
            if not row or (number == 1 and row[-1].strip().lower() in ("offset", "new_offset")):
                continue
            group_id, partition, offset = _parse_row(row, number, groups)
            if partition in found.setdefault(group_id, {}):
                raise PlanProblem(f"line {number}: partition {partition} is there twice")
            found[group_id][partition] = offset
    except csv.Error as error:
        raise PlanProblem(f"not a CSV file: {error}") from None
    except UnicodeDecodeError as error:
        raise PlanProblem(f"the file is not UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8") from None
    if not found:
        raise PlanProblem("the file has no offsets")
    return found


def _parse_row(row: list[str], number: int, groups: list[str]) -> tuple[str, TopicPartition, int]:
    if len(row) == 3:
        if len(groups) != 1:
            raise PlanProblem(f"line {number} names no group: give one group, or a file with a column for it")
        row = [groups[0], *row]
    # The group stays as it is: the id of a group may begin or end with spaces.
    group_id, *cells = row[:1] + [cell.strip() for cell in row[1:]]
    if (
        len(cells) != 3
        or PARTITION.fullmatch(cells[1]) is None
        or OFFSET_IN_FILE.fullmatch(cells[2]) is None
        or int(cells[2]) < NO_OFFSET
    ):
        raise PlanProblem(f"line {number}: expected topic,partition,offset or group,topic,partition,offset")
    if groups and group_id not in groups:
        raise PlanProblem(f"line {number} is about group {group_id!r}, which the command does not name")
    return group_id, TopicPartition(cells[0], int(cells[1])), int(cells[2])


def export_rows(changes: Iterable[Change], with_group: bool) -> list[list[str | int]]:
    """Lines that `read_plan` and Kafka's tool read."""
    rows: list[list[str | int]] = []
    for one in changes:
        row: list[str | int] = [one.partition.topic, one.partition.partition, one.new]
        rows.append([one.group_id, *row] if with_group else row)
    return rows


def undo_rows(changes: Iterable[Change]) -> list[list[str | int]]:
    """Lines that put the old offsets back."""
    return [
        [one.group_id, one.partition.topic, one.partition.partition, NO_OFFSET if one.old is None else one.old]
        for one in changes
    ]
