"""Finds the names of topics in assignments, which have only topic ids.

Metadata usually knows them. Otherwise a task asks for them by id, with pauses, as long as the member needs them: a new
topic may be known to the coordinator before other brokers know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, final

from kcoord.client.consumer.membership import GroupHost, end_tasks
from kcoord.client.consumer.options import log
from kcoord.client.deadline import Backoff
from kcoord.client.errors import KafkaError, may_retry
from kcoord.protocol import apis
from kcoord.protocol.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

# The first version of Metadata that can be asked for topic ids.
METADATA_BY_ID_FROM: Final = 12


@final
class TopicIds:
    """`wanted` says which ids the member needs now; `found` is called when some of them are known."""

    def __init__(self, host: GroupHost, wanted: Callable[[], Collection[bytes]]) -> None:
        self._host = host
        self._wanted = wanted
        self._names: dict[bytes, str] = {}
        self._task: asyncio.Task[None] | None = None

    def names(self, topic_ids: Collection[bytes]) -> dict[bytes, str]:
        """The names of those that are known. Metadata is newer than what was found earlier."""
        known = self._host.cluster.metadata.names_by_id
        names: dict[bytes, str] = {}
        for topic_id in topic_ids:
            name = known.get(topic_id) or self._names.get(topic_id)
            if name is not None:
                names[topic_id] = name
        return names

    def search(self) -> None:
        """Start to look for those that are unknown, unless that is under way."""
        if self._missing() and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._search(), name="kcoord topic ids")

    async def close(self) -> None:
        if self._task is not None:
            await end_tasks([self._task])

    def _missing(self) -> list[bytes]:
        wanted = self._wanted()
        names = self.names(wanted)
        return sorted(topic_id for topic_id in wanted if topic_id not in names)

    async def _search(self) -> None:
        backoff = Backoff(self._host.options.retry_backoff_s, self._host.options.retry_backoff_max_s)
        while True:
            missing = self._missing()
            if not missing:
                return
            try:
                found = await self._ask(missing)
            except KafkaError as error:
                if not may_retry(error):
                    log.error("topics of the assignment of group %s: %s", self._host.group_id, error)
                    return
                found = {}
            if found:
                self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in self._wanted()}
                self._names.update(found)
                # Their leaders are needed, too.
                self._host.cluster.watch(found.values())
                self._host.wake()
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_s())

    async def _ask(self, missing: list[bytes]) -> dict[bytes, str]:
        request = MetadataRequest([MetadataRequestTopic(one, None) for one in missing], allow_auto_topic_creation=False)
        answer = await self._host.cluster.ask_any(
            apis.METADATA, request, MetadataResponse, version_min=METADATA_BY_ID_FROM
        )
        return {one.topic_id: one.name for one in answer.topics if one.name and not one.error_code}
