"""The record types that the server writes to the coordinator and metadata logs, with the codec of each.

`kcoord.log.other_codecs` has the types that only brokers write.

The versions written are those that Kafka 4.3 writes at its newest metadata version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from kcoord.protocol.records import (
    config_record,
    consumer_group_current_member_assignment,
    consumer_group_member_metadata,
    consumer_group_metadata,
    consumer_group_partition_metadata,
    consumer_group_regular_expression,
    consumer_group_target_assignment_member,
    consumer_group_target_assignment_metadata,
    partition_record,
    producer_ids_record,
    remove_topic_record,
    topic_record,
    transaction_group_assignment,
)
from kcoord.wire.message import Message
from kcoord.wire.primitives import BytesWriter, Reader

Decoder = Callable[[Reader, int], Message]
Encoder = Callable[[BytesWriter, Any, int], None]


@final
class MetadataCodec:
    """A record type of the metadata log. Its newest version is written."""

    def __init__(self, record_type: int, version_max: int, decode: Decoder, encode: Encoder) -> None:
        self.record_type = record_type
        self.version_max = version_max
        self.decode = decode
        self.encode = encode


@final
class PairCodec:
    """A record type of a coordinator whose key and value both have version 0 only."""

    def __init__(
        self,
        record_type: int,
        decode_key: Decoder,
        encode_key: Encoder,
        decode_value: Decoder,
        encode_value: Encoder,
    ) -> None:
        self.record_type = record_type
        self.decode_key = decode_key
        self.encode_key = encode_key
        self.decode_value = decode_value
        self.encode_value = encode_value


PAIRS: Final[list[tuple[type[Message], PairCodec]]] = [
    (
        consumer_group_metadata.ConsumerGroupMetadataKey,
        PairCodec(
            consumer_group_metadata.RECORD_TYPE,
            consumer_group_metadata.decode_consumer_group_metadata_key,
            consumer_group_metadata.encode_consumer_group_metadata_key,
            consumer_group_metadata.decode_consumer_group_metadata_value,
            consumer_group_metadata.encode_consumer_group_metadata_value,
        ),
    ),
    (
        consumer_group_partition_metadata.ConsumerGroupPartitionMetadataKey,
        PairCodec(
            consumer_group_partition_metadata.RECORD_TYPE,
            consumer_group_partition_metadata.decode_consumer_group_partition_metadata_key,
            consumer_group_partition_metadata.encode_consumer_group_partition_metadata_key,
            consumer_group_partition_metadata.decode_consumer_group_partition_metadata_value,
            consumer_group_partition_metadata.encode_consumer_group_partition_metadata_value,
        ),
    ),
    (
        consumer_group_member_metadata.ConsumerGroupMemberMetadataKey,
        PairCodec(
            consumer_group_member_metadata.RECORD_TYPE,
            consumer_group_member_metadata.decode_consumer_group_member_metadata_key,
            consumer_group_member_metadata.encode_consumer_group_member_metadata_key,
            consumer_group_member_metadata.decode_consumer_group_member_metadata_value,
            consumer_group_member_metadata.encode_consumer_group_member_metadata_value,
        ),
    ),
    (
        consumer_group_target_assignment_metadata.ConsumerGroupTargetAssignmentMetadataKey,
        PairCodec(
            consumer_group_target_assignment_metadata.RECORD_TYPE,
            consumer_group_target_assignment_metadata.decode_consumer_group_target_assignment_metadata_key,
            consumer_group_target_assignment_metadata.encode_consumer_group_target_assignment_metadata_key,
            consumer_group_target_assignment_metadata.decode_consumer_group_target_assignment_metadata_value,
            consumer_group_target_assignment_metadata.encode_consumer_group_target_assignment_metadata_value,
        ),
    ),
    (
        consumer_group_target_assignment_member.ConsumerGroupTargetAssignmentMemberKey,
        PairCodec(
            consumer_group_target_assignment_member.RECORD_TYPE,
            consumer_group_target_assignment_member.decode_consumer_group_target_assignment_member_key,
            consumer_group_target_assignment_member.encode_consumer_group_target_assignment_member_key,
            consumer_group_target_assignment_member.decode_consumer_group_target_assignment_member_value,
            consumer_group_target_assignment_member.encode_consumer_group_target_assignment_member_value,
        ),
    ),
    (
        consumer_group_current_member_assignment.ConsumerGroupCurrentMemberAssignmentKey,
        PairCodec(
            consumer_group_current_member_assignment.RECORD_TYPE,
            consumer_group_current_member_assignment.decode_consumer_group_current_member_assignment_key,
            consumer_group_current_member_assignment.encode_consumer_group_current_member_assignment_key,
            consumer_group_current_member_assignment.decode_consumer_group_current_member_assignment_value,
            consumer_group_current_member_assignment.encode_consumer_group_current_member_assignment_value,
        ),
    ),
    (
        consumer_group_regular_expression.ConsumerGroupRegularExpressionKey,
        PairCodec(
            consumer_group_regular_expression.RECORD_TYPE,
            consumer_group_regular_expression.decode_consumer_group_regular_expression_key,
            consumer_group_regular_expression.encode_consumer_group_regular_expression_key,
            consumer_group_regular_expression.decode_consumer_group_regular_expression_value,
            consumer_group_regular_expression.encode_consumer_group_regular_expression_value,
        ),
    ),
]
# A record type of our own in `__transaction_state`, whose types have numbers of their own.
GROUP_ASSIGNMENT: Final = PairCodec(
    transaction_group_assignment.RECORD_TYPE,
    transaction_group_assignment.decode_transaction_group_assignment_key,
    transaction_group_assignment.encode_transaction_group_assignment_key,
    transaction_group_assignment.decode_transaction_group_assignment_value,
    transaction_group_assignment.encode_transaction_group_assignment_value,
)
PAIRS_BY_TYPE: Final[dict[int, PairCodec]] = {codec.record_type: codec for _, codec in PAIRS}
PAIRS_BY_KEY: Final[dict[type[Message], PairCodec]] = {
    **dict(PAIRS),
    transaction_group_assignment.TransactionGroupAssignmentKey: GROUP_ASSIGNMENT,
}

METADATA: Final[list[tuple[type[Message], MetadataCodec]]] = [
    (
        topic_record.TopicRecord,
        MetadataCodec(
            topic_record.RECORD_TYPE,
            topic_record.MAX_VERSION,
            topic_record.decode_topic_record,
            topic_record.encode_topic_record,
        ),
    ),
    (
        partition_record.PartitionRecord,
        MetadataCodec(
            partition_record.RECORD_TYPE,
            partition_record.MAX_VERSION,
            partition_record.decode_partition_record,
            partition_record.encode_partition_record,
        ),
    ),
    (
        config_record.ConfigRecord,
        MetadataCodec(
            config_record.RECORD_TYPE,
            config_record.MAX_VERSION,
            config_record.decode_config_record,
            config_record.encode_config_record,
        ),
    ),
    (
        remove_topic_record.RemoveTopicRecord,
        MetadataCodec(
            remove_topic_record.RECORD_TYPE,
            remove_topic_record.MAX_VERSION,
            remove_topic_record.decode_remove_topic_record,
            remove_topic_record.encode_remove_topic_record,
        ),
    ),
    (
        producer_ids_record.ProducerIdsRecord,
        MetadataCodec(
            producer_ids_record.RECORD_TYPE,
            producer_ids_record.MAX_VERSION,
            producer_ids_record.decode_producer_ids_record,
            producer_ids_record.encode_producer_ids_record,
        ),
    ),
]
METADATA_BY_TYPE: Final[dict[int, MetadataCodec]] = {codec.record_type: codec for _, codec in METADATA}
METADATA_BY_CLASS: Final[dict[type[Message], MetadataCodec]] = dict(METADATA)
