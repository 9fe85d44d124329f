"""Determines which files of a partition's directory are valid after a crash: the rules of Kafka's LogLoader.

A broker replaces segments by renames, one file after the other, in compaction and when it splits a segment whose
offsets overflow. For each new segment:

1. the cleaner writes `<base>.log.cleaned`, then its indexes, and syncs them;
2. `.cleaned` becomes `.swap`: new segments in descending order, of each `.log`, `.index`, `.timeindex`, `.txnindex`;
3. files of the old segments get the suffix `.deleted`, in ascending order;
4. the suffix `.swap` is removed from the new segments, in ascending order; `.deleted` files are removed a minute later.

The next start treats the files that a crash leaves as follows:

- `.deleted` files are removed.
- `.cleaned` files are removed. So are `.swap` files whose base offset is at least that of a `.cleaned` file: step 2 did
  not finish, and the old segments are complete.
- The other `.swap` files get their final names. Each `.log.swap` replaces the offsets from its base up to the end of
  its last batch: files of old segments that begin in this range are removed first. An empty one replaces only the
  segment with the same base. Old segments that begin after its last batch stay, with records that compaction removed.

All code that reads a broker's log, or a kcoord log that was not opened since a crash, gets its segments from here. A
state that no crash of a broker can leave, and in which records would be missing, is refused (ImpossibleFiles).

A broker splits a segment whose offsets overflow (written by brokers before 2.0) when it starts. Here its batches beyond
31 bits are damage, as they are without a crash.

kcoord's own exchange (exchange.py) differs; `is_own` selects its rules. It may replace several groups of segments at
once, with untouched segments in between. It renames a `.log` file after its indexes, and changes no old segment before
all renames to `.swap` are synced. So a `.log.swap` is always valid, even next to `.cleaned` files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, final

from kcoord.log.errors import ImpossibleFiles
from kcoord.log.segment import segment_name

CLEANED_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
DELETED_SUFFIX: Final = ".deleted"
# Deleted snapshots of the metadata log get this suffix; they have their own rules (metadata_checkpoint.py).
CHECKPOINT_DELETED: Final = ".checkpoint.deleted"
TEMPORARY_SUFFIXES: Final = (CLEANED_SUFFIX, SWAP_SUFFIX, DELETED_SUFFIX)
# A `.log` file, with the suffix that it has while segments are replaced.
SEGMENT_LOG: Final = re.compile(r"([0-9]{20})\.log(\.swap)?")
_NAME: Final = re.compile(r"([0-9]+)\.(.+)")
_KINDS: Final = frozenset(("log", "index", "timeindex", "txnindex", "snapshot"))
_BASE_DIGITS: Final = 20

# The reasons why a file is not valid; they also determine what the broker's next start does with it.
TO_BE_DELETED: Final = "is marked for deletion"
NOT_FINISHED: Final = "belongs to a compaction that did not finish"
UNDONE: Final = "belongs to an exchange that did not begin"
REPLACED: Final = "is replaced by a .swap file"


class UnknownEnd(Exception):
    """The end of a segment's last batch cannot be determined; the message is the reason."""


# Maps the name of a `.log` or `.log.swap` file to the offset after its last batch. Raises UnknownEnd and OSError.
NextOffset = Callable[[str], int]


@final
class DroppedFile:
    """A file that is not valid; `reason` is one of the constants above."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def __repr__(self) -> str:
        return f"{self.name} {self.reason}"


@final
class RecoveredFiles:
    """A partition's files as they are after recovery.

    `segments` are (base offset, current name of the `.log` file), in order. `names` maps a name after recovery to the
    current name, for files that recovery renames. `dropped` are the files that are not valid. `others` are all other
    names, segments included.
    """

    def __init__(self) -> None:
        self.segments: list[tuple[int, str]] = []
        self.names: dict[str, str] = {}
        self.dropped: list[DroppedFile] = []
        self.others: list[str] = []

    @property
    def is_interrupted(self) -> bool:
        """Whether recovery changes the set of records, compared with the `.log` files alone."""
        return bool(self.names) or any(one.reason == REPLACED for one in self.dropped)

    def present(self) -> list[str]:
        """The names after recovery, in order."""
        return sorted({*self.others, *self.names})


def is_temporary(name: str) -> bool:
    """Whether a name has a suffix that recovery handles."""
    return name.endswith(TEMPORARY_SUFFIXES)


def recover_files(
    directory: str, sizes: Mapping[str, int], next_offset_of: NextOffset, is_own: bool = False
) -> RecoveredFiles:
    """Determine the valid files of a partition's directory from their names and sizes in bytes.

    `next_offset_of` is called for each valid `.log.swap` file. `directory` is for messages. `is_own` means that kcoord,
    not a broker, wrote the log. Raises ImpossibleFiles, and OSError if `next_offset_of` does.
    """
    if not any(is_temporary(name) for name in sizes):
        found = RecoveredFiles()
        found.others = sorted(sizes)
        found.segments = [(int(name[:_BASE_DIGITS]), name) for name in found.others if _is_log(name)]
        return found
    return _Recovery(directory, sizes, next_offset_of, is_own).run()


def _is_log(name: str) -> bool:
    match = SEGMENT_LOG.fullmatch(name)
    return match is not None and match.group(2) is None


@final
class _Recovery:
    """One directory, in the order of LogLoader's passes."""

    def __init__(self, directory: str, sizes: Mapping[str, int], next_offset_of: NextOffset, is_own: bool) -> None:
        self.directory = directory
        self.sizes = sizes
        self.next_offset_of = next_offset_of
        self.is_own = is_own
        self.found = RecoveredFiles()
        self.logs = {int(name[:_BASE_DIGITS]) for name in sizes if _is_log(name)}

    def run(self) -> RecoveredFiles:
        found = self.found
        cleaned: list[str] = []
        swaps: list[str] = []
        plain: list[str] = []
        for name in sorted(self.sizes):
            if name.endswith(DELETED_SUFFIX) and not name.endswith(CHECKPOINT_DELETED):
                found.dropped.append(DroppedFile(name, TO_BE_DELETED))
            elif name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) and self._is_of_segment(name):
                (swaps if name.endswith(SWAP_SUFFIX) else cleaned).append(name)
            else:
                plain.append(name)
        lowest = min((_base_of(name) for name in cleaned), default=-1)
        undone = [name for name in swaps if cleaned and not self.is_own and _base_of(name) >= lowest]
        swaps = [name for name in swaps if name not in undone]
        self._check_sources(cleaned, undone)
        found.dropped += [DroppedFile(name, UNDONE) for name in undone]
        found.dropped += [DroppedFile(name, NOT_FINISHED) for name in cleaned]
        ranges = [self._range_of(name) for name in swaps if name.endswith(".log" + SWAP_SUFFIX)]
        self._check_between(swaps, ranges)
        found.names = {name.removesuffix(SWAP_SUFFIX): name for name in swaps}
        for name in plain:
            base = _base_or_none(name)
            is_old = base is not None and any(first <= base < end for first, end in ranges)
            if is_old or name in found.names:
                found.dropped.append(DroppedFile(name, REPLACED))
            else:
                found.others.append(name)
        found.segments = [(int(name[:_BASE_DIGITS]), name) for name in found.others if _is_log(name)]
        found.segments += [(base, found.names[segment_name(base) + ".log"]) for base, _ in ranges]
        found.segments.sort()
        return found

    def _is_of_segment(self, name: str) -> bool:
        """Whether a `.swap` or `.cleaned` file belongs to a segment. A broker writes no other such names."""
        match = _NAME.fullmatch(name)
        if match is None:
            return False
        kind = match.group(2).rpartition(".")[0]
        if len(match.group(1)) != _BASE_DIGITS or kind not in _KINDS:
            raise ImpossibleFiles(self.directory, [name], "not the name of a segment's file")
        return True

    def _range_of(self, name: str) -> tuple[int, int]:
        """The offsets that a `.log.swap` replaces: the base offset and the exclusive end."""
        base = _base_of(name)
        return base, base if self.sizes[name] == 0 else self._end_of(name)

    def _end_of(self, name: str) -> int:
        try:
            return max(self.next_offset_of(name), _base_of(name))
        except UnknownEnd as error:
            reason = f"its end offset, and so the segments it replaces, cannot be determined: {error}"
            raise ImpossibleFiles(self.directory, [name], reason) from None

    def _check_sources(self, cleaned: list[str], undone: list[str]) -> None:
        """Check that the old segments exist if new segments are dropped; otherwise records would be missing.

        The lowest new segment has the base of the oldest one that it replaces. Only a split may start at a larger one:
        after compaction the first batch of the old segment need not be at its base.
        """
        new = [name for name in (*cleaned, *undone) if ".log." in name]
        # In kcoord's logs the old segments may be removed: DeleteRecords does not wait for the cleaner.
        if not new or self.is_own:
            return
        lowest = min(_base_of(name) for name in (*cleaned, *undone))
        if lowest in self.logs:
            return
        source = max((base for base in self.logs if base < lowest), default=-1)
        if source >= 0 and self._end_of(f"{segment_name(source)}.log") > lowest:
            return
        reason = f"its source, the segment {segment_name(lowest)}.log, is missing"
        raise ImpossibleFiles(self.directory, new, reason)

    def _check_between(self, swaps: list[str], ranges: list[tuple[int, int]]) -> None:
        """Check that no segment lies between several new ones. Only a split creates several, and without gaps.

        The broker's next start would remove all segments between the first and the last of them.
        """
        if len(ranges) < 2 or self.is_own:
            return
        first = min(base for base, _ in ranges)
        beyond = max(end for _, end in ranges)
        own = {base for base, _ in ranges}
        between = [base for base in sorted(self.logs - own) if first < base < beyond]
        if between:
            names = [f"{segment_name(base)}.log" for base in between]
            new = [name for name in swaps if name.endswith(".log" + SWAP_SUFFIX)]
            reason = "segments between the new ones of one exchange; the broker's next start would remove them"
            raise ImpossibleFiles(self.directory, [*new, *names], reason)


def _base_of(name: str) -> int:
    return int(name[:_BASE_DIGITS])


def _base_or_none(name: str) -> int | None:
    """The offset in a name as the broker parses it: the part before the first full stop."""
    stem, dot, _ = name.partition(".")
    return int(stem) if dot and stem.isascii() and stem.isdecimal() else None
