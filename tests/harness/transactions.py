"""Transactions on a data plane: a gate that a test opens, and markers."""

from __future__ import annotations

from kcoord.core.outcome import Marker
from kcoord.engine.transaction_gate import TransactionGate
from kcoord.protocol.errors import INVALID_TXN_STATE, NONE
from kcoord.wire.record_batch import TRANSACTIONAL_FLAG
from tests.harness.batches import batch


class OpenGate(TransactionGate):
    """Lets everything pass but what was closed: (producer id, topic, partition)."""

    def __init__(self) -> None:
        self.closed: dict[tuple[int, str, int], int] = {}
        self.asked: list[tuple[str | None, int, int, str, int, int]] = []

    def close(self, producer_id: int, topic: str = "t", partition: int = 0, error: int = INVALID_TXN_STATE) -> None:
        self.closed[(producer_id, topic, partition)] = error

    def check_write(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        version: int,
    ) -> int:
        self.asked.append((transactional_id, producer_id, producer_epoch, topic, partition, version))
        return self.closed.get((producer_id, topic, partition), NONE)


def transactional(
    values: list[bytes], producer_id: int, sequence: int = 0, epoch: int = 0, key: bytes | None = None
) -> bytes:
    """A batch of a transaction, as a client sends it."""
    return batch(
        values,
        key,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_FLAG,
    )


def marker(
    producer_id: int,
    is_commit: bool,
    epoch: int = 0,
    topic: str = "t",
    partition: int = 0,
    coordinator_epoch: int = 0,
    version: int = 1,
) -> Marker:
    return Marker(topic, partition, producer_id, epoch, is_commit, coordinator_epoch, version)
