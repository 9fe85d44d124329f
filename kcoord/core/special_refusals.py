"""Whole-request errors of the APIs whose answers change their shape by version, or are not one list.

The schema of such a request names its function here; the others describe their answer (`refusal` in schemas/requests).
"""

from __future__ import annotations

from typing import Final, cast

from kcoord.core.classic.rebalance import join_error
from kcoord.core.offsets.transactional import error_of_version
from kcoord.protocol import errors
from kcoord.protocol.add_offsets_to_txn import AddOffsetsToTxnResponse
from kcoord.protocol.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from kcoord.protocol.api_versions import API_KEY as API_VERSIONS_KEY
from kcoord.protocol.api_versions import MAX_VERSION as API_VERSIONS_MAX
from kcoord.protocol.api_versions import MIN_VERSION as API_VERSIONS_MIN
from kcoord.protocol.api_versions import ApiVersion, ApiVersionsResponse
from kcoord.protocol.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kcoord.protocol.end_txn import EndTxnResponse
from kcoord.protocol.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kcoord.protocol.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.init_producer_id import InitProducerIdResponse
from kcoord.protocol.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from kcoord.protocol.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kcoord.protocol.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kcoord.protocol.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kcoord.wire.message import Message

# Errors that an answer to OffsetFetch has for partitions only.
OFFSET_ERRORS: Final = (
    errors.UNSTABLE_OFFSET_COMMIT,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UNKNOWN_TOPIC_ID,
    errors.TOPIC_AUTHORIZATION_FAILED,
)


def refuse_join_group(version: int, body: Message, error_code: int) -> Message:
    """A missing protocol name is null from version 7 on, and empty before that."""
    return join_error(version, "", error_code)


def refuse_offset_fetch(version: int, body: Message, error_code: int) -> Message:
    """Per group from version 8, at the top from 2, and in every partition before that (KIP-88, KIP-709).

    What a broker only ever says of a partition stays in the partitions in every version.
    """
    asked = cast(OffsetFetchRequest, body)
    is_of_partition = error_code in OFFSET_ERRORS
    if version >= 8:
        groups: list[OffsetFetchResponseGroup] = []
        for group in asked.groups:
            if is_of_partition and group.topics is not None:
                groups.append(OffsetFetchResponseGroup(group.group_id, _offset_topics(group, error_code)))
            else:
                groups.append(OffsetFetchResponseGroup(group.group_id, [], error_code))
        return OffsetFetchResponse(groups=groups)
    topics: list[OffsetFetchResponseTopic] = []
    if (version < 2 or is_of_partition) and asked.topics is not None:
        for topic in asked.topics:
            parts: list[OffsetFetchResponsePartition] = []
            for index in topic.partition_indexes:
                parts.append(OffsetFetchResponsePartition(index, -1, -1, "", error_code))
            topics.append(OffsetFetchResponseTopic(topic.name, parts))
    is_at_top = version >= 2 and not topics
    return OffsetFetchResponse(topics=topics, error_code=error_code if is_at_top else errors.NONE)


def _offset_topics(group: OffsetFetchRequestGroup, error_code: int) -> list[OffsetFetchResponseTopics]:
    topics: list[OffsetFetchResponseTopics] = []
    for topic in group.topics or ():
        parts: list[OffsetFetchResponsePartitions] = []
        for index in topic.partition_indexes:
            parts.append(OffsetFetchResponsePartitions(index, -1, -1, "", error_code))
        topics.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, parts))
    return topics


def refuse_fetch(version: int, body: Message, error_code: int) -> Message:
    """At the top from version 7, and in every partition as long as those go by name."""
    asked = cast(FetchRequest, body)
    topics: list[FetchableTopicResponse] = []
    if version < 13:
        for topic in asked.topics:
            parts: list[PartitionData] = []
            for part in topic.partitions:
                parts.append(PartitionData(part.partition, error_code, -1, aborted_transactions=None, records=b""))
            topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, parts))
    top_error = error_code if version >= 7 else errors.NONE
    return FetchResponse(error_code=top_error, session_id=asked.session_id, responses=topics)


def refuse_delete_topics(version: int, body: Message, error_code: int) -> Message:
    """By id or name from version 6, by name before that: two lists of the request."""
    asked = cast(DeleteTopicsRequest, body)
    deleted: list[DeletableTopicResult] = []
    for state in asked.topics:
        deleted.append(DeletableTopicResult(state.name, state.topic_id, error_code, None))
    for name in asked.topic_names:
        deleted.append(DeletableTopicResult(name, error_code=error_code))
    return DeleteTopicsResponse(responses=deleted)


def refuse_metadata(version: int, body: Message, error_code: int) -> Message:
    """In every topic, and at the top where the version has that. Null topics ask for all of them."""
    asked = cast(MetadataRequest, body)
    topics: list[MetadataResponseTopic] = []
    if asked.topics is not None:
        for topic in asked.topics:
            name = topic.name if topic.name is not None else ""
            topics.append(MetadataResponseTopic(error_code=error_code, name=name, topic_id=topic.topic_id))
    return MetadataResponse(topics=topics, error_code=error_code)


def refuse_api_versions(version: int, body: Message, error_code: int) -> Message:
    keys: list[ApiVersion] = []
    if error_code == errors.UNSUPPORTED_VERSION:
        # Enough for a client to ask again in a version that is known here (KIP-511).
        keys.append(ApiVersion(API_VERSIONS_KEY, API_VERSIONS_MIN, API_VERSIONS_MAX))
    return ApiVersionsResponse(error_code=error_code, api_keys=keys)


def refuse_find_coordinator(version: int, body: Message, error_code: int) -> Message:
    """For each key from version 4, for the only one before that (KIP-699)."""
    if version < 4:
        return FindCoordinatorResponse(error_code=error_code, error_message=None, node_id=-1, host="", port=-1)
    coordinators: list[Coordinator] = []
    for key in cast(FindCoordinatorRequest, body).coordinator_keys:
        coordinators.append(Coordinator(key, -1, "", -1, error_code, None))
    return FindCoordinatorResponse(coordinators=coordinators)


def refuse_write_txn_markers(version: int, body: Message, error_code: int) -> Message:
    """In every partition of every marker."""
    response = WriteTxnMarkersResponse()
    for marker in cast(WriteTxnMarkersRequest, body).markers:
        result = WritableTxnMarkerResult(marker.producer_id)
        for topic in marker.topics:
            partitions = [WritableTxnMarkerPartitionResult(index, error_code) for index in topic.partition_indexes]
            result.topics.append(WritableTxnMarkerTopicResult(topic.name, partitions))
        response.markers.append(result)
    return response


def refuse_add_partitions_to_txn(version: int, body: Message, error_code: int) -> Message:
    """At the top from version 4, and in every partition before that."""
    error = transaction_refusal(error_code)
    if version >= 4:
        return AddPartitionsToTxnResponse(error_code=error)
    response = AddPartitionsToTxnResponse()
    for topic in cast(AddPartitionsToTxnRequest, body).v3_and_below_topics:
        results = [AddPartitionsToTxnPartitionResult(index, error) for index in topic.partitions]
        response.results_by_topic_v3_and_below.append(AddPartitionsToTxnTopicResult(topic.name, results))
    return response


def refuse_add_offsets_to_txn(version: int, body: Message, error_code: int) -> Message:
    return AddOffsetsToTxnResponse(error_code=transaction_refusal(error_code))


def refuse_end_txn(version: int, body: Message, error_code: int) -> Message:
    return EndTxnResponse(error_code=transaction_refusal(error_code))


def transaction_refusal(error_code: int) -> int:
    """The error that transactional producers handle correctly.

    A broker's coordinator, too, answers an error of its disk as one of its own, which clients retry. After
    UNKNOWN_SERVER_ERROR clients may go on with a wrong state (KAFKA-14034).
    """
    if error_code == errors.KAFKA_STORAGE_ERROR:
        return errors.COORDINATOR_NOT_AVAILABLE
    if error_code == errors.UNKNOWN_SERVER_ERROR:
        return errors.INVALID_TXN_STATE
    return error_code


def refuse_produce(version: int, body: Message, error_code: int) -> Message:
    """In every partition. After a fault of the server, nobody knows whether a batch was appended.

    Producers repeat it after REQUEST_TIMED_OUT, and an idempotent one finds the copy. They would not after
    UNKNOWN_SERVER_ERROR (KAFKA-14034).
    """
    if error_code == errors.UNKNOWN_SERVER_ERROR:
        error_code = errors.REQUEST_TIMED_OUT
    responses: list[TopicProduceResponse] = []
    for topic in cast(ProduceRequest, body).topic_data:
        partitions: list[PartitionProduceResponse] = []
        for partition in topic.partition_data:
            partitions.append(PartitionProduceResponse(partition.index, error_code, -1, -1, -1))
        responses.append(TopicProduceResponse(topic.name, topic.topic_id, partitions))
    return ProduceResponse(responses)


def refuse_init_producer_id(version: int, body: Message, error_code: int) -> Message:
    """Producers repeat the request after COORDINATOR_NOT_AVAILABLE, which costs them an epoch at the most."""
    if error_code in (errors.UNKNOWN_SERVER_ERROR, errors.KAFKA_STORAGE_ERROR):
        error_code = errors.COORDINATOR_NOT_AVAILABLE
    return InitProducerIdResponse(0, error_code, -1, -1)


def refuse_txn_offset_commit(version: int, body: Message, error_code: int) -> Message:
    """In every partition. Clients of a transaction give up on codes that they do not expect from a coordinator."""
    asked = cast(TxnOffsetCommitRequest, body)
    if error_code == errors.UNKNOWN_SERVER_ERROR:
        error_code = errors.INVALID_TXN_STATE
    error_code = error_of_version(error_code, version)
    topics: list[TxnOffsetCommitResponseTopic] = []
    for topic in asked.topics:
        parts = [TxnOffsetCommitResponsePartition(p.partition_index, error_code) for p in topic.partitions]
        topics.append(TxnOffsetCommitResponseTopic(topic.name, parts))
    return TxnOffsetCommitResponse(0, topics)
