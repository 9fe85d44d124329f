"""The object that tests use: the server's address, and what its base classes add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from kcoord.server.logs import ServerLog
from kcoord.server.settings.listeners import format_address
from kcoord.server.settings.load import Config, load
from kcoord.server.settings.table import SYNC_ALWAYS
from kcoord.testing.double.clock import VirtualClock
from kcoord.testing.double.controls import Fault
from kcoord.testing.double.exchanges import Exchange
from kcoord.testing.state.disk import ForgetfulStorage
from kcoord.testing.state.life import ServerLife, Snapshot
from kcoord.testing.state.records import Position, Record, config_text
from kcoord.testing.waiting import WaitTimeout

__all__ = ["Exchange", "Fault", "KcoordServer", "Position", "Record", "Snapshot", "WaitTimeout"]


@final
class KcoordServer(ServerLife):
    """A server in this process. `settings` maps names to values, as in docs/configuration.md.

    With `brokers=3` it plays a cluster: `stop_broker`, `move_leader` and others of ClusterControls. With
    `clock="virtual"` a test can move the server's time: `advance`, `run_until`. With `memory_disk` the data directory
    is a disk in memory, which forgets at a power cut what was not synced (see `kill`); `log.sync` is then `always`, if
    `settings` does not have it.
    """

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        clock: str = "real",
        config: Config | None = None,
        log: ServerLog | None = None,
        brokers: int = 1,
        memory_disk: bool = False,
    ) -> None:
        """`config` replaces `settings` and the profile `test`; it must have a listener for each broker."""
        if clock not in ("real", "virtual"):
            raise ValueError(f"clock is real or virtual, not {clock!r}")
        if config is None:
            values = {**({"log.sync": SYNC_ALWAYS} if memory_disk else {}), **(settings or {})}
            if brokers > 1:
                values["listeners"] = ",".join(["127.0.0.1:0"] * brokers)
            assignments = [f"{name}={config_text(value)}" for name, value in values.items()]
            config = load(profile="test", assignments=assignments)
        disk = ForgetfulStorage() if memory_disk else None
        super().__init__(config, VirtualClock() if clock == "virtual" else None, log, brokers, disk)

    # ---- address

    @property
    def bootstrap(self) -> str:
        """HOST:PORT, for a client's `bootstrap_servers`; of all brokers, with commas, if there are several."""
        if self._brokers == 1:
            return self._thread.bootstrap
        return ",".join(format_address(host, port) for host, port in self.addresses[: self._brokers])

    @property
    def host(self) -> str:
        return self._thread.host

    @property
    def port(self) -> int:
        return self._thread.port

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each listener."""
        return self._thread.addresses
