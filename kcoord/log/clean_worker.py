"""Runs the cleaner in a separate process: `python -m kcoord.log.clean_worker`, for one request.

The answer holds the result, or `damaged` (a message) if a segment cannot be read, or `error`. The process only reads
closed segments and writes `.cleaned` files into the log's directory. It runs at a low priority.
`kcoord.log.parent` describes the protocol.
"""

from __future__ import annotations

from typing import Any, Final

from kcoord.log.cleaner import CleanConfig, CleanedGroup, CleanResult, clean
from kcoord.log.errors import LogDamaged
from kcoord.log.exchange import CLEANED_SUFFIX
from kcoord.log.pace import SHARE_MIN, GentlePace, find_processors
from kcoord.log.parent import LogFiles, Parent

# How much the process yields to others. Beside processors that are busy all the time, the lowest priority gets next to
# nothing of them, whatever share it may use. So the priority rises with the share, up to a normal one.
NICENESS_MAX: Final = 19
NORMAL_SHARE: Final = 0.8
CONFIG_FIELDS: Final = (
    "delete_retention_ms",
    "segment_bytes",
    "index_interval_bytes",
    "keys_max",
    "decompressed_bytes_max",
)
RESULT_FIELDS: Final = ("end", "bytes_before", "bytes_after", "records_before", "records_after")
GROUP_FIELDS: Final = ("base", "old_bases")


class CleanRequest:
    """What to clean: segments `bases` of the log `directory` in the data directory `root`."""

    def __init__(
        self,
        root: str,
        directory: str,
        bases: list[int],
        first_dirty: int,
        config: CleanConfig,
        now_ms: int,
        producers: list[int] | None,
        share_min: float,
    ) -> None:
        self.root = root
        self.directory = directory
        self.bases = bases
        self.first_dirty = first_dirty
        self.config = config
        self.now_ms = now_ms
        self.producers = producers
        # The least part of a processor's time that the process may use.
        self.share_min = share_min

    def encode(self) -> dict[str, Any]:
        """The request as JSON fields for the child process."""
        return {**vars(self), "config": fields_of(self.config, CONFIG_FIELDS), "niceness": niceness_for(self.share_min)}


def niceness_for(share_min: float) -> int:
    """The niceness of a process that may use this part of a processor in any case."""
    rising = (share_min - SHARE_MIN) / (NORMAL_SHARE - SHARE_MIN)
    return round(NICENESS_MAX * (1.0 - min(max(rising, 0.0), 1.0)))


def fields_of(thing: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Like `vars`, but also for objects of compiled classes."""
    return {name: getattr(thing, name) for name in names}


class CleanFailed(OSError):
    """The cleaning produced no result; the message is the reason."""


def decode_request(work: dict[str, Any]) -> CleanRequest:
    return CleanRequest(
        work["root"],
        work["directory"],
        work["bases"],
        work["first_dirty"],
        CleanConfig(**work["config"]),
        work["now_ms"],
        work["producers"],
        work["share_min"],
    )


def encode_result(result: CleanResult) -> dict[str, Any]:
    groups = [fields_of(group, GROUP_FIELDS) for group in result.groups]
    return {**fields_of(result, RESULT_FIELDS), "groups": groups}


def decode_result(answer: dict[str, Any]) -> CleanResult:
    """Raises LogDamaged if the process found damage, CleanFailed if it failed or its answer is invalid."""
    try:
        if "damaged" in answer:
            found = LogDamaged(
                str(answer["file"]), int(answer["offset"]), int(answer["position"]), str(answer["damaged"])
            )
        elif "error" in answer:
            raise CleanFailed(str(answer["error"]))
        else:
            return _result_of(answer)
    except (KeyError, TypeError, ValueError) as error:
        raise CleanFailed(f"the answer is invalid: {error!r}") from None
    raise found


def _result_of(answer: dict[str, Any]) -> CleanResult:
    result = CleanResult(int(answer["end"]))
    for name in RESULT_FIELDS:
        setattr(result, name, int(answer[name]))
    for group in answer["groups"]:
        result.groups.append(CleanedGroup(int(group["base"]), [int(base) for base in group["old_bases"]]))
    return result


def reply(request: CleanRequest, storage: LogFiles) -> dict[str, Any]:
    producers = None if request.producers is None else frozenset(request.producers)
    try:
        result = clean(
            storage,
            request.directory,
            request.bases,
            request.first_dirty,
            request.config,
            request.now_ms,
            producers,
            GentlePace(request.share_min, find_processors()),
        )
    except LogDamaged as damage:
        return {
            "damaged": damage.reason,
            "file": damage.file,
            "offset": damage.offset,
            "position": damage.position,
        }
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return encode_result(result)


def main() -> None:
    parent = Parent()
    request = decode_request(parent.work)
    parent.answer(reply(request, LogFiles(request.root, (CLEANED_SUFFIX,), parent.meter)))
    parent.end()


if __name__ == "__main__":
    main()
