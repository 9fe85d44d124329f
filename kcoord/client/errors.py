"""What can go wrong for a user of the client. Every exception that it raises on purpose is a KafkaError."""

from __future__ import annotations

from typing import ClassVar

from kcoord.protocol import errors


class KafkaError(Exception):
    """The base class of all errors of the client."""

    # Whether the same call may succeed if it is made again.
    is_retriable: ClassVar[bool] = False


class RequestTimedOut(KafkaError):
    """There was no result within the time limit. What was asked for may have happened."""

    is_retriable = True


class ConnectionLost(KafkaError):
    """A connection could not be opened, or ended before the answer. What was asked for may have happened."""

    is_retriable = True


class UnsupportedVersion(KafkaError):
    """The broker has no version of an API that has what the call needs."""


class IllegalState(KafkaError):
    """The call is not allowed now: the client is closed, not started, or used in another way."""


class InvalidConfiguration(KafkaError, ValueError):
    """An argument of the client has a value that cannot work."""


class SerializationFailed(KafkaError):
    """A key or value could not be turned into bytes, or bytes could not be turned into it."""


class CorruptRecord(KafkaError):
    """Records of a broker fail their checksum, or are no record batches."""


class BrokerError(KafkaError):
    """A broker refused a request, or a part of it. `code` and `name` are Kafka's."""

    def __init__(self, code: int, subject: str = "", detail: str | None = None) -> None:
        self.code = code
        self.name = errors.ERROR_NAMES.get(code, f"error code {code}")
        self.subject = subject
        self.detail = detail
        super().__init__(f"{subject}: {self.name}" if subject else self.name)
        if detail:
            self.args = (f"{self.args[0]} ({detail})",)

    @property
    def is_retriable_code(self) -> bool:
        """Whether Kafka's clients try again after this code."""
        return self.code in errors.RETRIABLE


class InvalidGroupId(BrokerError):
    """The group id is missing or empty, and the call needs one (KIP-289)."""


class IllegalGeneration(BrokerError):
    """The member is not of the group's current generation."""


class StaleMemberEpoch(BrokerError):
    """The member's epoch is not the current one."""


class UnknownMember(BrokerError):
    """The group has no such member: it was evicted, or it has left."""


class FencedInstanceId(BrokerError):
    """Another member has taken over the group instance id."""


class FencedMemberEpoch(BrokerError):
    """The coordinator has fenced the member."""


class RebalanceInProgress(BrokerError):
    """The group is rebalancing, so the offsets cannot be committed now."""


class UnknownTopicOrPartition(BrokerError):
    """There is no such topic or partition."""


class OffsetOutOfRange(BrokerError):
    """The position is outside the log, and the reset policy is `none`."""


class ProducerFenced(BrokerError):
    """Another producer with the same transactional id has replaced this one."""


class OutOfOrderSequence(BrokerError):
    """The broker misses records of this producer."""


class RecordTooLarge(BrokerError):
    """A record or request is larger than the broker or the producer accepts."""


class UnstableOffsetCommit(BrokerError):
    """Offsets of an open transaction hide the committed ones."""


class AuthorizationFailed(BrokerError):
    """The client may not do that."""


class TransactionAbortable(BrokerError):
    """The transaction must be aborted. The producer can be used after that."""


class TransactionAborted(KafkaError):
    """The transaction was aborted before the record was sent."""


class AssignorFailed(KafkaError):
    """A client-side assignor of this member raised an exception, or returned what cannot be assigned (KIP-848)."""


class NoCommittedOffset(KafkaError):
    """A partition has no committed offset, and the reset policy is `none`."""


_CLASSES: dict[int, type[BrokerError]] = {
    errors.INVALID_GROUP_ID: InvalidGroupId,
    errors.ILLEGAL_GENERATION: IllegalGeneration,
    errors.STALE_MEMBER_EPOCH: StaleMemberEpoch,
    errors.UNKNOWN_MEMBER_ID: UnknownMember,
    errors.FENCED_INSTANCE_ID: FencedInstanceId,
    errors.FENCED_MEMBER_EPOCH: FencedMemberEpoch,
    errors.REBALANCE_IN_PROGRESS: RebalanceInProgress,
    errors.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartition,
    errors.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    errors.PRODUCER_FENCED: ProducerFenced,
    errors.INVALID_PRODUCER_EPOCH: ProducerFenced,
    errors.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfOrderSequence,
    errors.MESSAGE_TOO_LARGE: RecordTooLarge,
    errors.RECORD_LIST_TOO_LARGE: RecordTooLarge,
    errors.UNSTABLE_OFFSET_COMMIT: UnstableOffsetCommit,
    errors.TOPIC_AUTHORIZATION_FAILED: AuthorizationFailed,
    errors.GROUP_AUTHORIZATION_FAILED: AuthorizationFailed,
    errors.CLUSTER_AUTHORIZATION_FAILED: AuthorizationFailed,
    errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: AuthorizationFailed,
    errors.TRANSACTION_ABORTABLE: TransactionAbortable,
}


def error_for(code: int, subject: str = "", detail: str | None = None) -> BrokerError:
    """The exception for an error code. `subject` names what was refused, such as `topic a`."""
    return _CLASSES.get(code, BrokerError)(code, subject, detail)


def check(code: int, subject: str = "", detail: str | None = None) -> None:
    """Raise the exception for an error code other than NONE."""
    if code != errors.NONE:
        raise error_for(code, subject, detail)


def may_retry(error: KafkaError) -> bool:
    """Whether a call that failed with this error may succeed if it is made again."""
    return error.is_retriable or (isinstance(error, BrokerError) and error.is_retriable_code)
