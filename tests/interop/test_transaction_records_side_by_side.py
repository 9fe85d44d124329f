"""The same scripts leave the same records in __transaction_state and the same transactional batches in
__consumer_offsets, on a real broker and on kcoord.

Records are compared by transactional id in the order of the log. Producer ids are numbered by appearance, and times are
left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcoord.log.reader import DamagedBytes, read_batches
from kcoord.log.serde import decode_record, decode_transaction_record
from kcoord.protocol.records.offset_commit import OffsetCommitKey, OffsetCommitValue
from kcoord.protocol.records.transaction_log import TransactionLogKey, TransactionLogValue
from tests.harness import broker_scripts
from tests.harness.broker_scripts_transactions import TRANSACTION_SCRIPTS
from tests.harness.consumer_session import read_log
from tests.harness.kcoord_server import KcoordServer
from tests.harness.present import present
from tests.harness.real_broker import RealBroker
from tests.harness.session import KcoordCodec, Session

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")

DECOMPRESSED_BYTES_MAX = 1 << 24

Records = dict[str, list[str]]


class Numbers:
    """Producer ids by appearance; -1 stays."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {-1: "none"}

    def of(self, producer_id: int) -> str:
        return self._known.setdefault(producer_id, f"<producer {len(self._known)}>")


def shown(version: int, value: TransactionLogValue, numbers: Numbers) -> str:
    """A record in one line, without what differs from run to run."""
    partitions: Any = None
    if value.transaction_partitions is not None:
        partitions = sorted((one.topic, sorted(one.partition_ids)) for one in value.transaction_partitions)
    producers = [numbers.of(one) for one in (value.producer_id, value.previous_producer_id, value.next_producer_id)]
    return (
        f"v{version} {STATES[value.transaction_status]} {' '.join(producers)} epoch {value.producer_epoch} "
        f"timeout {value.transaction_timeout_ms} {partitions} started {value.transaction_start_timestamp_ms > 0} "
        f"updated {value.transaction_last_update_timestamp_ms > 0} client {value.client_transaction_version}"
    )


def by_id(data: Path) -> Records:
    found: Records = {}
    numbers: dict[str, Numbers] = {}
    for directory in sorted(data.glob("__transaction_state-*")):
        for record in (one for batch in read_log(directory) for one in batch):
            key, value = decode_transaction_record(present(record.key), record.value)
            assert isinstance(key, TransactionLogKey)
            own = numbers.setdefault(key.transactional_id, Numbers())
            text = "tombstone"
            if value is not None:
                assert isinstance(value, TransactionLogValue)
                text = shown(int.from_bytes(present(record.value)[:2], "big"), value, own)
            found.setdefault(key.transactional_id, []).append(text)
    return found


def offsets_by_group(data: Path) -> Records:
    """The transactional batches of committed offsets by group."""
    found: Records = {}
    for directory in sorted(data.glob("__consumer_offsets-*")):
        for item in read_batches(str(directory)):
            assert not isinstance(item, DamagedBytes)
            header = item.header
            if not header.is_transactional or header.is_control:
                continue
            text = f"attributes {header.attributes:#x} epoch {header.producer_epoch} sequence {header.base_sequence}"
            group = ""
            for record in item.records(DECOMPRESSED_BYTES_MAX):
                key, value = decode_record(present(record.key), record.value)
                assert isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue)
                group = key.group
                text += f" {key.topic}-{key.partition}={value.offset} {value.leader_epoch} {value.metadata!r}"
            found.setdefault(group, []).append(text)
    return found


def after_scripts(server: KcoordServer | RealBroker) -> tuple[Records, Records]:
    for script in TRANSACTION_SCRIPTS:
        broker_scripts.run(script, Session("127.0.0.1", server.port, KcoordCodec()))
    return by_id(server.data), offsets_by_group(server.data)


@pytest.fixture(scope="module")
def both() -> tuple[tuple[Records, Records], tuple[Records, Records]]:
    with RealBroker() as broker:
        expected = after_scripts(broker)
    with KcoordServer() as server:
        actual = after_scripts(server)
    for transactions, _ in (expected, actual):
        # It is asked for until the broker is ready.
        transactions.pop("txn-warm-up")
    return expected, actual


def differences(expected: Records, actual: Records) -> list[str]:
    different = []
    for name in sorted({**expected, **actual}):
        records, ours = expected.get(name, []), actual.get(name, [])
        for index in range(max(len(records), len(ours))):
            pair = [side[index] if index < len(side) else None for side in (records, ours)]
            if pair[0] != pair[1]:
                different.append(f"{name}[{index}]:\n  Kafka  {pair[0]}\n  kcoord {pair[1]}")
    return different


def test_same_transactions(both: tuple[tuple[Records, Records], tuple[Records, Records]]) -> None:
    expected, actual = both
    assert len(expected[0]) > 50
    for version in (3, 4, 5):
        for records in (expected[0], actual[0]):
            # Then a producer names an older epoch, and is refused (see test_broker_answers.ALLOWED).
            del records[f"txi-ids-{version}"][8:]
    different = differences(expected[0], actual[0])
    assert not different, "\n".join(different)


def test_same_offsets(both: tuple[tuple[Records, Records], tuple[Records, Records]]) -> None:
    expected, actual = both
    assert len(expected[1]) > 10
    for group, batches in expected[1].items():
        if group.startswith("txc-simple"):
            # A broker takes a commit with another transactional id (see test_broker_answers.ALLOWED).
            del batches[1]
    different = differences(expected[1], actual[1])
    assert not different, "\n".join(different)
