"""The object that tests get: where the server is, how to clear it, and how to wait for it instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, final

from kcoord.protocol import apis
from kcoord.protocol.errors import ERROR_NAMES
from kcoord.protocol.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from kcoord.server.probe import Probe
from kcoord.server.settings.load import load
from kcoord.server.thread import ServerThread
from kcoord.testing.groups import describe

POLL_S: Final = 0.01
TIMEOUT_S: Final = 10.0
STABLE: Final = "Stable"
# Below the versions that name topics by id.
OFFSET_FETCH_VERSION: Final = 8


class WaitTimeout(AssertionError):
    """What was waited for did not happen in time; the message says what was seen instead."""


@final
class KcoordServer:
    """A server in this process. `settings` are settings by name, as in docs/configuration.md."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        assignments = [f"{name}={value}" for name, value in (settings or {}).items()]
        self._thread = ServerThread(load(profile="test", assignments=assignments))

    # ---- where it is

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, for a client's `bootstrap_servers`."""
        return self._thread.bootstrap

    @property
    def host(self) -> str:
        return self._thread.host

    @property
    def port(self) -> int:
        return self._thread.port

    # ---- life

    def start(self) -> None:
        """Raises kcoord.server.failures.ServerError.

        A stopped server may be started again, at the same address. What it kept in memory is gone; a data directory
        (`log.dirs` with `log.sync` other than `memory`) is opened again.
        """
        self._thread.start()

    def stop(self) -> None:
        """Raises ServerError when the server had failed meanwhile."""
        self._thread.stop()

    def check(self) -> None:
        """Raises ServerError when the server has failed."""
        self._thread.check()

    def __enter__(self) -> KcoordServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Drop every topic, group, offset and producer, in milliseconds. Idle clients stay connected.

        The lines of the server's log that `wait_stable` shows when it fails begin anew as well.
        """
        self._thread.call(lambda server: server.reset())
        self._thread.log.recent.clear()

    # ---- waiting

    def wait_stable(self, group: str, members: int | None = None, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group is Stable: all members have joined and have the partitions that are meant for them.

        In a consumer group (KIP-848) that is what they were told; a client hears it with its next heartbeat, and what
        a regular expression matches comes a moment after the first of them. With `members` the group must have
        exactly so many. Raises WaitTimeout after `timeout` seconds. Blocks, so a test
        whose clients run on its own event loop uses `wait_stable_async`.
        """

        def is_there(probe: Probe) -> bool:
            found = describe(probe, group)
            return found.state == STABLE and (members is None or len(found.members) == members)

        wanted = "Stable" if members is None else f"Stable with {members} member{'s' if members != 1 else ''}"
        self._wait(group, f"group {group!r} to be {wanted}", is_there, timeout)

    def wait_committed(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = TIMEOUT_S
    ) -> None:
        """Wait until the group has committed `offset` or a later one. Otherwise as wait_stable."""

        def is_there(probe: Probe) -> bool:
            return _committed(probe, group).get((topic, partition), -1) >= offset

        self._wait(group, f"group {group!r} to commit {topic}-{partition} up to {offset}", is_there, timeout)

    async def wait_stable_async(
        self, group: str, members: int | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        """wait_stable for a test on an event loop."""
        await asyncio.to_thread(self.wait_stable, group, members, timeout)

    async def wait_committed_async(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = TIMEOUT_S
    ) -> None:
        """wait_committed for a test on an event loop."""
        await asyncio.to_thread(self.wait_committed, group, topic, partition, offset, timeout)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The group's committed offsets by (topic, partition)."""
        with self._probe() as probe:
            return _committed(probe, group)

    def state(self, group: str) -> str:
        """The group's state in Kafka's words; `Dead` when there is none of that name."""
        with self._probe() as probe:
            return describe(probe, group).state

    def _probe(self) -> Probe:
        self._thread.check()
        return Probe(self.bootstrap)

    def _wait(self, group: str, wanted: str, is_there: Callable[[Probe], bool], timeout: float) -> None:
        _refuse_on_event_loop()
        end = time.monotonic() + timeout
        with self._probe() as probe:
            while not is_there(probe):
                self._thread.check()
                if time.monotonic() >= end:
                    raise WaitTimeout(f"waited {timeout:g} s for {wanted}\n{self._seen(probe, group)}")
                time.sleep(POLL_S)

    def _seen(self, probe: Probe, group: str) -> str:
        """What the server knows about a group, for the message of a test that failed."""
        found = describe(probe, group)
        lines = [f"  state: {found.state or 'unknown'}"]
        if found.error_code:
            lines.append(f"  error: {ERROR_NAMES.get(found.error_code, found.error_code)}")
        lines.append(f"  members: {len(found.members)}")
        for member in found.members:
            static = f" (static {member.instance_id})" if member.instance_id else ""
            lines.append(
                f"    {member.member_id}{static} of client {member.client_id!r} at {member.client_host}: "
                f"{member.owns}"
            )
        offsets = _committed(probe, group)
        lines.append(f"  committed offsets: {'none' if not offsets else ''}")
        lines += [f"    {topic}-{partition}: {offset}" for (topic, partition), offset in sorted(offsets.items())]
        recent = list(self._thread.log.recent)[-10:]
        if recent:
            lines.append("  last lines of the server's log:")
            lines += ["    " + " ".join(f"{name}={value}" for name, value in line.items()) for line in recent]
        return "\n".join(lines)


def _refuse_on_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("this would block the event loop; use wait_stable_async or wait_committed_async")


def _committed(probe: Probe, group: str) -> dict[tuple[str, int], int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
    answer = probe.ask(apis.OFFSET_FETCH, OFFSET_FETCH_VERSION, request, OffsetFetchResponse)
    found: OffsetFetchResponseGroup = answer.groups[0]
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in found.topics
        for partition in topic.partitions
    }
