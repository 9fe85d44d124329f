"""The record types of the coordinator and metadata logs, with the codec of each.

The versions written are those that Kafka 4.3 writes at its newest metadata version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

from kcoord.protocol.records import (
    abort_transaction_record,
    access_control_entry_record,
    begin_transaction_record,
    broker_registration_change_record,
    clear_elr_record,
    client_quota_record,
    config_record,
    consumer_group_current_member_assignment,
    consumer_group_member_metadata,
    consumer_group_metadata,
    consumer_group_partition_metadata,
    consumer_group_regular_expression,
    consumer_group_target_assignment_member,
    consumer_group_target_assignment_metadata,
    delegation_token_record,
    end_transaction_record,
    feature_level_record,
    fence_broker_record,
    no_op_record,
    partition_change_record,
    partition_record,
    producer_ids_record,
    register_broker_record,
    register_controller_record,
    remove_access_control_entry_record,
    remove_delegation_token_record,
    remove_topic_record,
    remove_user_scram_credential_record,
    share_group_current_member_assignment,
    share_group_member_metadata,
    share_group_metadata,
    share_group_state_partition_metadata,
    share_group_target_assignment_member,
    share_group_target_assignment_metadata,
    streams_group_current_member_assignment,
    streams_group_member_metadata,
    streams_group_metadata,
    streams_group_target_assignment_member,
    streams_group_target_assignment_metadata,
    streams_group_topology,
    topic_record,
    transaction_group_assignment,
    unfence_broker_record,
    unregister_broker_record,
    user_scram_credential_record,
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
        is_ours: bool,
        decode_key: Decoder,
        encode_key: Encoder,
        decode_value: Decoder,
        encode_value: Encoder,
    ) -> None:
        self.record_type = record_type
        # Whether the coordinator uses the record; otherwise only tools read it.
        self.is_ours = is_ours
        self.decode_key = decode_key
        self.encode_key = encode_key
        self.decode_value = decode_value
        self.encode_value = encode_value


PAIRS: Final[list[tuple[type[Message], PairCodec]]] = [
    (
        consumer_group_metadata.ConsumerGroupMetadataKey,
        PairCodec(
            consumer_group_metadata.RECORD_TYPE,
            True,
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
            True,
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
            True,
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
            True,
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
            True,
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
            True,
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
            True,
            consumer_group_regular_expression.decode_consumer_group_regular_expression_key,
            consumer_group_regular_expression.encode_consumer_group_regular_expression_key,
            consumer_group_regular_expression.decode_consumer_group_regular_expression_value,
            consumer_group_regular_expression.encode_consumer_group_regular_expression_value,
        ),
    ),
    (
        share_group_member_metadata.ShareGroupMemberMetadataKey,
        PairCodec(
            share_group_member_metadata.RECORD_TYPE,
            False,
            share_group_member_metadata.decode_share_group_member_metadata_key,
            share_group_member_metadata.encode_share_group_member_metadata_key,
            share_group_member_metadata.decode_share_group_member_metadata_value,
            share_group_member_metadata.encode_share_group_member_metadata_value,
        ),
    ),
    (
        share_group_metadata.ShareGroupMetadataKey,
        PairCodec(
            share_group_metadata.RECORD_TYPE,
            False,
            share_group_metadata.decode_share_group_metadata_key,
            share_group_metadata.encode_share_group_metadata_key,
            share_group_metadata.decode_share_group_metadata_value,
            share_group_metadata.encode_share_group_metadata_value,
        ),
    ),
    (
        share_group_target_assignment_metadata.ShareGroupTargetAssignmentMetadataKey,
        PairCodec(
            share_group_target_assignment_metadata.RECORD_TYPE,
            False,
            share_group_target_assignment_metadata.decode_share_group_target_assignment_metadata_key,
            share_group_target_assignment_metadata.encode_share_group_target_assignment_metadata_key,
            share_group_target_assignment_metadata.decode_share_group_target_assignment_metadata_value,
            share_group_target_assignment_metadata.encode_share_group_target_assignment_metadata_value,
        ),
    ),
    (
        share_group_target_assignment_member.ShareGroupTargetAssignmentMemberKey,
        PairCodec(
            share_group_target_assignment_member.RECORD_TYPE,
            False,
            share_group_target_assignment_member.decode_share_group_target_assignment_member_key,
            share_group_target_assignment_member.encode_share_group_target_assignment_member_key,
            share_group_target_assignment_member.decode_share_group_target_assignment_member_value,
            share_group_target_assignment_member.encode_share_group_target_assignment_member_value,
        ),
    ),
    (
        share_group_current_member_assignment.ShareGroupCurrentMemberAssignmentKey,
        PairCodec(
            share_group_current_member_assignment.RECORD_TYPE,
            False,
            share_group_current_member_assignment.decode_share_group_current_member_assignment_key,
            share_group_current_member_assignment.encode_share_group_current_member_assignment_key,
            share_group_current_member_assignment.decode_share_group_current_member_assignment_value,
            share_group_current_member_assignment.encode_share_group_current_member_assignment_value,
        ),
    ),
    (
        share_group_state_partition_metadata.ShareGroupStatePartitionMetadataKey,
        PairCodec(
            share_group_state_partition_metadata.RECORD_TYPE,
            False,
            share_group_state_partition_metadata.decode_share_group_state_partition_metadata_key,
            share_group_state_partition_metadata.encode_share_group_state_partition_metadata_key,
            share_group_state_partition_metadata.decode_share_group_state_partition_metadata_value,
            share_group_state_partition_metadata.encode_share_group_state_partition_metadata_value,
        ),
    ),
    (
        streams_group_metadata.StreamsGroupMetadataKey,
        PairCodec(
            streams_group_metadata.RECORD_TYPE,
            False,
            streams_group_metadata.decode_streams_group_metadata_key,
            streams_group_metadata.encode_streams_group_metadata_key,
            streams_group_metadata.decode_streams_group_metadata_value,
            streams_group_metadata.encode_streams_group_metadata_value,
        ),
    ),
    (
        streams_group_member_metadata.StreamsGroupMemberMetadataKey,
        PairCodec(
            streams_group_member_metadata.RECORD_TYPE,
            False,
            streams_group_member_metadata.decode_streams_group_member_metadata_key,
            streams_group_member_metadata.encode_streams_group_member_metadata_key,
            streams_group_member_metadata.decode_streams_group_member_metadata_value,
            streams_group_member_metadata.encode_streams_group_member_metadata_value,
        ),
    ),
    (
        streams_group_target_assignment_metadata.StreamsGroupTargetAssignmentMetadataKey,
        PairCodec(
            streams_group_target_assignment_metadata.RECORD_TYPE,
            False,
            streams_group_target_assignment_metadata.decode_streams_group_target_assignment_metadata_key,
            streams_group_target_assignment_metadata.encode_streams_group_target_assignment_metadata_key,
            streams_group_target_assignment_metadata.decode_streams_group_target_assignment_metadata_value,
            streams_group_target_assignment_metadata.encode_streams_group_target_assignment_metadata_value,
        ),
    ),
    (
        streams_group_target_assignment_member.StreamsGroupTargetAssignmentMemberKey,
        PairCodec(
            streams_group_target_assignment_member.RECORD_TYPE,
            False,
            streams_group_target_assignment_member.decode_streams_group_target_assignment_member_key,
            streams_group_target_assignment_member.encode_streams_group_target_assignment_member_key,
            streams_group_target_assignment_member.decode_streams_group_target_assignment_member_value,
            streams_group_target_assignment_member.encode_streams_group_target_assignment_member_value,
        ),
    ),
    (
        streams_group_current_member_assignment.StreamsGroupCurrentMemberAssignmentKey,
        PairCodec(
            streams_group_current_member_assignment.RECORD_TYPE,
            False,
            streams_group_current_member_assignment.decode_streams_group_current_member_assignment_key,
            streams_group_current_member_assignment.encode_streams_group_current_member_assignment_key,
            streams_group_current_member_assignment.decode_streams_group_current_member_assignment_value,
            streams_group_current_member_assignment.encode_streams_group_current_member_assignment_value,
        ),
    ),
    (
        streams_group_topology.StreamsGroupTopologyKey,
        PairCodec(
            streams_group_topology.RECORD_TYPE,
            False,
            streams_group_topology.decode_streams_group_topology_key,
            streams_group_topology.encode_streams_group_topology_key,
            streams_group_topology.decode_streams_group_topology_value,
            streams_group_topology.encode_streams_group_topology_value,
        ),
    ),
]
# A record type of our own in `__transaction_state`, whose types have numbers of their own.
GROUP_ASSIGNMENT: Final = PairCodec(
    transaction_group_assignment.RECORD_TYPE,
    True,
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
        register_broker_record.RegisterBrokerRecord,
        MetadataCodec(
            register_broker_record.RECORD_TYPE,
            register_broker_record.MAX_VERSION,
            register_broker_record.decode_register_broker_record,
            register_broker_record.encode_register_broker_record,
        ),
    ),
    (
        unregister_broker_record.UnregisterBrokerRecord,
        MetadataCodec(
            unregister_broker_record.RECORD_TYPE,
            unregister_broker_record.MAX_VERSION,
            unregister_broker_record.decode_unregister_broker_record,
            unregister_broker_record.encode_unregister_broker_record,
        ),
    ),
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
        partition_change_record.PartitionChangeRecord,
        MetadataCodec(
            partition_change_record.RECORD_TYPE,
            partition_change_record.MAX_VERSION,
            partition_change_record.decode_partition_change_record,
            partition_change_record.encode_partition_change_record,
        ),
    ),
    (
        fence_broker_record.FenceBrokerRecord,
        MetadataCodec(
            fence_broker_record.RECORD_TYPE,
            fence_broker_record.MAX_VERSION,
            fence_broker_record.decode_fence_broker_record,
            fence_broker_record.encode_fence_broker_record,
        ),
    ),
    (
        unfence_broker_record.UnfenceBrokerRecord,
        MetadataCodec(
            unfence_broker_record.RECORD_TYPE,
            unfence_broker_record.MAX_VERSION,
            unfence_broker_record.decode_unfence_broker_record,
            unfence_broker_record.encode_unfence_broker_record,
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
        delegation_token_record.DelegationTokenRecord,
        MetadataCodec(
            delegation_token_record.RECORD_TYPE,
            delegation_token_record.MAX_VERSION,
            delegation_token_record.decode_delegation_token_record,
            delegation_token_record.encode_delegation_token_record,
        ),
    ),
    (
        user_scram_credential_record.UserScramCredentialRecord,
        MetadataCodec(
            user_scram_credential_record.RECORD_TYPE,
            user_scram_credential_record.MAX_VERSION,
            user_scram_credential_record.decode_user_scram_credential_record,
            user_scram_credential_record.encode_user_scram_credential_record,
        ),
    ),
    (
        feature_level_record.FeatureLevelRecord,
        MetadataCodec(
            feature_level_record.RECORD_TYPE,
            feature_level_record.MAX_VERSION,
            feature_level_record.decode_feature_level_record,
            feature_level_record.encode_feature_level_record,
        ),
    ),
    (
        client_quota_record.ClientQuotaRecord,
        MetadataCodec(
            client_quota_record.RECORD_TYPE,
            client_quota_record.MAX_VERSION,
            client_quota_record.decode_client_quota_record,
            client_quota_record.encode_client_quota_record,
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
    (
        broker_registration_change_record.BrokerRegistrationChangeRecord,
        MetadataCodec(
            broker_registration_change_record.RECORD_TYPE,
            broker_registration_change_record.MAX_VERSION,
            broker_registration_change_record.decode_broker_registration_change_record,
            broker_registration_change_record.encode_broker_registration_change_record,
        ),
    ),
    (
        access_control_entry_record.AccessControlEntryRecord,
        MetadataCodec(
            access_control_entry_record.RECORD_TYPE,
            access_control_entry_record.MAX_VERSION,
            access_control_entry_record.decode_access_control_entry_record,
            access_control_entry_record.encode_access_control_entry_record,
        ),
    ),
    (
        remove_access_control_entry_record.RemoveAccessControlEntryRecord,
        MetadataCodec(
            remove_access_control_entry_record.RECORD_TYPE,
            remove_access_control_entry_record.MAX_VERSION,
            remove_access_control_entry_record.decode_remove_access_control_entry_record,
            remove_access_control_entry_record.encode_remove_access_control_entry_record,
        ),
    ),
    (
        no_op_record.NoOpRecord,
        MetadataCodec(
            no_op_record.RECORD_TYPE,
            no_op_record.MAX_VERSION,
            no_op_record.decode_no_op_record,
            no_op_record.encode_no_op_record,
        ),
    ),
    (
        remove_user_scram_credential_record.RemoveUserScramCredentialRecord,
        MetadataCodec(
            remove_user_scram_credential_record.RECORD_TYPE,
            remove_user_scram_credential_record.MAX_VERSION,
            remove_user_scram_credential_record.decode_remove_user_scram_credential_record,
            remove_user_scram_credential_record.encode_remove_user_scram_credential_record,
        ),
    ),
    (
        begin_transaction_record.BeginTransactionRecord,
        MetadataCodec(
            begin_transaction_record.RECORD_TYPE,
            begin_transaction_record.MAX_VERSION,
            begin_transaction_record.decode_begin_transaction_record,
            begin_transaction_record.encode_begin_transaction_record,
        ),
    ),
    (
        end_transaction_record.EndTransactionRecord,
        MetadataCodec(
            end_transaction_record.RECORD_TYPE,
            end_transaction_record.MAX_VERSION,
            end_transaction_record.decode_end_transaction_record,
            end_transaction_record.encode_end_transaction_record,
        ),
    ),
    (
        abort_transaction_record.AbortTransactionRecord,
        MetadataCodec(
            abort_transaction_record.RECORD_TYPE,
            abort_transaction_record.MAX_VERSION,
            abort_transaction_record.decode_abort_transaction_record,
            abort_transaction_record.encode_abort_transaction_record,
        ),
    ),
    (
        remove_delegation_token_record.RemoveDelegationTokenRecord,
        MetadataCodec(
            remove_delegation_token_record.RECORD_TYPE,
            remove_delegation_token_record.MAX_VERSION,
            remove_delegation_token_record.decode_remove_delegation_token_record,
            remove_delegation_token_record.encode_remove_delegation_token_record,
        ),
    ),
    (
        register_controller_record.RegisterControllerRecord,
        MetadataCodec(
            register_controller_record.RECORD_TYPE,
            register_controller_record.MAX_VERSION,
            register_controller_record.decode_register_controller_record,
            register_controller_record.encode_register_controller_record,
        ),
    ),
    (
        clear_elr_record.ClearElrRecord,
        MetadataCodec(
            clear_elr_record.RECORD_TYPE,
            clear_elr_record.MAX_VERSION,
            clear_elr_record.decode_clear_elr_record,
            clear_elr_record.encode_clear_elr_record,
        ),
    ),
]
METADATA_BY_TYPE: Final[dict[int, MetadataCodec]] = {codec.record_type: codec for _, codec in METADATA}
METADATA_BY_CLASS: Final[dict[type[Message], MetadataCodec]] = dict(METADATA)
