"""The table `records`: every record with its bytes, and decoded if its type is known.

Records of `__consumer_offsets`, `__transaction_state` and `__cluster_metadata` have type, name, and key and value as
JSON with the field names of Kafka's definitions and tools. A record of an unknown type or version has no name and no
JSON; the bytes of key and value are always there. A known type with a body that cannot be decoded is damage.
Markers and other control records have a type and a name; records of other topics have neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from kcoord.log.other_codecs import ALL_METADATA, ALL_PAIRS
from kcoord.log.record_codecs import GROUP_ASSIGNMENT
from kcoord.log.record_plain import plain, with_kafka_names
from kcoord.log.serde import (
    GROUP_METADATA,
    GROUP_METADATA_VERSION_MAX,
    LEGACY_OFFSET_COMMIT,
    METADATA_FRAME_VERSION,
    OFFSET_COMMIT,
    OFFSET_COMMIT_VERSION_MAX,
    TRANSACTION_LOG,
    TRANSACTION_LOG_VERSION_MAX,
    UnknownRecord,
)
from kcoord.log.typed_records import (
    CONTROL_TYPES,
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    TRANSACTION_TOPIC,
    RecordReader,
    TypedRecord,
)
from kcoord.protocol.records.transaction_group_assignment import TransactionGroupAssignmentKey
from kcoord.protocol.records.transaction_log import TransactionLogKey
from kcoord.spark.reader.row_filter import EVERYTHING, RowFilter
from kcoord.spark.scan.records import RecordScan
from kcoord.spark.tables.rows import (
    DecodedTable,
    RecordPlace,
    Row,
    check_size,
    coordinator_record_type,
    is_about,
    known,
    place_columns,
    subjects,
)
from kcoord.spark.tables.table import (
    BIGINT,
    BINARY,
    BOOLEAN,
    BY_PRODUCER,
    COORDINATOR_TOPICS,
    HEADERS,
    INT,
    PLACE,
    STRING,
    Column,
    SliceRequest,
)
from kcoord.wire.message import Message
from kcoord.wire.primitives import DecodeError, Reader
from kcoord.wire.record_batch import BatchHeader, Headers, Record

if TYPE_CHECKING:
    from kcoord.spark.tables.record_rows import RecordRows

# Newest known version of a value by record type.
OFFSETS_VERSIONS: Final[dict[int, int]] = {
    LEGACY_OFFSET_COMMIT: 0,
    OFFSET_COMMIT: OFFSET_COMMIT_VERSION_MAX,
    GROUP_METADATA: GROUP_METADATA_VERSION_MAX,
    **dict.fromkeys((codec.record_type for _, codec in ALL_PAIRS), 0),
}
VERSIONS: Final[dict[str, dict[int, int]]] = {
    OFFSETS_TOPIC: OFFSETS_VERSIONS,
    TRANSACTION_TOPIC: {TRANSACTION_LOG: TRANSACTION_LOG_VERSION_MAX, GROUP_ASSIGNMENT.record_type: 0},
    METADATA_TOPIC: {codec.record_type: codec.version_max for _, codec in ALL_METADATA},
}
# Kafka's record types and versions have 16 bits; a varint may hold more than a column can.
INT16_MAX: Final = 0x7FFF
JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# From `record_name` to `value_json`, of a record that is not typed.
UNTYPED: Final[Row] = (None,) * 8
# Columns that need a decoded record. All others come from the batch, the record and its type.
DECODED: Final = (
    "record_name", "group_id", "topic", "partition", "member_id", "transactional_id", "key_json", "value_json",
)  # fmt: skip


@final
class RecordsTable(DecodedTable):
    """`topic_names` are names of topics by their id; records of the metadata log that come through here add theirs.

    Without any of the columns DECODED, records are not decoded, so damage in them is not found.
    """

    NAME: ClassVar[str] = "records"
    ROW: ClassVar[str] = "a record, typed as JSON if its type is known, and its bytes"
    TOPICS: ClassVar[tuple[str, ...]] = COORDINATOR_TOPICS
    COLUMNS: ClassVar[tuple[Column, ...]] = (
        *PLACE,
        Column("record_type", INT, "the record type", "record_types"),
        Column("record_version", INT, "the version of the value; null for tombstones"),
        Column("record_name", STRING, "the name of the type; null if the type or version is unknown", "record_names"),
        Column("group_id", STRING, "the group that the record is about", "groups", OFFSETS_TOPIC),
        Column("topic", STRING, "the topic that the record is about"),
        Column("partition", INT, "the partition that the record is about"),
        Column("member_id", STRING, "the member that the record is about"),
        Column(
            "transactional_id", STRING, "the transactional id of the record", "transactional_ids", TRANSACTION_TOPIC
        ),
        Column("key_json", STRING, "the key as JSON, with the field names of Kafka's message definitions"),
        Column("value_json", STRING, "the value as JSON"),
        Column("key", BINARY, "the bytes of the key"),
        Column("value", BINARY, "the bytes of the value"),
        Column("headers", HEADERS, "the record's headers; null if it has none"),
        Column("producer_id", BIGINT, "the producer id of the batch", BY_PRODUCER),
        Column("producer_epoch", INT, "the producer epoch of the batch"),
        Column("leader_epoch", INT, "the leader epoch of the batch"),
        Column("is_tombstone", BOOLEAN, "the record has a key and no value: it deletes its key"),
    )
    HAS_NEWEST: ClassVar[bool] = True

    def __init__(
        self,
        columns: Sequence[str] = (),
        wanted: RowFilter = EVERYTHING,
        topic_names: Mapping[bytes, str] | None = None,
    ) -> None:
        super().__init__(columns, wanted, topic_names)
        self._subjects = {
            OFFSETS_TOPIC: subjects(wanted.groups), TRANSACTION_TOPIC: subjects(wanted.transactional_ids),
        }  # fmt: skip
        # Of (topic, record type): names that were not wanted.
        self._unwanted: dict[tuple[str, int], bool] = {}
        self.makes_topic = self.makes("topic")
        filters = (wanted.record_names, wanted.groups, wanted.transactional_ids)
        self.decodes = self.makes(*DECODED) or filters != (None, None, None)
        self.makes_key_json = self.makes("key_json")
        self.makes_value_json = self.makes("value_json")
        self.makes_headers = self.makes("headers")
        self.reader = RecordReader(dict(self.topic_names))

    @classmethod
    def scan_rows(cls, request: SliceRequest) -> RecordRows | None:
        """Without JSON columns, and without filters that need a decoded record."""
        topic = request.part.topic
        makes_json = request.makes("key_json") or request.makes("value_json")
        if makes_json or request.rows.narrows_records or topic == METADATA_TOPIC:
            return None
        from kcoord.spark.tables.arrow import schema_of
        from kcoord.spark.tables.record_rows import RecordRows

        request.wanted.has_producer = request.rows.has_producer
        decoder = cls(request.columns)
        scan = RecordScan(
            request.wanted,
            partial(decoder.about, topic),
            has_commits=topic == OFFSETS_TOPIC and decoder.decodes,
            is_framed=not decoder.decodes,
            with_control=not request.is_committed_only,
            with_keys=request.makes("key") or request.is_newest,
            with_values=request.makes("value"),
            with_headers=request.makes("headers"),
        )
        schema = schema_of(cls, request.columns)
        return RecordRows(scan, request.part, request.corrupt, schema, request.is_newest)

    @classmethod
    def check(cls, topic: str, record: Record) -> None:
        """A record of an unknown type or version is shown as bytes, so only known ones can fail."""
        if topic in VERSIONS and record_frame(topic, record)[2]:
            RecordReader().decode(topic, record)

    def add(self, where: RecordPlace, record: Record, header: BatchHeader) -> None:
        about = self.about(where.log_topic, record, header)
        if about is None:
            return
        is_tombstone = not header.is_control and record.key is not None and record.value is None
        self._put(
            (
                *place_columns(where, record),
                *about,
                record.key,
                record.value,
                _headers(record.headers) if self.makes_headers else None,
                known(header.producer_id),
                known(header.producer_epoch),
                known(header.leader_epoch),
                is_tombstone,
            )
        )

    def about(self, topic: str, record: Record, header: BatchHeader) -> Row | None:
        """From `record_type` to `value_json`; None if the record is not wanted. Raises DecodeError."""
        about: Row | None
        if header.is_control:
            about = _control_columns(record)
        elif topic in VERSIONS:
            about = self._typed_columns(topic, record)
        else:
            about = (None, None, *UNTYPED)
        return about if about is not None and self._wants(about) else None

    @property
    def takes_commits(self) -> bool:
        types = self.wanted.record_types
        return types is None or not types.isdisjoint((LEGACY_OFFSET_COMMIT, OFFSET_COMMIT))

    def _wants(self, about: Row) -> bool:
        """By what is in the columns from `record_type` to `value_json`."""
        wanted = self.wanted
        return (
            (wanted.record_types is None or about[0] in wanted.record_types)
            and (wanted.record_names is None or about[2] in wanted.record_names)
            and (wanted.groups is None or about[3] in wanted.groups)
            and (wanted.transactional_ids is None or about[7] in wanted.transactional_ids)
        )

    def _may_be_wanted(self, topic: str, record_type: int, record: Record) -> bool:
        """The filters that apply before a record is decoded."""
        types = self.wanted.record_types
        return (
            (types is None or record_type in types)
            and (topic, record_type) not in self._unwanted
            and (topic == METADATA_TOPIC or is_about(record, self._subjects[topic]))
        )

    def _typed_columns(self, topic: str, record: Record) -> Row | None:
        """From `record_type` to `value_json`; None if the record is filtered out."""
        record_type, version, is_known = record_frame(topic, record)
        if not self._may_be_wanted(topic, record_type, record):
            if topic == METADATA_TOPIC and self.makes_topic and record.value is not None:
                # Later records may need the name of the topic.
                self.reader.know([record.value])
            return None
        if not is_known or not self.decodes:
            return (record_type, version, *UNTYPED)
        typed = self.reader.decode(topic, record)
        if isinstance(typed.key, UnknownRecord) or isinstance(typed.value, UnknownRecord):
            # Of a kind of group whose format is still changing.
            return (record_type, version, *UNTYPED)
        names = self.wanted.record_names
        if names is not None and typed.kind not in names:
            # All records of a type have one name.
            self._unwanted[(topic, record_type)] = True
            return None
        return (
            record_type,
            version,
            typed.kind,
            *self._subject_columns(typed),
            _json(typed.key) if self.makes_key_json else None,
            _json(typed.value) if self.makes_value_json else None,
        )

    def _subject_columns(self, typed: TypedRecord) -> Row:
        """From `group_id` to `transactional_id`: the subject of a record."""
        key, value = typed.key, typed.value
        if isinstance(key, (TransactionLogKey, TransactionGroupAssignmentKey)):
            return None, None, None, None, key.transactional_id
        is_of_group = key is not None
        topic = typed.topic
        partition: Any = known(typed.partition)
        if not is_of_group and not topic:
            topic = self.reader.names.get(getattr(value, "topic_id", b""), "")
            partition = getattr(value, "partition_id", None)
        group = typed.group if is_of_group else None
        return group, topic or None, partition, getattr(key, "member_id", None), None


def record_frame(topic: str, record: Record) -> tuple[int, int | None, bool]:
    """Record type, version of the value (None: there is none), and whether both are known. Raises DecodeError."""
    version: int | None
    record_type, version = _metadata_frame(record) if topic == METADATA_TOPIC else _coordinator_frame(record)
    version_max = VERSIONS[topic].get(record_type)
    is_known = version_max is not None and (version is None or 0 <= version <= version_max)
    return record_type, version, is_known


def _coordinator_frame(record: Record) -> tuple[int, int | None]:
    record_type = coordinator_record_type(record)
    if record.value is None or len(record.value) < 2:
        return record_type, None
    return record_type, Reader(record.value).int16()


def _metadata_frame(record: Record) -> tuple[int, int]:
    if record.value is None:
        raise DecodeError("a metadata record without a value")
    check_size(record)
    r = Reader(record.value)
    frame_version = int(r.uvarint())
    if frame_version != METADATA_FRAME_VERSION:
        raise DecodeError(f"metadata frame of version {frame_version}")
    record_type = int(r.uvarint())
    version = int(r.uvarint())
    if record_type > INT16_MAX or version > INT16_MAX:
        raise DecodeError(f"metadata record type {record_type} of version {version}")
    return record_type, version


def control_frame(record: Record) -> tuple[int, int]:
    """Type and version in the key of a control record. Raises DecodeError."""
    if record.key is None:
        raise DecodeError("a control record without a key")
    r = Reader(record.key)
    version = r.int16()
    record_type = r.int16()
    return record_type, version


def _control_columns(record: Record) -> Row:
    """From `record_type` to `value_json`."""
    record_type, version = control_frame(record)
    return (record_type, version, CONTROL_TYPES.get(record_type), *UNTYPED[1:])


def _json(message: Message | None) -> str | None:
    if message is None:
        return None
    return JSON.encode(with_kafka_names(plain(message)))


def _headers(headers: Headers) -> list[dict[str, Any]] | None:
    """None for none, as in Spark's Kafka source. Names that are not UTF-8 keep the parts that are."""
    return [{"key": _text(name), "value": value} for name, value in headers] or None


def _text(name: str) -> str:
    """Bytes that are not UTF-8, which names of headers hold as lone surrogates, become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
