"""Limits on connections and frames."""

from __future__ import annotations

from kcoord.protocol import apis
from kcoord.server.listen.limits import ConnectionCounts, TokenBucket, frame_limits, plain_host
from kcoord.server.settings.load import load


def test_connections_in_all_and_of_one_address() -> None:
    config = load(assignments=["max.connections=4", "max.connections.per.ip=2"]).server
    counts = ConnectionCounts(config)
    assert counts.admit("10.0.0.1") == counts.admit("10.0.0.1") == ""
    assert "max.connections.per.ip" in counts.admit("10.0.0.1")
    assert counts.admit("10.0.0.2") == ""
    counts.release("10.0.0.1")
    assert counts.admit("10.0.0.1") == counts.admit("10.0.0.3") == ""
    assert "(max.connections)" in counts.admit("10.0.0.4")
    for host in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"):
        counts.release(host)
    assert (counts.total, counts.by_host) == (0, {})


def test_this_machine_is_exempt_by_default() -> None:
    counts = ConnectionCounts(load(assignments=["max.connections.per.ip=1"]).server)
    assert [counts.admit(host) for host in ("127.0.0.1", "127.0.0.1", "::1", "::1")] == ["", "", "", ""]
    config = load(assignments=["max.connections.per.ip=1", "max.connections.per.ip.exempt.loopback=false"])
    counts = ConnectionCounts(config.server)
    assert counts.admit("127.0.0.1") == ""
    assert counts.admit("127.0.0.1") != ""


def test_the_bucket_lets_bursts_through_and_then_keeps_its_rate() -> None:
    bucket = TokenBucket(10)
    assert [bucket.take(100.0) for _ in range(20)] == [0.0] * 20
    assert abs(bucket.take(100.0) - 0.1) < 1e-9
    assert bucket.take(100.2) == 0.0
    assert abs(bucket.take(100.2) - 0.1) < 1e-9
    assert bucket.take(200.0) == 0.0


def test_frames_are_limited_by_api() -> None:
    limits = frame_limits(load().server).bytes_max
    assert set(limits) == set(apis.APIS)
    assert limits[apis.HEARTBEAT] == limits[apis.METADATA] == 1024 * 1024
    assert limits[apis.JOIN_GROUP] == limits[apis.SYNC_GROUP] == 16 * 1024 * 1024
    assert limits[apis.PRODUCE] == 10 * 1024 * 1024
    limits = frame_limits(load(assignments=["socket.request.max.bytes=2048"]).server).bytes_max
    assert set(limits.values()) == {2048}


def test_an_ipv4_client_on_an_ipv6_socket() -> None:
    assert plain_host("::ffff:10.0.0.1") == "10.0.0.1"
    assert plain_host("::1") == "::1"
