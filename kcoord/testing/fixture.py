"""The object that tests use: the server's address and life, and what its base classes add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, final

from kcoord.server.logs import ServerLog
from kcoord.server.settings.listeners import format_address
from kcoord.server.settings.load import Config, load
from kcoord.testing.double.clock import VirtualClock
from kcoord.testing.double.controls import Fault
from kcoord.testing.double.exchanges import Exchange
from kcoord.testing.state.records import Position, Record
from kcoord.testing.state.tools import StateTools
from kcoord.testing.waiting import WaitTimeout

__all__ = ["Exchange", "Fault", "KcoordServer", "Position", "Record", "WaitTimeout"]


@final
class KcoordServer(StateTools):
    """A server in this process. `settings` maps names to values, as in docs/configuration.md.

    With `brokers=3` it plays a cluster: `stop_broker`, `move_leader` and others of ClusterControls. With
    `clock="virtual"` a test can move the server's time: `advance`, `run_until`.
    """

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        clock: str = "real",
        config: Config | None = None,
        log: ServerLog | None = None,
        brokers: int = 1,
    ) -> None:
        """`config` replaces `settings` and the profile `test`; it must have a listener for each broker."""
        if clock not in ("real", "virtual"):
            raise ValueError(f"clock is real or virtual, not {clock!r}")
        if config is None:
            assignments = [f"{name}={value}" for name, value in (settings or {}).items()]
            if brokers > 1:
                assignments.append("listeners=" + ",".join(["127.0.0.1:0"] * brokers))
            config = load(profile="test", assignments=assignments)
        super().__init__(config, VirtualClock() if clock == "virtual" else None, log, brokers)

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

    def __enter__(self) -> Self:
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
