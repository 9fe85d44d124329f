"""Answers with the addresses of brokers replaced, so that clients come back to the proxy.

An answer whose encoding by this codec would differ from the broker's in anything but the addresses, such as one with
tagged fields that are newer than the codec, is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from kcoord.server.exchange import Answer
from kcoord.wire.message import Message

# Fields with the brokers' addresses: Metadata and DescribeCluster, FindCoordinator, and Produce and Fetch (KIP-951).
ADDRESS_LISTS: Final = ("brokers", "coordinators", "node_endpoints")

# From a broker's address to the one that clients get instead.
Redirect = Callable[[str, int], Awaitable[tuple[str, int]]]


async def redirected(answer: Answer, redirect: Redirect) -> bytes:
    """The frame with the addresses that `redirect` returns; the answer's `problem` is set if they stay as they are."""
    places = _addresses(answer.message)
    if not places:
        return answer.frame
    if not answer.is_canonical():
        answer.problem = "not redirected, because it has fields that kcoord does not know"
        return answer.frame
    for place in places:
        place.host, place.port = await redirect(place.host, place.port)
    return answer.encoded()


def _addresses(message: Message | None) -> list[Any]:
    """The parts of an answer with `host` and `port` of a broker."""
    if message is None:
        return []
    places: list[Any] = [message] if "host" in message.FIELDS else []
    for name in ADDRESS_LISTS:
        places += getattr(message, name, None) or []
    # FindCoordinator without a coordinator has neither.
    return [place for place in places if getattr(place, "host", "") and place.port > 0]
