"""Addresses."""

from __future__ import annotations

import socket

import pytest

from kcoord.server.failures import ServerError
from kcoord.server.listen.sockets import open_sockets
from kcoord.server.server import bind
from kcoord.server.settings.listeners import (
    Listener,
    format_address,
    parse_advertised,
    parse_listeners,
    split_address,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", ("", "127.0.0.1", 9092)),
        (":0", ("", "", 0)),
        ("[::1]:1", ("", "::1", 1)),
        ("internal://host:2", ("INTERNAL", "host", 2)),
        (" PLAINTEXT://[fe80::1]:3 ", ("PLAINTEXT", "fe80::1", 3)),
    ],
)
def test_addresses(text: str, expected: tuple[str, str, int]) -> None:
    assert split_address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", "host:x", "host:65536", "::1:9092", "://host:1", "host:-1", "[::1", "[::1:9", "::1]:9"],
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        split_address(text)


@pytest.mark.parametrize("text", ["[::1", "::1", "a:b:1"])
def test_the_advice_for_ipv6_without_a_port_is_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as \[::1\]:9092"):
        split_address(text)


@pytest.mark.parametrize("text", ["::1:9092", "[::1:9092", "::1]:9092"])
def test_the_advice_for_ipv6_can_be_followed(text: str) -> None:
    with pytest.raises(ValueError, match=r"\[::1\]:9092"):
        split_address(text)


def test_addresses_are_written_as_they_are_read() -> None:
    assert format_address("::1", 1) == "[::1]:1"
    assert format_address("h", 1) == "h:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no address to listen on"),
        ("A://:1,A://:2", "two listeners have the name A"),
        ("h:1,h:1", "two listeners have the address h:1"),
        ("SASL_SSL://:1", "TLS and SASL are not supported"),
    ],
)
def test_listeners_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_listeners(text, "")


def advertised(listeners: str, text: str) -> list[tuple[str, int]]:
    found = parse_listeners(listeners, "")
    parse_advertised(text, found)
    return [(listener.advertised_host, listener.advertised_port) for listener in found]


def test_advertised_addresses_by_name_and_in_order() -> None:
    assert advertised("A://:1,B://:2", "B://b:20") == [("", 0), ("b", 20)]
    assert advertised(":1,:2", "a:10,b:20") == [("a", 10), ("b", 20)]
    assert advertised(":1", "PLAINTEXT://a:10") == [("a", 10)]
    assert advertised("A://:1", "") == [("", 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("C://c:1", "no listener has the name C"),
        ("A://:1", "the host is missing"),
        ("A://0.0.0.0:1", "no client can connect"),
        ("a:1,b:2,c:3", "only 2 listeners"),
    ],
)
def test_advertised_addresses_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advertised("A://:1,B://:2", text)


def test_one_free_port_for_all_addresses_of_a_host() -> None:
    sockets = open_sockets(Listener("", "localhost", 0), 10)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        with socket.create_connection(("127.0.0.1", sockets[0].getsockname()[1]), 5):
            pass
    finally:
        for sock in sockets:
            sock.close()


def test_a_used_port() -> None:
    sockets = open_sockets(Listener("", "127.0.0.1", 0), 10)
    try:
        with pytest.raises(OSError):
            open_sockets(Listener("", "127.0.0.1", sockets[0].getsockname()[1]), 10)
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize("host", ["a" * 64, "ä" * 64], ids=["long", "long, not ASCII"])
def test_a_host_that_cannot_be_resolved(host: str) -> None:
    with pytest.raises(ServerError, match=f"cannot listen on {host}:1: "):
        bind(Listener("", host, 1), 10)
