"""Limits on connections and frames. Each is a setting; the table of settings has defaults and reasons."""

from __future__ import annotations

from typing import Final, final

from kcoord.engine.api_classes import GROUP_FRAME_APIS, PRODUCE_FRAME_APIS
from kcoord.protocol import apis
from kcoord.server.settings.config import ServerConfig
from kcoord.wire.frame import FrameLimits

# The bucket holds at most this many seconds' worth of tokens.
BURST_SECONDS: Final = 2


def frame_limits(config: ServerConfig) -> FrameLimits:
    """The largest frame of each API."""
    bytes_max: dict[int, int] = {}
    for api_key in apis.APIS:
        limit = config.frame_control_bytes_max
        if api_key in PRODUCE_FRAME_APIS:
            limit = config.frame_produce_bytes_max
        elif api_key in GROUP_FRAME_APIS:
            limit = config.frame_group_bytes_max
        bytes_max[api_key] = min(limit, config.frame_bytes_max)
    return FrameLimits(bytes_max)


def plain_host(host: str) -> str:
    """An address in the form that clients use: an IPv4-mapped IPv6 address becomes an IPv4 address."""
    return host[7:] if host.startswith("::ffff:") and "." in host else host


def is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


@final
class ConnectionCounts:
    """Counts connections, in total and by address."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        # Lowered if the process has too few descriptors (kcoord.server.listen.descriptors).
        self.cap = config.max_connections
        self.total = 0
        self.by_host: dict[str, int] = {}

    def admit(self, host: str) -> str:
        """Count a connection and return an empty string, or return the reason why it must be refused."""
        config = self.config
        if self.total >= self.cap:
            why = "max.connections" if self.cap == config.max_connections else "limit on open files"
            return f"there are already {self.total} connections ({why})"
        count = self.by_host.get(host, 0)
        if count >= config.max_connections_per_ip and not (config.loopback_exempt and is_loopback(host)):
            return f"there are already {count} connections from this address (max.connections.per.ip)"
        self.total += 1
        self.by_host[host] = count + 1
        return ""

    def release(self, host: str) -> None:
        self.total -= 1
        count = self.by_host[host] - 1
        if count:
            self.by_host[host] = count
        else:
            del self.by_host[host]


@final
class TokenBucket:
    """A token bucket: `rate` events per second, with short bursts."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.tokens = float(rate * BURST_SECONDS)
        self.last_s = -1.0

    def take(self, now_s: float) -> float:
        """Take a token. Returns 0.0, or the seconds to wait if there is none."""
        if self.last_s >= 0:
            self.tokens = min(self.tokens + (now_s - self.last_s) * self.rate, float(self.rate * BURST_SECONDS))
        self.last_s = now_s
        self.tokens -= 1.0
        return -self.tokens / self.rate if self.tokens < 0 else 0.0
