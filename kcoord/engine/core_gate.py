"""Whether a transactional batch may be appended: asks the transaction coordinator, and adds partitions on its behalf.

A producer on transaction version 1 adds partitions to its transaction with AddPartitionsToTxn before it writes to them.
On version 2 (Produce v12, KIP-890) a write adds its partitions itself. `begin` does that before the request is planned:
the record goes into the commit of the batches, or into an earlier one, and the answer to Produce waits for both. If a
crash keeps the batches without the record, the next start aborts them (see Engine.load).

A request may wait between its plan and its append, so the produce handler asks `check_write` at both. At the append the
transaction may be over. Then the write is refused: it must not become part of the producer's next transaction
(KAFKA-14402).
"""

from __future__ import annotations

from typing import Final, cast, final

from kcoord.core.coordinator import Core
from kcoord.core.outcome import Now, Outcome, Request
from kcoord.core.transactions.partitions import PRODUCE_VERSION_2_FROM, produce_error
from kcoord.engine.partitions import PartitionTable
from kcoord.engine.produce import TOPIC_IDS_FROM, has_several_producers, is_transactional, producer_of
from kcoord.engine.transaction_gate import TransactionGate
from kcoord.protocol.errors import NONE
from kcoord.protocol.produce import ProduceRequest

NO_PRODUCER: Final = -1


@final
class CoreGate(TransactionGate):
    """The gate in front of the logs, with the core's transactions behind it."""

    def __init__(self, core: Core, table: PartitionTable) -> None:
        super().__init__()
        self.core = core
        self.table = table
        # The error of adding partitions, for the request that is being planned.
        self.error = NONE

    def begin(self, request: Request, now: Now) -> Outcome | None:
        """Add the partitions of a Produce request to its transaction where its version does that.

        The caller applies the outcome before it handles the request.
        """
        self.error = NONE
        body = cast(ProduceRequest, request.body)
        if body.transactional_id is None or request.version < PRODUCE_VERSION_2_FROM or has_several_producers(body):
            return None
        partitions: list[tuple[str, int]] = []
        producer_id, epoch = NO_PRODUCER, NO_PRODUCER
        for topic in body.topic_data:
            if request.version >= TOPIC_IDS_FROM:
                served = self.table.topic_by_id(topic.topic_id)
            else:
                served = self.table.topic(topic.name)
            if served is None:
                continue
            for data in topic.partition_data:
                records = data.records
                if records is None or not is_transactional(records):
                    continue
                tp = self.table.find(served.name, data.index)
                if tp is None:
                    continue
                producer_id, epoch = producer_of(records)
                # A partition that refuses the batch for its epoch does not become part of the transaction.
                if not tp.producers.is_fenced(producer_id, epoch):
                    partitions.append((served.name, data.index))
        if not partitions:
            return None
        outcome, self.error = self.core.transaction_partitions.handle_implicit_add(
            body.transactional_id, producer_id, epoch, partitions, now
        )
        return outcome if self.error == NONE or outcome.facts else None

    def end(self) -> None:
        """The request that began is planned."""
        self.error = NONE

    def check_write(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        version: int,
    ) -> int:
        """The error code for a batch of the producer in the partition; NONE if it may be appended now."""
        error = self.error
        if error == NONE:
            error = self.core.transactions.check_write(transactional_id, producer_id, producer_epoch, topic, partition)
        return produce_error(error, version)
