"""Makes a snapshot of the metadata log from the last snapshot and the log since then, with a separate registry.

Nothing here depends on a server: another process may run it. See `metadata_snapshot` for when that happens, and what
happens with the result.
"""

from __future__ import annotations

from typing import final

from kcoord.core.config import CoreConfig
from kcoord.core.topics.image import feature_records, image_records, is_in_image
from kcoord.core.topics.registry import TopicRegistry
from kcoord.engine.batch_walk import BatchWalk
from kcoord.engine.loader import DECOMPRESSED_BYTES_MAX
from kcoord.log.metadata_checkpoint import (
    BadCheckpoint,
    CheckpointName,
    CheckpointWriter,
    read_checkpoint_file,
)
from kcoord.log.partition_log import Extent
from kcoord.log.serde import decode_metadata_record, encode_metadata_record
from kcoord.log.storage import Storage
from kcoord.protocol.records.abort_transaction_record import AbortTransactionRecord
from kcoord.protocol.records.begin_transaction_record import BeginTransactionRecord
from kcoord.protocol.records.broker_registration_change_record import BrokerRegistrationChangeRecord
from kcoord.protocol.records.end_transaction_record import EndTransactionRecord
from kcoord.protocol.records.fence_broker_record import FenceBrokerRecord
from kcoord.protocol.records.no_op_record import NoOpRecord
from kcoord.protocol.records.register_broker_record import RegisterBrokerRecord
from kcoord.protocol.records.register_controller_record import RegisterControllerRecord
from kcoord.protocol.records.unfence_broker_record import UnfenceBrokerRecord
from kcoord.protocol.records.unregister_broker_record import UnregisterBrokerRecord
from kcoord.wire.compression import DecompressionError
from kcoord.wire.primitives import DecodeError
from kcoord.wire.record_batch import NO_TIMESTAMP, BatchHeader, decode_records


class SnapshotNotWritten(Exception):
    """The log cannot be made into a snapshot; the message has the reason."""


@final
class SnapshotPlan:
    """What to write: the state of `log_name` at `end_offset`, from the last snapshot and `extents`.

    `base` is the file of the last snapshot, or "". `syncs` are files to sync besides those of the extents.
    """

    def __init__(
        self,
        log_name: str,
        node_id: int,
        base: str,
        from_offset: int,
        end_offset: int,
        extents: list[Extent],
        syncs: list[str],
    ) -> None:
        self.log_name = log_name
        self.node_id = node_id
        self.base = base
        self.from_offset = from_offset
        self.end_offset = end_offset
        self.extents = extents
        self.syncs = syncs


@final
class WrittenSnapshot:
    """The result of a plan. `kept` is the number of records that the registry ignores."""

    def __init__(
        self, end_offset: int, epoch: int, last_timestamp: int, records: int, kept: int, size_bytes: int
    ) -> None:
        self.end_offset = end_offset
        self.epoch = epoch
        self.last_timestamp = last_timestamp
        self.records = records
        self.kept = kept
        self.size_bytes = size_bytes


def write_snapshot(storage: Storage, plan: SnapshotPlan, wall_ms: int) -> WrittenSnapshot:
    """Write a snapshot. When this returns it is durable. The old ones stay.

    Raises SnapshotNotWritten, BadCheckpoint, LogDamaged and OSError.
    """
    for path in plan.syncs + [extent.path for extent in plan.extents]:
        # With `log.sync = os` nothing has synced these files before.
        file = storage.open(path)
        try:
            file.datasync()
        finally:
            file.close()
    storage.sync_dir(plan.log_name)
    content = _Content(storage, plan)
    content.read()
    name = CheckpointName(plan.end_offset, content.epoch)
    writer = CheckpointWriter(storage, plan.log_name, name, content.last_timestamp, wall_ms)
    try:
        for record in feature_records(content.topics):
            writer.append(encode_metadata_record(record))
        for value in content.of_cluster:
            writer.append(value)
        for record in image_records(content.topics):
            writer.append(encode_metadata_record(record))
        for value in content.others:
            writer.append(value)
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    kept = len(content.of_cluster) + len(content.others)
    timestamp = content.last_timestamp
    return WrittenSnapshot(plan.end_offset, content.epoch, timestamp, writer.records, kept, writer.size_bytes)


@final
class _Content:
    """The content of a snapshot."""

    def __init__(self, storage: Storage, plan: SnapshotPlan) -> None:
        self.storage = storage
        self.plan = plan
        config = CoreConfig()
        config.node_id = plan.node_id
        self.topics = TopicRegistry(config)
        # A snapshot has no deleted topics.
        self.topics.unfinished_deletions()
        # Values of records that are copied, in order: those about nodes, and all others.
        self.of_cluster: list[bytes] = []
        self.others: list[bytes] = []
        self.epoch = 0
        self.last_timestamp = NO_TIMESTAMP
        self.next_offset = plan.from_offset

    def read(self) -> None:
        plan = self.plan
        if plan.base:
            epoch = int(plan.base[21:31])
            name = CheckpointName(plan.from_offset, epoch)
            found = read_checkpoint_file(self.storage, plan.log_name, name)
            self.epoch = epoch
            self.last_timestamp = found.last_timestamp
            try:
                for value in found.values:
                    self._take(value, plan.from_offset - 1)
            except DecodeError as error:
                raise BadCheckpoint(f"{name.path_in(plan.log_name)}: {error}") from None
        for extent in plan.extents:
            self._walk(extent)
        if self.next_offset != plan.end_offset:
            raise SnapshotNotWritten(f"the log could be read up to {self.next_offset}, not {plan.end_offset}")
        if len(self.topics.topics) != len(self.topics.topics_by_id):
            # No kcoord server writes that, and the meaning of later records would depend on it.
            raise SnapshotNotWritten("the log has a topic name or id twice")

    def _walk(self, extent: Extent) -> None:
        walk = BatchWalk(self.storage, extent)
        try:
            while True:
                header = walk.advance()
                if header is None or header.base_offset >= self.plan.end_offset:
                    return
                if header.last_offset < self.plan.from_offset:
                    continue
                if header.base_offset != self.next_offset:
                    raise walk.damaged_here(header, f"offset {self.next_offset} is due")
                if header.is_transactional:
                    raise SnapshotNotWritten(f"a transaction at offset {header.base_offset}")
                try:
                    self._batch(walk.buf, header)
                except (DecodeError, DecompressionError) as error:
                    raise walk.damaged_here(header, str(error)) from None
        finally:
            walk.close()

    def _batch(self, data: bytes, header: BatchHeader) -> None:
        self.epoch = int(header.leader_epoch)
        self.last_timestamp = int(header.max_timestamp)
        self.next_offset = int(header.last_offset) + 1
        if header.is_control:
            return
        for record in decode_records(data, int(header.pos), header, DECOMPRESSED_BYTES_MAX):
            if record.value is not None:
                self._take(record.value, record.offset)
        # The server handles the changes that follow from the records.
        self.topics.created = []
        self.topics.deleted = []
        self.topics.reconfigured = []

    def _take(self, value: bytes, offset: int) -> None:
        record = decode_metadata_record(value)
        if is_in_image(record):
            self.topics.replay_metadata(record, offset)
        elif isinstance(record, (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)):
            raise SnapshotNotWritten(f"a metadata transaction at offset {offset}, which is not supported")
        elif isinstance(
            record,
            (
                RegisterBrokerRecord,
                UnregisterBrokerRecord,
                FenceBrokerRecord,
                UnfenceBrokerRecord,
                BrokerRegistrationChangeRecord,
                RegisterControllerRecord,
            ),
        ):
            self.of_cluster.append(value)
        elif not isinstance(record, NoOpRecord):
            self.others.append(value)
