"""Whole-request error answers: the same error for everything a request asks about, in the shape its API has for that.

Where an API has no top-level error, every topic, partition, group or resource of the request is listed with it.
"""

from __future__ import annotations

from kcoord.core.classic.rebalance import join_error
from kcoord.protocol import errors
from kcoord.protocol.api_versions import API_KEY as API_VERSIONS_KEY
from kcoord.protocol.api_versions import MAX_VERSION as API_VERSIONS_MAX
from kcoord.protocol.api_versions import MIN_VERSION as API_VERSIONS_MIN
from kcoord.protocol.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from kcoord.protocol.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from kcoord.protocol.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from kcoord.protocol.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kcoord.protocol.consumer_group_install_assignment import (
    ConsumerGroupInstallAssignmentRequest,
    ConsumerGroupInstallAssignmentResponse,
)
from kcoord.protocol.consumer_group_prepare_assignment import (
    ConsumerGroupPrepareAssignmentRequest,
    ConsumerGroupPrepareAssignmentResponse,
)
from kcoord.protocol.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from kcoord.protocol.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from kcoord.protocol.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from kcoord.protocol.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kcoord.protocol.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from kcoord.protocol.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from kcoord.protocol.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kcoord.protocol.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from kcoord.protocol.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
)
from kcoord.protocol.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from kcoord.protocol.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from kcoord.protocol.heartbeat import HeartbeatRequest, HeartbeatResponse
from kcoord.protocol.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kcoord.protocol.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kcoord.protocol.join_group import JoinGroupRequest
from kcoord.protocol.leave_group import LeaveGroupRequest, LeaveGroupResponse
from kcoord.protocol.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from kcoord.protocol.list_groups import ListGroupsRequest, ListGroupsResponse
from kcoord.protocol.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kcoord.protocol.metadata import MetadataRequest, MetadataResponse, MetadataResponseTopic
from kcoord.protocol.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kcoord.protocol.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kcoord.protocol.offset_for_leader_epoch import EpochEndOffset as LeaderEpochEndOffset
from kcoord.protocol.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kcoord.protocol.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kcoord.protocol.sync_group import SyncGroupRequest, SyncGroupResponse
from kcoord.wire.message import Message


def error_response(api_key: int, version: int, body: Message, error_code: int) -> Message:
    """The answer of this API and version that refuses all of `body`.

    A Produce request with acks=0 has no answer at all; that is the caller's to know. Raises TypeError for a body
    that is no request of an API in the table.
    """
    response = _of_groups(version, body, error_code)
    if response is None:
        response = _of_offsets(version, body, error_code)
    if response is None:
        response = _of_data(version, body, error_code)
    if response is None:
        response = _of_topics(body, error_code)
    if response is None:
        response = _of_cluster(version, body, error_code)
    if response is None:
        raise TypeError(f"no error answer for API {api_key}: {type(body).__name__}")
    return response


def _of_groups(version: int, body: Message, error_code: int) -> Message | None:
    if isinstance(body, HeartbeatRequest):
        return HeartbeatResponse(error_code=error_code)
    if isinstance(body, JoinGroupRequest):
        return join_error(version, "", error_code)
    if isinstance(body, SyncGroupRequest):
        return SyncGroupResponse(error_code=error_code, assignment=b"")
    if isinstance(body, LeaveGroupRequest):
        return LeaveGroupResponse(error_code=error_code)
    if isinstance(body, DescribeGroupsRequest):
        described: list[DescribedGroup] = []
        for group_id in body.groups:
            described.append(DescribedGroup(error_code=error_code, group_id=group_id))
        return DescribeGroupsResponse(groups=described)
    if isinstance(body, ConsumerGroupHeartbeatRequest):
        return ConsumerGroupHeartbeatResponse(error_code=error_code)
    if isinstance(body, ConsumerGroupPrepareAssignmentRequest):
        return ConsumerGroupPrepareAssignmentResponse(error_code=error_code)
    if isinstance(body, ConsumerGroupInstallAssignmentRequest):
        return ConsumerGroupInstallAssignmentResponse(error_code=error_code)
    if isinstance(body, ConsumerGroupDescribeRequest):
        consumer_groups: list[DescribedConsumerGroup] = []
        for group_id in body.group_ids:
            consumer_groups.append(DescribedConsumerGroup(error_code=error_code, group_id=group_id))
        return ConsumerGroupDescribeResponse(groups=consumer_groups)
    if isinstance(body, ListGroupsRequest):
        return ListGroupsResponse(error_code=error_code)
    if isinstance(body, DeleteGroupsRequest):
        results: list[DeletableGroupResult] = []
        for group_id in body.groups_names:
            results.append(DeletableGroupResult(group_id, error_code))
        return DeleteGroupsResponse(results=results)
    return None


def _of_offsets(version: int, body: Message, error_code: int) -> Message | None:
    if isinstance(body, OffsetCommitRequest):
        topics: list[OffsetCommitResponseTopic] = []
        for topic in body.topics:
            parts: list[OffsetCommitResponsePartition] = []
            for part in topic.partitions:
                parts.append(OffsetCommitResponsePartition(part.partition_index, error_code))
            topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, parts))
        return OffsetCommitResponse(topics=topics)
    if isinstance(body, OffsetFetchRequest):
        return _of_offset_fetch(version, body, error_code)
    if isinstance(body, OffsetDeleteRequest):
        return OffsetDeleteResponse(error_code=error_code)
    return None


def _of_offset_fetch(version: int, body: OffsetFetchRequest, error_code: int) -> Message:
    """Per group from version 8, at the top from 2, and in every partition before that (KIP-88, KIP-709)."""
    if version >= 8:
        groups: list[OffsetFetchResponseGroup] = []
        for group in body.groups:
            groups.append(OffsetFetchResponseGroup(group.group_id, [], error_code))
        return OffsetFetchResponse(groups=groups)
    topics: list[OffsetFetchResponseTopic] = []
    if version < 2 and body.topics is not None:
        for topic in body.topics:
            parts: list[OffsetFetchResponsePartition] = []
            for index in topic.partition_indexes:
                parts.append(OffsetFetchResponsePartition(index, -1, -1, "", error_code))
            topics.append(OffsetFetchResponseTopic(topic.name, parts))
    return OffsetFetchResponse(topics=topics, error_code=error_code if version >= 2 else errors.NONE)


def _of_data(version: int, body: Message, error_code: int) -> Message | None:
    if isinstance(body, ProduceRequest):
        return _of_produce(body, error_code)
    if isinstance(body, FetchRequest):
        return _of_fetch(version, body, error_code)
    if isinstance(body, ListOffsetsRequest):
        listed: list[ListOffsetsTopicResponse] = []
        for topic in body.topics:
            offsets: list[ListOffsetsPartitionResponse] = []
            for part in topic.partitions:
                offsets.append(ListOffsetsPartitionResponse(part.partition_index, error_code, -1, -1, -1))
            listed.append(ListOffsetsTopicResponse(topic.name, offsets))
        return ListOffsetsResponse(topics=listed)
    if isinstance(body, OffsetForLeaderEpochRequest):
        epochs: list[OffsetForLeaderTopicResult] = []
        for epoch_topic in body.topics:
            ends: list[LeaderEpochEndOffset] = []
            for epoch_part in epoch_topic.partitions:
                ends.append(LeaderEpochEndOffset(error_code, epoch_part.partition, -1, -1))
            epochs.append(OffsetForLeaderTopicResult(epoch_topic.topic, ends))
        return OffsetForLeaderEpochResponse(topics=epochs)
    if isinstance(body, DeleteRecordsRequest):
        deleted: list[DeleteRecordsTopicResult] = []
        for records_topic in body.topics:
            marks: list[DeleteRecordsPartitionResult] = []
            for records_part in records_topic.partitions:
                marks.append(DeleteRecordsPartitionResult(records_part.partition_index, -1, error_code))
            deleted.append(DeleteRecordsTopicResult(records_topic.name, marks))
        return DeleteRecordsResponse(topics=deleted)
    if isinstance(body, InitProducerIdRequest):
        return InitProducerIdResponse(error_code=error_code, producer_id=-1, producer_epoch=-1)
    return None


def _of_produce(body: ProduceRequest, error_code: int) -> Message:
    topics: list[TopicProduceResponse] = []
    for topic in body.topic_data:
        parts: list[PartitionProduceResponse] = []
        for part in topic.partition_data:
            parts.append(PartitionProduceResponse(part.index, error_code, -1, -1, -1))
        topics.append(TopicProduceResponse(topic.name, topic.topic_id, parts))
    return ProduceResponse(responses=topics)


def _of_fetch(version: int, body: FetchRequest, error_code: int) -> Message:
    """At the top from version 7, and in every partition as long as those go by name."""
    topics: list[FetchableTopicResponse] = []
    if version < 13:
        for topic in body.topics:
            parts: list[PartitionData] = []
            for part in topic.partitions:
                parts.append(
                    PartitionData(part.partition, error_code, -1, aborted_transactions=None, records=b"")
                )
            topics.append(FetchableTopicResponse(topic.topic, topic.topic_id, parts))
    top_error = error_code if version >= 7 else errors.NONE
    return FetchResponse(error_code=top_error, session_id=body.session_id, responses=topics)


def _of_topics(body: Message, error_code: int) -> Message | None:
    if isinstance(body, CreateTopicsRequest):
        created: list[CreatableTopicResult] = []
        for new_topic in body.topics:
            created.append(
                CreatableTopicResult(name=new_topic.name, error_code=error_code, error_message=None)
            )
        return CreateTopicsResponse(topics=created)
    if isinstance(body, DeleteTopicsRequest):
        deleted: list[DeletableTopicResult] = []
        for state in body.topics:
            deleted.append(DeletableTopicResult(state.name, state.topic_id, error_code, None))
        for name in body.topic_names:
            deleted.append(DeletableTopicResult(name, error_code=error_code))
        return DeleteTopicsResponse(responses=deleted)
    if isinstance(body, CreatePartitionsRequest):
        grown: list[CreatePartitionsTopicResult] = []
        for grow_topic in body.topics:
            grown.append(CreatePartitionsTopicResult(grow_topic.name, error_code, None))
        return CreatePartitionsResponse(results=grown)
    if isinstance(body, DescribeTopicPartitionsRequest):
        described: list[DescribeTopicPartitionsResponseTopic] = []
        for asked in body.topics:
            described.append(DescribeTopicPartitionsResponseTopic(error_code=error_code, name=asked.name))
        return DescribeTopicPartitionsResponse(topics=described)
    if isinstance(body, MetadataRequest):
        topics: list[MetadataResponseTopic] = []
        if body.topics is not None:
            for topic in body.topics:
                name = topic.name if topic.name is not None else ""
                topics.append(MetadataResponseTopic(error_code=error_code, name=name, topic_id=topic.topic_id))
        return MetadataResponse(topics=topics, error_code=error_code)
    return None


def _of_cluster(version: int, body: Message, error_code: int) -> Message | None:
    if isinstance(body, ApiVersionsRequest):
        keys: list[ApiVersion] = []
        if error_code == errors.UNSUPPORTED_VERSION:
            # Enough for a client to ask again in a version that is known here (KIP-511).
            keys.append(ApiVersion(API_VERSIONS_KEY, API_VERSIONS_MIN, API_VERSIONS_MAX))
        return ApiVersionsResponse(error_code=error_code, api_keys=keys)
    if isinstance(body, FindCoordinatorRequest):
        if version < 4:
            return FindCoordinatorResponse(
                error_code=error_code, error_message=None, node_id=-1, host="", port=-1
            )
        coordinators: list[Coordinator] = []
        for key in body.coordinator_keys:
            coordinators.append(Coordinator(key, -1, "", -1, error_code, None))
        return FindCoordinatorResponse(coordinators=coordinators)
    if isinstance(body, DescribeClusterRequest):
        return DescribeClusterResponse(error_code=error_code, error_message=None)
    if isinstance(body, DescribeConfigsRequest):
        described: list[DescribeConfigsResult] = []
        for resource in body.resources:
            described.append(
                DescribeConfigsResult(error_code, None, resource.resource_type, resource.resource_name, [])
            )
        return DescribeConfigsResponse(results=described)
    if isinstance(body, IncrementalAlterConfigsRequest):
        altered: list[AlterConfigsResourceResponse] = []
        for change in body.resources:
            altered.append(
                AlterConfigsResourceResponse(error_code, None, change.resource_type, change.resource_name)
            )
        return IncrementalAlterConfigsResponse(responses=altered)
    if isinstance(body, ListConfigResourcesRequest):
        return ListConfigResourcesResponse(error_code=error_code)
    return None
