"""The events of a group from its partition of `__consumer_offsets`, whether that is a file or comes from a server."""

from __future__ import annotations

from typing import final

from kcoord.cli.epochs import Epochs
from kcoord.core.groups.cause_header import decode_cause
from kcoord.engine.group_events import event_document
from kcoord.history.timeline import GroupTimeline
from kcoord.log.typed_records import RecordReader
from kcoord.wire.message import Message
from kcoord.wire.record_batch import BatchHeader, Record


@final
class CoordinatorLog:
    """Derives the events of a group from the records of its partition of `__consumer_offsets`."""

    def __init__(self, epochs: Epochs, topic: str, partition: int) -> None:
        self._epochs = epochs
        self._topic = topic
        self._partition = partition
        self._timeline = GroupTimeline()
        self._reader = RecordReader()

    def add(self, header: BatchHeader, record: Record) -> None:
        typed = self._reader.read(self._topic, header, record)
        if typed.group == self._epochs.group and isinstance(typed.key, Message):
            cause = decode_cause(record.headers)
            self._timeline.replay(record.offset, record.timestamp, typed.key, typed.value, cause)

    def end(self) -> None:
        """All records were added."""
        self._epochs.events += [event_document(event, self._partition) for event in self._timeline.take()]
