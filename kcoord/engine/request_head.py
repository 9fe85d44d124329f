"""The beginning of a member's requests, which is the same in each: the group, the member and its epoch or generation.

A session remembers the last one of an API, decoded. If its next request of that API begins with the same bytes in the
same version, nothing has to be decoded, and the strings have been hashed already. Equal bytes mean the same, so a head
never becomes wrong. What is remembered with it of topics and their offsets (topic_commit.py) may, and is checked.
"""

from __future__ import annotations

from typing import Final, final

from kcoord.engine.topic_commit import TopicCommit
from kcoord.wire.primitives import Reader, i64

# What a connection remembers at most: a head of so many bytes, and commits of so many topics.
HEAD_BYTES_MAX: Final = 512
TOPICS_MAX: Final = 16


@final
class RequestHead:
    """Group id, epoch or generation, member id and instance id, in this order."""

    def __init__(
        self, raw: bytes, version: int, group_id: str, epoch: int, member_id: str, instance_id: str | None
    ) -> None:
        self.raw = raw
        self.size: i64 = len(raw)
        self.version = version
        self.group_id = group_id
        self.epoch = epoch
        self.member_id = member_id
        self.instance_id = instance_id
        # By topic name.
        self.topic_commits: dict[str, TopicCommit] = {}
        # Those of the last requests, by the place of the topic in them.
        self.places: list[TopicCommit] = []

    def remember(self, one: TopicCommit) -> None:
        if len(self.topic_commits) < TOPICS_MAX or one.name in self.topic_commits:
            self.topic_commits[one.name] = one

    def put(self, place: int, one: TopicCommit, wire: bytes) -> None:
        """A request named the topic by these bytes, at this place."""
        if place >= TOPICS_MAX or self.topic_commits.get(one.name) is not one:
            return
        one.wire = wire
        if place < len(self.places):
            self.places[place] = one
        elif place == len(self.places):
            self.places.append(one)

    def at(self, place: int, reader: Reader) -> TopicCommit | None:
        """The one at this place, with the reader behind the topic's name or id; None, and the reader stays where it is,
        if another topic is next.
        """
        if place >= len(self.places):
            return None
        one = self.places[place]
        start = reader.pos
        end: i64 = start + len(one.wire)
        if end > reader.end or one.topic.is_deleted or reader.buf[start:end] != one.wire:
            return None
        reader.pos = end
        return one


def read_head(
    reader: Reader, known: RequestHead | None, version: int, is_compact: bool, has_instance: bool
) -> RequestHead:
    """The head that is next in `reader`: `known`, if the bytes are the same, or a new one. Raises DecodeError.

    `known` must be of the same API.
    """
    start = reader.pos
    if known is not None and known.version == version:
        end = start + known.size
        if end <= reader.end and reader.buf[start:end] == known.raw:
            reader.pos = end
            return known
    group_id = reader.compact_string() if is_compact else reader.string()
    epoch = reader.int32()
    member_id = reader.compact_string() if is_compact else reader.string()
    instance_id: str | None = None
    if has_instance:
        instance_id = reader.compact_nullable_string() if is_compact else reader.nullable_string()
    return RequestHead(reader.buf[start : reader.pos], version, group_id, epoch, member_id, instance_id)
