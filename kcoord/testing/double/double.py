"""Stands between connections and the pump, so that rules can act on what passes.

It has the pump's interface for connections (`Host`), and each connection gets a transport that hands on the engine's
answers. The engine and the pump know nothing of it. Without it, nothing is in the way of a request. Delays and
latencies are those of the machine's clock, whichever clock the server has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, final

from kcoord.core.outcome import Fact, Now
from kcoord.protocol import apis
from kcoord.server.exchange import Request
from kcoord.server.listen.connection import Connection
from kcoord.server.probe import CLIENT_ID
from kcoord.server.server import Server
from kcoord.server.settings.listeners import Listener
from kcoord.testing.double.cluster import Broker, Cluster, Node
from kcoord.testing.double.exchanges import ExchangeLog
from kcoord.testing.double.faults import Rules
from kcoord.testing.double.link import Link
from kcoord.testing.double.releases import Caps
from kcoord.testing.double.selector import TopicNames
from kcoord.testing.double.watching import Watches
from kcoord.wire.frame import HEAD_BYTES, REQUEST_BYTES_MIN, SIZE_BYTES

# Where the client id stands in a request, and that of the fixture, each with its length.
CLIENT_ID_AT: Final = 8
OWN_CLIENT: Final = len(CLIENT_ID).to_bytes(2, "big") + CLIENT_ID.encode()


@final
class LinkTransport:
    """A connection's transport whose output passes a link. What it does not have itself is the transport's own."""

    def __init__(self, transport: asyncio.Transport, written: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._written = written

    def write(self, data: bytes) -> None:
        self._written(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self._written(b"".join(pieces))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@final
class Passage:
    """What belongs to one connection."""

    def __init__(self, link: Link, transport: asyncio.Transport, frame_bytes_max: int) -> None:
        self.link = link
        self.transport = transport
        self.frame_bytes_max = frame_bytes_max
        self._input = bytearray()
        # The input is not Kafka's protocol: the engine gets it as it is, and closes the connection.
        self._is_raw = False
        self.timer: asyncio.TimerHandle | None = None

    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The frames that are complete now, and bytes that are no frames."""
        frames: list[bytes] = []
        rest = self._input
        rest += data
        while not self._is_raw and len(rest) >= HEAD_BYTES:
            size = int.from_bytes(rest[:SIZE_BYTES], "big", signed=True)
            api_key = int.from_bytes(rest[SIZE_BYTES:HEAD_BYTES], "big", signed=True)
            if not REQUEST_BYTES_MIN <= size <= self.frame_bytes_max or api_key not in apis.APIS:
                self._is_raw = True
            elif len(rest) < SIZE_BYTES + size:
                break
            else:
                frames.append(bytes(rest[SIZE_BYTES : SIZE_BYTES + size]))
                del rest[: SIZE_BYTES + size]
        if not self._is_raw:
            return frames, b""
        raw = bytes(rest)
        rest.clear()
        return frames, raw


@final
class Double:
    """Used on the server's thread only, except for `exchanges`. `topic_name` finds the name of a topic id."""

    def __init__(
        self, server: Server, topic_name: TopicNames, rules: Rules, log: ExchangeLog, cluster: Cluster | None
    ) -> None:
        pump = server.pump
        self.pump = pump
        self.loop = pump.loop
        self.config = pump.config
        self.log = pump.log
        self.now: Callable[[], Now] = pump.now
        self.counts = pump.counts
        self.topic_name = topic_name
        self.rules = rules
        self.exchanges = log
        self.watches = Watches(server)
        # What new connections are offered; None: everything.
        self.caps: Caps | None = None
        # The brokers that the listeners play, if there are several.
        self.cluster = cluster
        self._node_of = {id(listener): number for number, listener in enumerate(server.config.listeners, 1)}
        # New connections are closed at once.
        self.is_refusing = False
        self._passages: dict[Connection, Passage] = {}
        self._next_number = 1

    @property
    def debug_facts(self) -> list[Fact]:
        return self.pump.debug_facts

    # --- called by connections

    def connected(self, connection: Connection, host: str, port: int) -> None:
        if self.is_refusing:
            raise ConnectionRefusedError("connections are refused by a rule")
        broker: Broker | None = None
        if self.cluster is not None:
            broker = Broker(self.cluster, self._node_of[id(connection.listener)])
            if not self.cluster.node(broker.node_id).is_up:
                raise ConnectionRefusedError("the broker is stopped")
        self.pump.connected(connection, host, port)
        link = Link(self._next_number, connection.client_host, self.exchanges, self.caps, self.topic_name, broker)
        self._next_number += 1
        passage = Passage(link, connection.transport, self.config.frame_produce_bytes_max)
        self._passages[connection] = passage

        def written(data: bytes) -> None:
            now = self.now()
            link.send(data, time.monotonic(), now.wall_ms)
            self._settle(connection, passage)

        connection.transport = LinkTransport(connection.transport, written)  # type: ignore[assignment]

    def received(self, connection: Connection, data: bytes) -> None:
        passage = self._passages[connection]
        now = self.now()
        now_s = time.monotonic()
        frames, raw = passage.split(data)
        for frame in frames:
            request = Request(frame, now_s, now.wall_ms)
            if frame[CLIENT_ID_AT : CLIENT_ID_AT + len(OWN_CLIENT)] == OWN_CLIENT:
                # The fixture's own requests are nobody's business.
                passage.link.pass_unseen(request)
                continue
            rule = self.rules.take(request, passage.link.number, self.topic_name)
            if rule is not None:
                self.exchanges.wake()
            passage.link.receive(request, rule, now_s)
        self._settle(connection, passage)
        if raw:
            self.pump.received(connection, raw)

    def at_end(self, connection: Connection) -> None:
        self.pump.at_end(connection)

    def resume(self, connection: Connection) -> None:
        self.pump.resume(connection)

    def disconnected(self, connection: Connection) -> None:
        passage = self._passages.pop(connection, None)
        if passage is not None and passage.timer is not None:
            passage.timer.cancel()
        self.pump.disconnected(connection)

    # --- called for tests

    def go_on(self) -> None:
        """Rules have changed: look at all requests that wait."""
        for connection, passage in list(self._passages.items()):
            self._settle(connection, passage)

    def forget(self) -> None:
        """Remove all rules, and close the connections that they have disturbed, so that nothing of them is left."""
        self.rules.clear()
        self.is_refusing = False
        if self.cluster is not None:
            self.cluster.forget()
        if self.caps is not None:
            # Clients remember what they were offered.
            self.caps = None
            self.cut_all()
        for connection, passage in list(self._passages.items()):
            if passage.link.is_disturbed:
                connection.abort()
        self.exchanges.clear()

    def add_broker(self, listener: Listener, node: Node) -> None:
        """Connections to this listener are with this broker."""
        assert self.cluster is not None
        self._node_of[id(listener)] = node.node_id
        self.cluster.add(node)

    def stop_broker(self, node_id: int) -> None:
        """Others take over what this broker has, then its connections are closed. Raises LookupError."""
        assert self.cluster is not None
        self.cluster.node(node_id).is_up = False
        for connection in list(self._passages):
            if self._node_of[id(connection.listener)] == node_id:
                connection.abort()

    def cut_all(self) -> int:
        """Close all connections at once. Returns how many there were."""
        connections = list(self._passages)
        for connection in connections:
            connection.abort()
        return len(connections)

    # --- what a link has to say

    def _settle(self, connection: Connection, passage: Passage) -> None:
        """Pass on what may go on in both directions; wake up again when a delay ends."""
        link = passage.link
        now_s = time.monotonic()
        due_s = link.go_on(now_s)
        if link.to_client and not passage.transport.is_closing():
            data, link.to_client = b"".join(link.to_client), []
            passage.transport.write(data)
        if link.is_cut:
            # What was written before goes out first.
            passage.transport.close()
            connection.is_dropped = True
            self.loop.call_soon(connection.connection_lost, None)
            return
        if link.to_engine:
            data, link.to_engine = b"".join(link.to_engine), []
            self.pump.received(connection, data)
        if passage.timer is not None:
            passage.timer.cancel()
            passage.timer = None
        if due_s is not None:
            passage.timer = self.loop.call_later(max(due_s - now_s, 0.001), self._settle, connection, passage)
