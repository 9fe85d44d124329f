"""Transactional ids and their transactions, hard state of `__transaction_state`.

Each transactional id has one producer id and epoch, and at most one transaction. A transaction goes through these
states:

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit
                     -> PrepareAbort  -> CompleteAbort

Ongoing begins with the first partition. The record of PrepareCommit or PrepareAbort is the decision: once it is
durable, the transaction ends in that way, whatever happens. The markers in its partitions follow, and then the record
of CompleteCommit or CompleteAbort. From there, as from Empty, the next transaction begins. InitProducerId leads to
Empty.

Two versions of the protocol exist side by side. With version 2 (KIP-890) each end increments the producer epoch, so a
late request of a transaction cannot belong to the next one. Clients of version 1 have the same epoch for all of them.
Here all connections of a transactional id end in one process, so late requests can be recognised as well: a request
that arrives on an older connection than an earlier one with the same epoch was overtaken. A client that reconnects has
a newer connection. TxnOffsetCommit is looked at on its own, because clients send it to the coordinator of the group,
for which some of them have a connection of its own. If a client aborts a transaction before its TxnOffsetCommit is
answered, no newer one may have come when the late one arrives in the next transaction: held_commits.py.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.core.hashing import coordinator_partition
from kcoord.core.outcome import TRANSACTION_TOPIC, Event, LogId, Request, Timer
from kcoord.core.topics.registry import TopicRegistry
from kcoord.core.transactions.group_assignments import GroupAssignments
from kcoord.protocol.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    NONE,
    NOT_COORDINATOR,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)
from kcoord.protocol.records.transaction_log import PartitionsSchema, TransactionLogKey, TransactionLogValue

# States as in the record.
EMPTY: Final = 0
ONGOING: Final = 1
PREPARE_COMMIT: Final = 2
PREPARE_ABORT: Final = 3
COMPLETE_COMMIT: Final = 4
COMPLETE_ABORT: Final = 5

# States as clients see them, by number. The last two are known to brokers, and are never in a record.
STATE_NAMES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
NO_TOKEN: Final = 0
NO_REQUEST: Final = 0
NO_CONNECTION: Final = 0
EPOCH_MAX: Final = 32767
# The last epoch that a client gets. The one above is left for the abort that fences its producer.
CLIENT_EPOCH_MAX: Final = EPOCH_MAX - 1

# Versions of the protocol in records. Records of version 1 clients have the 0, as on a broker.
VERSION_1: Final = 0
VERSION_2: Final = 2


@final
class Transaction:
    """A transactional id with its producer and its current or last transaction."""

    def __init__(self, transactional_id: str, log: LogId) -> None:
        self.transactional_id = transactional_id
        self.log = log
        self.producer_id = NO_PRODUCER_ID
        # The producer id before the last record, and the one from the end of the transaction on, if it changes.
        self.previous_producer_id = NO_PRODUCER_ID
        self.next_producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH
        self.timeout_ms = 0
        self.status = EMPTY
        self.partitions: dict[str, dict[int, bool]] = {}
        self.update_ms = NO_TIME
        self.start_ms = NO_TIME
        self.client_version = VERSION_1
        # The offset after the last record.
        self.end_offset = 0

        # Soft state. The epoch before the last one, which a retry of InitProducerId may name. It is lost at a restart,
        # as on a broker: then the producer of such a retry is fenced.
        self.last_epoch = NO_EPOCH
        self.next_last_epoch = NO_EPOCH
        # The newest connections that requests to the transaction coordinator and TxnOffsetCommit came from.
        self.connection = NO_CONNECTION
        self.commit_connection = NO_CONNECTION
        # Set when a client of version 1 aborts a transaction with offsets: a TxnOffsetCommit of it may still arrive.
        self.expects_late_commit = False
        # Such a request while it is held, and the token of its timer.
        self.held_commit: Request | None = None
        self.held_token = NO_TOKEN
        self.timer_token = NO_TOKEN
        # The parked EndTxn.
        self.end_request_id = NO_REQUEST

    @property
    def is_ending(self) -> bool:
        """Whether its end is decided and its markers are not all written."""
        return self.status == PREPARE_COMMIT or self.status == PREPARE_ABORT

    @property
    def is_exhausted(self) -> bool:
        """Whether its producer id has no further epoch for a client."""
        return self.producer_epoch >= CLIENT_EPOCH_MAX

    def has(self, topic: str, partition: int) -> bool:
        of_topic = self.partitions.get(topic)
        return of_topic is not None and partition in of_topic

    def partition_list(self) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for topic in self.partitions:
            for partition in self.partitions[topic]:
                found.append((topic, partition))
        return found

    def partition_count(self) -> int:
        count = 0
        for topic in self.partitions:
            count += len(self.partitions[topic])
        return count

    def admits(self, connection_id: int) -> bool:
        """Whether a request to the coordinator is not overtaken by one on a newer connection. It counts from now on."""
        if connection_id < self.connection:
            return False
        self.connection = connection_id
        return True

    def admits_commit(self, connection_id: int) -> bool:
        """The same for TxnOffsetCommit."""
        if connection_id < self.commit_connection:
            return False
        self.commit_connection = connection_id
        return True

    def record(self, status: int, now_ms: int) -> TransactionLogValue:
        """A record of the next state; the caller changes the fields that change with it."""
        schemas: list[PartitionsSchema] | None = None
        if status != EMPTY:
            schemas = [PartitionsSchema(topic, list(self.partitions[topic])) for topic in self.partitions]
        return TransactionLogValue(
            producer_id=self.producer_id,
            previous_producer_id=self.producer_id,
            next_producer_id=self.next_producer_id,
            producer_epoch=self.producer_epoch,
            transaction_timeout_ms=self.timeout_ms,
            transaction_status=status,
            transaction_partitions=schemas,
            transaction_last_update_timestamp_ms=now_ms,
            transaction_start_timestamp_ms=self.start_ms,
            client_transaction_version=self.client_version,
        )

    def replay(self, value: TransactionLogValue, offset: int) -> None:
        epoch: int = value.producer_epoch
        status: int = value.transaction_status
        if status == EMPTY:
            self.last_epoch = self.next_last_epoch
            self.next_last_epoch = NO_EPOCH
        elif (status == PREPARE_COMMIT or status == PREPARE_ABORT) and epoch == self.producer_epoch + 1:
            # Version 2 increments the epoch with the end.
            self.last_epoch = self.producer_epoch
        self.producer_id = value.producer_id
        self.previous_producer_id = value.previous_producer_id
        self.next_producer_id = value.next_producer_id
        self.producer_epoch = epoch
        self.timeout_ms = value.transaction_timeout_ms
        self.status = status
        self.partitions = {}
        for schema in value.transaction_partitions or []:
            of_topic = self.partitions.setdefault(schema.topic, {})
            for partition in schema.partition_ids:
                of_topic[partition] = True
        self.update_ms = value.transaction_last_update_timestamp_ms
        self.start_ms = value.transaction_start_timestamp_ms
        self.client_version = value.client_transaction_version
        self.end_offset = offset + 1

    def digest_line(self) -> str:
        partitions = sorted(self.partition_list())
        return (
            f"transaction {self.transactional_id!r} {self.producer_id} {self.previous_producer_id} "
            f"{self.next_producer_id} {self.producer_epoch} {self.timeout_ms} {self.status} {partitions} "
            f"{self.update_ms} {self.start_ms} {self.client_version}"
        )


def state_name(status: int) -> str:
    """The name of a state. Logs of a broker have no others than those, unless they are damaged."""
    return STATE_NAMES[status] if 0 <= status < len(STATE_NAMES) else f"Unknown({status})"


@final
class RetryRequest(Event):
    """A parked request that waited for producer ids is handled again."""

    def __init__(self, request: Request) -> None:
        self.request = request


@final
class MarkersStep(Event):
    """What came before is durable: write the markers of partitions from position `start` on, or complete the end."""

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, start: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.start = start


@final
class CompleteStep(Event):
    """All markers are durable: store that the transaction is over."""

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


@final
class Transactions:
    """All transactional ids. Only `replay` changes their hard state."""

    def __init__(self, topics: TopicRegistry) -> None:
        self.topics = topics
        self.by_id: dict[str, Transaction] = {}
        self.by_producer: dict[int, Transaction] = {}
        self.assignments = GroupAssignments()
        # The end of all producer ids in the log. An imported log may have ids that the metadata log does not reserve.
        self.producer_ids_end = 0
        # The log of the last record and the offset after it: an answer that waits for these shows what is durable.
        self.newest_log: LogId | None = None
        self.newest_offset = 0
        # Whether the engine has opened the logs.
        self.is_open = False
        self._logs: list[LogId] = []
        self._last_token = NO_TOKEN

    # --- logs ------------------------------------------------------------------------------------------------

    def logs(self) -> list[LogId]:
        """The partitions of `__transaction_state`; none before the topic is created, which fixes their number."""
        if not self._logs:
            count = self.topics.partition_count(TRANSACTION_TOPIC)
            self._logs = [LogId(TRANSACTION_TOPIC, partition) for partition in range(count)]
        return self._logs

    def log_of(self, transactional_id: str) -> LogId:
        """The log that holds the records of the transactional id. There are logs."""
        logs = self.logs()
        return logs[coordinator_partition(transactional_id, len(logs))]

    def coordinator_epoch(self, log: LogId) -> int:
        """The epoch in markers: the leader epoch of the log."""
        topic = self.topics.get(log.topic)
        return 0 if topic is None else topic.leader_epoch(log.partition)

    # --- queries ---------------------------------------------------------------------------------------------

    def find(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int
    ) -> tuple[Transaction | None, int]:
        """The transactional id of the producer, or an error: INVALID_REQUEST, NOT_COORDINATOR,
        INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED.
        """
        if not transactional_id:
            return None, INVALID_REQUEST
        if not self.logs():
            return None, NOT_COORDINATOR
        txn = self.by_id.get(transactional_id)
        if txn is None or txn.producer_id != producer_id:
            return txn, INVALID_PRODUCER_ID_MAPPING
        if txn.producer_epoch != producer_epoch:
            return txn, PRODUCER_FENCED
        return txn, NONE

    def check_write(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, partition: int
    ) -> int:
        """Whether the producer may write to the partition now: NONE if it is in its ongoing transaction.

        Errors as from a broker's verification: those of `find`, CONCURRENT_TRANSACTIONS and TRANSACTION_ABORTABLE.
        """
        txn, error = self.find(transactional_id, producer_id, producer_epoch)
        if error != NONE or txn is None:
            return error
        if txn.is_ending:
            return CONCURRENT_TRANSACTIONS
        return NONE if txn.has(topic, partition) else TRANSACTION_ABORTABLE

    def check_offsets_write(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        topic: str,
        partition: int,
        connection_id: int,
    ) -> int:
        """`check_write` for a TxnOffsetCommit of version 1: INVALID_TXN_STATE for one that was overtaken."""
        error = self.check_write(transactional_id, producer_id, producer_epoch, topic, partition)
        if error == NONE and not self.by_id[transactional_id].admits_commit(connection_id):
            return INVALID_TXN_STATE
        return error

    def covers(self, producer_id: int, topic: str, partition: int, producer_epoch: int = NO_EPOCH) -> bool:
        """Whether what a producer has open in a partition belongs to a transaction that is not over.

        The epoch is that of the producer's batches. If the end of a transaction has incremented it, batches with the
        new epoch belong to a later transaction, of which a crash left no record.
        """
        txn = self.by_producer.get(producer_id)
        if txn is None or not txn.has(topic, partition):
            return False
        if producer_epoch == NO_EPOCH:
            return True
        if txn.is_ending and txn.client_version >= VERSION_2:
            return producer_epoch < txn.producer_epoch
        return producer_epoch <= txn.producer_epoch

    # --- timers ----------------------------------------------------------------------------------------------

    def new_token(self) -> int:
        self._last_token += 1
        return self._last_token

    def is_current(self, timer: Timer) -> bool:
        """Whether a timer of a transaction still counts."""
        txn = self.by_id.get(timer.group_id)
        return txn is not None and txn.status == ONGOING and txn.timer_token == timer.token

    # --- replay ----------------------------------------------------------------------------------------------

    def replay(self, log: LogId, key: TransactionLogKey, value: TransactionLogValue | None, offset: int) -> None:
        """Apply one record of `__transaction_state`."""
        self.newest_log = log
        self.newest_offset = offset + 1
        transactional_id = key.transactional_id
        txn = self.by_id.get(transactional_id)
        if txn is not None and self.by_producer.get(txn.producer_id) is txn:
            del self.by_producer[txn.producer_id]
        if value is None:
            self.by_id.pop(transactional_id, None)
            return
        if txn is None:
            txn = Transaction(transactional_id, log)
            self.by_id[transactional_id] = txn
        txn.replay(value, offset)
        self.by_producer[txn.producer_id] = txn
        self.producer_ids_end = max(self.producer_ids_end, txn.producer_id + 1, txn.next_producer_id + 1)

    def digest_lines(self) -> list[str]:
        """The hard state as text, one line per transactional id, in a fixed order."""
        lines = [self.by_id[transactional_id].digest_line() for transactional_id in sorted(self.by_id)]
        return lines + self.assignments.digest_lines()
