"""The object that tests use: the address of the server, methods to reset it, and methods to wait without sleeping."""

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
from kcoord.testing.double.controls import Controls
from kcoord.testing.groups import describe
from kcoord.testing.waiting import TIMEOUT_S, WaitTimeout, refuse_on_event_loop

__all__ = ["KcoordServer", "WaitTimeout"]

POLL_S: Final = 0.01
STABLE: Final = "Stable"
# The newest version that identifies topics by name, not by id.
OFFSET_FETCH_VERSION: Final = 8


@final
class KcoordServer(Controls):
    """A server in this process. `settings` maps names to values, as in docs/configuration.md."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        assignments = [f"{name}={value}" for name, value in (settings or {}).items()]
        super().__init__(load(profile="test", assignments=assignments))

    # ---- address

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

    # ---- life cycle

    def start(self) -> None:
        """Start the server. Raises kcoord.server.failures.ServerError.

        A stopped server can be started again, at the same address. State in memory is lost; a data directory
        (`log.dirs` with `log.sync` other than `memory`) is opened again.
        """
        self._thread.start()

    def stop(self) -> None:
        """Stop the server. Raises ServerError if it had failed."""
        self._thread.stop()

    def check(self) -> None:
        """Raise ServerError if the server has failed."""
        self._thread.check()

    def __enter__(self) -> KcoordServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Delete every topic, group, offset and producer, in milliseconds. Idle clients stay connected.

        Also removes all rules, and forgets the requests and log lines of earlier tests.
        """
        self.clear_faults()
        self._thread.call(lambda server: server.reset())
        self._thread.log.recent.clear()

    # ---- waiting

    def wait_stable(self, group: str, members: int | None = None, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group is Stable: all members have joined and have their assigned partitions.

        In a consumer group (KIP-848) this is the coordinator's view: a client receives its assignment with its next
        heartbeat, and the topics of a regular expression follow shortly after its first heartbeat. With `members` the
        group must have exactly this number of members. Raises WaitTimeout after `timeout` seconds. The call blocks; if
        the clients run on the test's own event loop, use `wait_stable_async`.
        """

        def is_there(probe: Probe) -> bool:
            found = describe(probe, group)
            return found.state == STABLE and (members is None or len(found.members) == members)

        wanted = "Stable" if members is None else f"Stable with {members} member{'s' if members != 1 else ''}"
        self._wait(group, f"group {group!r} to be {wanted}", is_there, timeout)

    def wait_committed(self, group: str, topic: str, partition: int, offset: int, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group has committed `offset` or a later one; otherwise like wait_stable."""

        def is_there(probe: Probe) -> bool:
            return _committed(probe, group).get((topic, partition), -1) >= offset

        self._wait(group, f"group {group!r} to commit {topic}-{partition} up to {offset}", is_there, timeout)

    async def wait_stable_async(self, group: str, members: int | None = None, timeout: float = TIMEOUT_S) -> None:
        """Like wait_stable, for a test on an event loop."""
        await asyncio.to_thread(self.wait_stable, group, members, timeout)

    async def wait_committed_async(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = TIMEOUT_S
    ) -> None:
        """Like wait_committed, for a test on an event loop."""
        await asyncio.to_thread(self.wait_committed, group, topic, partition, offset, timeout)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The group's committed offsets by (topic, partition)."""
        with self._probe() as probe:
            return _committed(probe, group)

    def state(self, group: str) -> str:
        """The group's state with Kafka's name; `Dead` if the group does not exist."""
        with self._probe() as probe:
            return describe(probe, group).state

    def _probe(self) -> Probe:
        self._thread.check()
        return Probe(self.bootstrap)

    def _wait(self, group: str, wanted: str, is_there: Callable[[Probe], bool], timeout: float) -> None:
        refuse_on_event_loop()
        end = time.monotonic() + timeout
        with self._probe() as probe:
            while not is_there(probe):
                self._thread.check()
                if time.monotonic() >= end:
                    raise WaitTimeout(f"waited {timeout:g} s for {wanted}\n{self._seen(probe, group)}")
                time.sleep(POLL_S)

    def _seen(self, probe: Probe, group: str) -> str:
        """The server's view of a group, for the message of WaitTimeout."""
        found = describe(probe, group)
        lines = [f"  state: {found.state or 'unknown'}"]
        if found.error_code:
            lines.append(f"  error: {ERROR_NAMES.get(found.error_code, found.error_code)}")
        lines.append(f"  members: {len(found.members)}")
        for member in found.members:
            static = f" (static {member.instance_id})" if member.instance_id else ""
            lines.append(
                f"    {member.member_id}{static} of client {member.client_id!r} at {member.client_host}: {member.owns}"
            )
        offsets = _committed(probe, group)
        lines.append(f"  committed offsets: {'none' if not offsets else ''}")
        lines += [f"    {topic}-{partition}: {offset}" for (topic, partition), offset in sorted(offsets.items())]
        lines.append(self._passed())
        recent = list(self._thread.log.recent)[-10:]
        if recent:
            lines.append("  last lines of the server's log:")
            lines += ["    " + " ".join(f"{name}={value}" for name, value in line.items()) for line in recent]
        return "\n".join(lines)


def _committed(probe: Probe, group: str) -> dict[tuple[str, int], int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
    answer = probe.ask(apis.OFFSET_FETCH, OFFSET_FETCH_VERSION, request, OffsetFetchResponse)
    found: OffsetFetchResponseGroup = answer.groups[0]
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in found.topics
        for partition in topic.partitions
    }
