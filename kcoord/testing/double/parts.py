"""Errors for single topics and partitions: a rule with such a condition leaves the other ones of a request alone.

Two ways lead to such an answer. A partition that is not to be handled is taken out of the request before the server
gets it, and its error is added to the answer. If it is to be handled all the same, or the request only asks, the
server's answer is overwritten where it names the partition. So a request for all topics has errors as well.

AddPartitionsToTxn is all or nothing, as in Kafka: the other partitions get OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from kcoord.core.refusals import error_response
from kcoord.protocol import (
    add_partitions_to_txn,
    apis,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_producers,
    describe_topic_partitions,
    errors,
    fetch,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    txn_offset_commit,
)
from kcoord.server.exchange import Request
from kcoord.testing.double.selector import PARTITION_FIELDS, Selector, TopicNames

NO_LEADER: Final = -1
NO_ID: Final = bytes(16)
# With this epoch a Fetch has no session, so that its answer has all partitions.
NO_SESSION: Final = -1
# The first versions whose requests have several groups, or several transactions.
OFFSET_FETCH_GROUPS: Final = 8
ADD_PARTITIONS_BATCHES: Final = 4
DELETE_BY_ID: Final = 6
# The first version of Metadata in which an empty list does not mean all topics.
METADATA_NO_TOPICS: Final = 1


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Where an API has its topics: the names of lists in the request and in the answer.

    `make_topic` makes a topic of the answer from its name, its id and its partitions, and `make_partition` one of
    those from its number and an error. Without `make_partition` the API has errors of topics only: the third argument
    of `make_topic` is the error. With `only_asks` a request changes nothing.
    """

    topics: str
    partitions: str
    answers: str
    answer_partitions: str
    make_topic: Callable[[str, bytes, Any], Any]
    make_partition: Callable[[int, int], Any] | None = None
    only_asks: bool = False


LAYOUTS: Final = {
    apis.PRODUCE: Layout(
        "topic_data", "partition_data", "responses", "partition_responses", produce.TopicProduceResponse,
        lambda index, code: produce.PartitionProduceResponse(index, code, -1, -1, -1),
    ),
    apis.FETCH: Layout(
        "topics", "partitions", "responses", "partitions", fetch.FetchableTopicResponse,
        lambda index, code: fetch.PartitionData(index, code, -1, aborted_transactions=None, records=b""),
    ),
    apis.LIST_OFFSETS: Layout(
        "topics", "partitions", "topics", "partitions",
        lambda name, _, parts: list_offsets.ListOffsetsTopicResponse(name, parts),
        list_offsets.ListOffsetsPartitionResponse,
    ),
    apis.OFFSET_COMMIT: Layout(
        "topics", "partitions", "topics", "partitions", offset_commit.OffsetCommitResponseTopic,
        offset_commit.OffsetCommitResponsePartition,
    ),
    apis.TXN_OFFSET_COMMIT: Layout(
        "topics", "partitions", "topics", "partitions",
        lambda name, _, parts: txn_offset_commit.TxnOffsetCommitResponseTopic(name, parts),
        txn_offset_commit.TxnOffsetCommitResponsePartition,
    ),
    apis.OFFSET_DELETE: Layout(
        "topics", "partitions", "topics", "partitions",
        lambda name, _, parts: offset_delete.OffsetDeleteResponseTopic(name, parts),
        offset_delete.OffsetDeleteResponsePartition,
    ),
    apis.DELETE_RECORDS: Layout(
        "topics", "partitions", "topics", "partitions",
        lambda name, _, parts: delete_records.DeleteRecordsTopicResult(name, parts),
        lambda index, code: delete_records.DeleteRecordsPartitionResult(index, -1, code),
    ),
    apis.OFFSET_FOR_LEADER_EPOCH: Layout(
        "topics", "partitions", "topics", "partitions",
        lambda name, _, parts: offset_for_leader_epoch.OffsetForLeaderTopicResult(name, parts),
        lambda index, code: offset_for_leader_epoch.EpochEndOffset(code, index),
    ),
    apis.DESCRIBE_PRODUCERS: Layout(
        "topics", "partition_indexes", "topics", "partitions",
        lambda name, _, parts: describe_producers.TopicResponse(name, parts),
        describe_producers.PartitionResponse,
    ),
    apis.METADATA: Layout(
        "topics", "", "topics", "partitions",
        lambda name, topic_id, code: metadata.MetadataResponseTopic(code, name, topic_id), only_asks=True,
    ),
    apis.DESCRIBE_TOPIC_PARTITIONS: Layout(
        "topics", "", "topics", "partitions",
        lambda name, topic_id, code: describe_topic_partitions.DescribeTopicPartitionsResponseTopic(
            code, name, topic_id
        ),
        only_asks=True,
    ),
    apis.CREATE_TOPICS: Layout(
        "topics", "", "topics", "",
        lambda name, topic_id, code: create_topics.CreatableTopicResult(name, topic_id, code, None),
    ),
    apis.CREATE_PARTITIONS: Layout(
        "topics", "", "results", "", lambda name, _, code: create_partitions.CreatePartitionsTopicResult(name, code)
    ),
    apis.DELETE_TOPICS: Layout(
        "topics", "", "responses", "",
        lambda name, topic_id, code: delete_topics.DeletableTopicResult(name, topic_id, code),
    ),
    apis.OFFSET_FETCH: Layout(
        "topics", "partition_indexes", "topics", "partitions",
        lambda name, _, parts: offset_fetch.OffsetFetchResponseTopic(name, parts),
        lambda index, code: offset_fetch.OffsetFetchResponsePartition(index, -1, -1, "", code), only_asks=True,
    ),
    apis.ADD_PARTITIONS_TO_TXN: Layout(
        "v3_and_below_topics", "partitions", "results_by_topic_v3_and_below", "results_by_partition",
        lambda name, _, parts: add_partitions_to_txn.AddPartitionsToTxnTopicResult(name, parts),
        add_partitions_to_txn.AddPartitionsToTxnPartitionResult,
    ),
}  # fmt: skip
# In newer versions.
DELETE_BY_NAME: Final = Layout("topic_names", "", "responses", "", LAYOUTS[apis.DELETE_TOPICS].make_topic)
FETCH_OF_GROUPS: Final = Layout(
    "topics", "partition_indexes", "topics", "partitions", offset_fetch.OffsetFetchResponseTopics,
    lambda index, code: offset_fetch.OffsetFetchResponsePartitions(index, -1, -1, "", code), only_asks=True,
)  # fmt: skip
ADD_IN_BATCHES: Final = Layout(
    "topics", "partitions", "topic_results", "results_by_partition",
    LAYOUTS[apis.ADD_PARTITIONS_TO_TXN].make_topic, LAYOUTS[apis.ADD_PARTITIONS_TO_TXN].make_partition,
)  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class Part:
    """A topic or partition that gets an error. `owner` is the group or transaction, where a request has several."""

    owner: str
    name: str
    topic_id: bytes
    partition: int
    error_code: int


def layout_of(api_key: int, version: int) -> Layout | None:
    """None: the API has no errors of topics or partitions."""
    if api_key == apis.DELETE_TOPICS and version < DELETE_BY_ID:
        return DELETE_BY_NAME
    if api_key == apis.OFFSET_FETCH and version >= OFFSET_FETCH_GROUPS:
        return FETCH_OF_GROUPS
    if api_key == apis.ADD_PARTITIONS_TO_TXN and version >= ADD_PARTITIONS_BATCHES:
        return ADD_IN_BATCHES
    return LAYOUTS.get(api_key)


def part_errors(
    request: Request, selector: Selector, error_code: int, is_handled: bool, names: TopicNames
) -> PartErrors | None:
    """None: the error is for all of the request."""
    layout = layout_of(request.api_key, request.version)
    if layout is None or request.message is None or (selector.topic is None and selector.partition is None):
        return None
    return PartErrors(request, layout, selector, error_code, is_handled, names)


@final
class PartErrors:
    """What a rule does to one request: `rest` is what the server gets, if anything is left; `apply` adds the errors."""

    def __init__(
        self, request: Request, layout: Layout, selector: Selector, error_code: int, is_handled: bool, names: TopicNames
    ) -> None:
        self._layout = layout
        self._selector = selector
        self._error_code = error_code
        self._names = names
        self._key = request.api_key
        self._version = request.version
        self._overwrites = is_handled or layout.only_asks
        self._refused: list[Part] = []
        self.rest: bytes | None = None
        # The caller's message stays as it is.
        copy = Request(request.frame, request.now_s, request.wall_ms)
        body: Any = copy.message
        is_left = True
        if self._key == apis.FETCH:
            body.session_epoch = NO_SESSION
        if not self._overwrites:
            is_left = self._take_out(body)
        elif self._key == apis.METADATA and not is_handled and self._version >= METADATA_NO_TOPICS and body.topics:
            # A topic with an error is not created.
            self._take_out_topics(body)
        if is_left:
            if self._key == apis.FETCH and self._refused:
                # As a broker that has an error to report.
                body.max_wait_ms = 0
            self.rest = copy.encoded()

    # --- the request

    def _take_out(self, body: Any) -> bool:
        """Returns whether anything is left."""
        is_left = False
        for owner, holder in _owners(self._key, self._version, body):
            if self._layout.make_partition is None:
                self._take_out_topics(holder)
            else:
                self._take_out_partitions(owner, holder)
            is_left = is_left or bool(getattr(holder, self._layout.topics))
        if self._key != apis.ADD_PARTITIONS_TO_TXN:
            return is_left
        for owner, holder in _owners(self._key, self._version, body):
            for topic in getattr(holder, self._layout.topics):
                for index in topic.partitions:
                    self._refuse(owner, topic, index, errors.OPERATION_NOT_ATTEMPTED)
        return False

    def _take_out_topics(self, holder: Any) -> None:
        kept = []
        for topic in getattr(holder, self._layout.topics):
            name = self._name_of(topic)
            if self._is_topic(name):
                topic_id = getattr(topic, "topic_id", NO_ID)
                self._refused.append(Part("", name, topic_id, 0, self._error_code))
            else:
                kept.append(topic)
        setattr(holder, self._layout.topics, kept)

    def _take_out_partitions(self, owner: str, holder: Any) -> None:
        topics = getattr(holder, self._layout.topics)
        for topic in topics:
            name = self._name_of(topic)
            kept = []
            for part in getattr(topic, self._layout.partitions):
                if self._is_partition(name, _index(part)):
                    self._refuse(owner, topic, part, self._error_code)
                else:
                    kept.append(part)
            setattr(topic, self._layout.partitions, kept)
        setattr(holder, self._layout.topics, [one for one in topics if getattr(one, self._layout.partitions)])

    def _refuse(self, owner: str, topic: Any, part: Any, code: int) -> None:
        """Answers name a topic as requests do: by name or by id."""
        self._refused.append(Part(owner, _name(topic), getattr(topic, "topic_id", NO_ID), _index(part), code))

    # --- the answer

    def empty_answer(self, request: Request) -> Any:
        """The answer to a request of which nothing is left, before `apply`."""
        assert request.message is not None
        return type(error_response(self._key, self._version, request.message, self._error_code))()

    def apply(self, message: Any) -> None:
        """Put the errors into an answer of the server, or into an empty one."""
        if self._overwrites:
            for _, holder in _owners(self._key, self._version, message, is_answer=True):
                topics = getattr(holder, self._layout.answers)
                for number, topic in enumerate(topics):
                    if self._layout.make_partition is None:
                        topics[number] = self._overwritten_topic(topic)
                    else:
                        self._overwrite_partitions(topic)
        for part in self._refused:
            self._add(part, _owner_of_answer(self._key, self._version, message, part.owner))

    def _overwritten_topic(self, topic: Any) -> Any:
        name = self._name_of(topic)
        if self._is_topic(name):
            return self._layout.make_topic(name, getattr(topic, "topic_id", NO_ID), self._error_code)
        if self._selector.partition is not None and self._layout.answer_partitions:
            for part in getattr(topic, self._layout.answer_partitions):
                if self._is_partition(name, _index(part)):
                    part.error_code = self._error_code
                    if self._error_code == errors.LEADER_NOT_AVAILABLE:
                        part.leader_id = NO_LEADER
        return topic

    def _overwrite_partitions(self, topic: Any) -> None:
        parts = getattr(topic, self._layout.answer_partitions)
        make = self._layout.make_partition
        assert make is not None
        for number, part in enumerate(parts):
            if self._is_partition(self._name_of(topic), _index(part)):
                parts[number] = make(_index(part), self._error_code)

    def _add(self, part: Part, holder: Any) -> None:
        layout = self._layout
        topics = getattr(holder, layout.answers)
        if layout.make_partition is None:
            topics.append(layout.make_topic(part.name, part.topic_id, part.error_code))
            return
        made = layout.make_partition(part.partition, part.error_code)
        for topic in topics:
            # Clients may read one entry for each topic only.
            if (_name(topic), getattr(topic, "topic_id", NO_ID)) == (part.name, part.topic_id):
                getattr(topic, layout.answer_partitions).append(made)
                return
        topics.append(layout.make_topic(part.name, part.topic_id, [made]))

    # --- what is meant

    def _is_topic(self, name: str) -> bool:
        return self._selector.partition is None and self._selector.topic == name

    def _is_partition(self, name: str, index: int) -> bool:
        return self._selector.topic in (None, name) and self._selector.partition in (None, index)

    def _name_of(self, topic: Any) -> str:
        return _name(topic) or self._names(getattr(topic, "topic_id", NO_ID))


def _name(topic: Any) -> str:
    if isinstance(topic, str):
        return topic
    return (topic.topic if "topic" in topic.FIELDS else topic.name) or ""


def _index(part: Any) -> int:
    if isinstance(part, int):
        return part
    return int(next(getattr(part, name) for name in PARTITION_FIELDS if name in part.FIELDS))


def _owners(api_key: int, version: int, message: Any, is_answer: bool = False) -> list[tuple[str, Any]]:
    """What has the list of topics: the message, or each of its groups or transactions."""
    if api_key == apis.OFFSET_FETCH and version >= OFFSET_FETCH_GROUPS:
        return [(one.group_id, one) for one in message.groups]
    if api_key == apis.ADD_PARTITIONS_TO_TXN and version >= ADD_PARTITIONS_BATCHES:
        found = message.results_by_transaction if is_answer else message.transactions
        return [(one.transactional_id, one) for one in found]
    return [("", message)]


def _owner_of_answer(api_key: int, version: int, message: Any, name: str) -> Any:
    """Where a refused part belongs in an answer."""
    if api_key != apis.ADD_PARTITIONS_TO_TXN or version < ADD_PARTITIONS_BATCHES:
        return message
    for one in message.results_by_transaction:
        if one.transactional_id == name:
            return one
    made = add_partitions_to_txn.AddPartitionsToTxnResult(name)
    message.results_by_transaction.append(made)
    return made
