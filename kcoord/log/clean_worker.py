"""The cleaner as a process of its own: `python -m kcoord.log.clean_worker`, a request on standard input.

The request is one line, a JSON object with the fields of `CleanRequest`, and when standard input ends before the work
does, so does the process: a server that was killed leaves nobody behind who writes files. The answer, on standard
output, is one object with the result, or with `damaged` (a message) where a segment cannot be read. The process reads
closed segments and writes `.cleaned` files in the log's directory, nothing else, and gives way to everybody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from kcoord.log.cleaner import CleanConfig, CleanedGroup, CleanResult, clean
from kcoord.log.errors import LogDamaged
from kcoord.log.pace import GentlePace
from kcoord.log.parent import end_with_parent
from kcoord.log.storage import DiskStorage

NICENESS: Final = 19
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
    ) -> None:
        self.root = root
        self.directory = directory
        self.bases = bases
        self.first_dirty = first_dirty
        self.config = config
        self.now_ms = now_ms
        self.producers = producers

    def encode(self) -> bytes:
        return json.dumps({**vars(self), "config": fields_of(self.config, CONFIG_FIELDS)}).encode()


def fields_of(thing: object, names: tuple[str, ...]) -> dict[str, Any]:
    """What `vars` would say, of a native object too."""
    return {name: getattr(thing, name) for name in names}


class CleanFailed(OSError):
    """The process ended without a result; the message says what it said."""


def decode_request(data: bytes) -> CleanRequest:
    fields = json.loads(data)
    fields["config"] = CleanConfig(**fields["config"])
    return CleanRequest(**fields)


def encode_result(result: CleanResult) -> bytes:
    groups = [fields_of(group, GROUP_FIELDS) for group in result.groups]
    return json.dumps({**fields_of(result, RESULT_FIELDS), "groups": groups}).encode()


def decode_result(data: bytes, directory: str) -> CleanResult:
    """Raises LogDamaged where the process found damage."""
    fields: dict[str, Any] = json.loads(data)
    if "damaged" in fields:
        raise LogDamaged(fields["file"], fields["offset"], fields["position"], fields["damaged"])
    result = CleanResult(fields["end"])
    for name in RESULT_FIELDS:
        setattr(result, name, fields[name])
    result.groups = [CleanedGroup(group["base"], group["old_bases"]) for group in fields["groups"]]
    return result


def run_worker(request: CleanRequest, started: Callable[[subprocess.Popen[bytes]], None]) -> CleanResult:
    """Clean in a child process and wait for it. Raises CleanFailed, LogDamaged and OSError."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "kcoord.log.clean_worker"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started(process)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        try:
            process.stdin.write(request.encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            # It says below why it ended.
            pass
        # Both are short: the answer is one line, and of errors there is a last one.
        out = process.stdout.read()
        err = process.stderr.read()
        process.wait()
        try:
            # Not before: an open one tells the process that we are there.
            process.stdin.close()
        except BrokenPipeError:
            # What it did not read is written once more.
            pass
    if process.returncode != 0:
        last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise CleanFailed(f"the cleaner ended with {process.returncode}: {last}")
    return decode_result(out, request.directory)


def answer(request: CleanRequest) -> bytes:
    producers = None if request.producers is None else frozenset(request.producers)
    try:
        result = clean(
            DiskStorage(request.root),
            request.directory,
            request.bases,
            request.first_dirty,
            request.config,
            request.now_ms,
            producers,
            GentlePace(),
        )
    except LogDamaged as damage:
        fields = {
            "damaged": damage.reason,
            "file": damage.file,
            "offset": damage.offset,
            "position": damage.position,
        }
        return json.dumps(fields).encode()
    return encode_result(result)


def main() -> None:
    os.nice(NICENESS)
    request = decode_request(sys.stdin.buffer.readline())
    end_with_parent()
    sys.stdout.buffer.write(answer(request))


if __name__ == "__main__":
    main()
