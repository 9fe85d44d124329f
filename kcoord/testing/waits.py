"""Waits of a test on groups. The server looks at each condition after every turn, so nothing is polled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kcoord.protocol.errors import ERROR_NAMES
from kcoord.server.server import Server
from kcoord.testing.double.controls import Controls
from kcoord.testing.double.watching import CoreView, Watch, Watches, view
from kcoord.testing.groups import SeenGroup, committed_offsets, describe
from kcoord.testing.waiting import TIMEOUT_S, WaitTimeout, refuse_on_event_loop

STABLE: Final = "Stable"
EMPTY: Final = ("Empty", "Dead")
# How often a wait looks whether the server still runs.
ALIVE_S: Final = 0.2
LOG_LINES_SHOWN: Final = 10


class GroupWaits(Controls):
    """The part of the fixture that knows groups. All waits raise WaitTimeout, which shows what the server has seen.

    They block; a test on an event loop uses the forms whose names end with `_async`.
    """

    def wait_stable(self, group: str, members: int | None = None, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group is Stable: all members have joined and have their assigned partitions.

        In a consumer group (KIP-848) this is the coordinator's view: a client receives its assignment with its next
        heartbeat, and the topics of a regular expression follow shortly after its first heartbeat. With `members` the
        group must have exactly this number of members.
        """
        wanted = "Stable" if members is None else f"Stable with {_members_text(members)}"
        self._wait_group(
            group, f"group {group!r} to be {wanted}",
            lambda found: found.state == STABLE and (members is None or len(found.members) == members), timeout,
        )  # fmt: skip

    def wait_members(self, group: str, members: int, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group has exactly this number of members, in whichever state."""
        wanted = f"group {group!r} to have {_members_text(members)}"
        self._wait_group(group, wanted, lambda found: len(found.members) == members, timeout)

    def wait_empty(self, group: str, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group has no members: they have left, or their sessions have expired."""
        self._wait_group(group, f"group {group!r} to be empty", lambda found: found.state in EMPTY, timeout)

    def wait_committed(self, group: str, topic: str, partition: int, offset: int, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group has committed `offset` or a later one."""

        def is_met(seen: CoreView) -> bool:
            return committed_offsets(seen, group).get((topic, partition), -1) >= offset

        self._wait(group, f"group {group!r} to commit {topic}-{partition} up to {offset}", is_met, timeout)

    def wait_lag(self, group: str, lag: int = 0, topic: str | None = None, timeout: float = TIMEOUT_S) -> None:
        """Wait until the group's lag is at most `lag` records, over all partitions of the topics it has committed.

        A partition without a commit counts from its first record.
        """
        of_topic = "" if topic is None else f" in {topic}"
        wanted = f"group {group!r} to have a lag of at most {lag}{of_topic}"
        self._wait(group, wanted, lambda seen: 0 <= _lag(seen, group, topic) <= lag, timeout)

    async def wait_stable_async(self, group: str, members: int | None = None, timeout: float = TIMEOUT_S) -> None:
        """Like wait_stable."""
        await asyncio.to_thread(self.wait_stable, group, members, timeout)

    async def wait_members_async(self, group: str, members: int, timeout: float = TIMEOUT_S) -> None:
        """Like wait_members."""
        await asyncio.to_thread(self.wait_members, group, members, timeout)

    async def wait_empty_async(self, group: str, timeout: float = TIMEOUT_S) -> None:
        """Like wait_empty."""
        await asyncio.to_thread(self.wait_empty, group, timeout)

    async def wait_committed_async(
        self, group: str, topic: str, partition: int, offset: int, timeout: float = TIMEOUT_S
    ) -> None:
        """Like wait_committed."""
        await asyncio.to_thread(self.wait_committed, group, topic, partition, offset, timeout)

    async def wait_lag_async(
        self, group: str, lag: int = 0, topic: str | None = None, timeout: float = TIMEOUT_S
    ) -> None:
        """Like wait_lag."""
        await asyncio.to_thread(self.wait_lag, group, lag, topic, timeout)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The group's committed offsets by (topic, partition)."""
        return self._thread.call(lambda server: committed_offsets(view(server), group))

    def state(self, group: str) -> str:
        """The group's state with Kafka's name; `Dead` if the group does not exist."""
        return self._thread.call(lambda server: describe(view(server), group)).state

    def lag(self, group: str, topic: str | None = None) -> int:
        """The group's lag in records, as `wait_lag` counts it; -1 if it has committed nothing."""
        return self._thread.call(lambda server: _lag(view(server), group, topic))

    # --- waiting

    def _wait_group(self, group: str, wanted: str, is_met: Callable[[SeenGroup], bool], timeout: float) -> None:
        self._wait(group, wanted, lambda seen: is_met(describe(seen, group)), timeout)

    def _wait(self, group: str, wanted: str, is_met: Callable[[CoreView], bool], timeout: float) -> None:
        refuse_on_event_loop()
        watch = Watch(is_met)
        self._thread.call(lambda _: self._watches().add(watch))
        left_s = timeout
        while not watch.is_over.wait(min(left_s, ALIVE_S)):
            left_s -= ALIVE_S
            self._thread.call(lambda _: None)  # raises ServerError if it has stopped
            if left_s <= 0:
                seen = self._thread.call(lambda server: self._give_up(watch, server, group))
                raise WaitTimeout(f"waited {timeout:g} s for {wanted}\n{seen}")
        if watch.error is not None:
            raise watch.error

    def _watches(self) -> Watches:
        assert self._double is not None
        return self._double.watches

    def _give_up(self, watch: Watch, server: Server, group: str) -> str:
        self._watches().remove(watch)
        return "\n".join([*_group_lines(view(server), group), self._passed(), *self._log_lines()])

    def _log_lines(self) -> list[str]:
        recent = list(self._thread.log.recent)[-LOG_LINES_SHOWN:]
        lines = ["  last lines of the server's log:"] if recent else []
        return lines + ["    " + " ".join(f"{name}={value}" for name, value in line.items()) for line in recent]


def _members_text(members: int) -> str:
    return f"{members} member{'s' if members != 1 else ''}"


def _group_lines(seen: CoreView, group: str) -> list[str]:
    """The coordinator's view of a group, for the message of WaitTimeout."""
    found = describe(seen, group)
    lines = [f"  state: {found.state or 'unknown'}"]
    if found.error_code:
        lines.append(f"  error: {ERROR_NAMES.get(found.error_code, found.error_code)}")
    lines.append(f"  members: {len(found.members)}")
    for member in found.members:
        static = f" (static {member.instance_id})" if member.instance_id else ""
        lines.append(
            f"    {member.member_id}{static} of client {member.client_id!r} at {member.client_host}: {member.owns}"
        )
    offsets = committed_offsets(seen, group)
    lines.append(f"  committed offsets: {'none' if not offsets else ''}")
    lines += [f"    {topic}-{partition}: {offset}" for (topic, partition), offset in sorted(offsets.items())]
    return lines


def _lag(seen: CoreView, group: str, topic: str | None) -> int:
    """-1: nothing is committed."""
    committed = committed_offsets(seen, group)
    topics = {name for name, _ in committed if topic in (None, name)}
    if not topics:
        return -1
    lag = 0
    for name in topics:
        for partition, (start, end) in seen.ends(name).items():
            lag += max(end - max(committed.get((name, partition), start), start), 0)
    return lag
