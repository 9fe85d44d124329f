"""Record batches parsed and checked in one call, which the server does in steps."""

from __future__ import annotations

from kcoord.wire.produced_batch import BatchCheck, CheckBudget, ProducedBatch, ProduceLimits
from kcoord.wire.record_batch import HEADER_BYTES, BatchHeader, parse_header


def parse_batches(buf: bytes) -> list[BatchHeader]:
    """The headers of all whole batches in `buf`, as a fetch gives them: the last one may be cut short.

    Raises DecodeError for what is not a batch. Checksums are not checked.
    """
    headers: list[BatchHeader] = []
    pos = 0
    end = len(buf)
    while end - pos >= HEADER_BYTES:
        header = parse_header(buf, pos, True)
        if header.size > end - pos:
            break
        headers.append(header)
        pos += header.size
    return headers


def validate_produced_batch(
    records: bytes | None, api_version: int, now_ms: int, limits: ProduceLimits
) -> ProducedBatch:
    """Check the records of one partition of a Produce request at once; see BatchCheck."""
    check = BatchCheck(records, api_version, now_ms, limits)
    check.step(CheckBudget())
    result = check.result
    if result is None:
        raise ValueError("a check without bounds did not end")
    return result
