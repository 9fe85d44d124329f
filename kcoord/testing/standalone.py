"""`kcoord serve` with the controls of the fixture: the server on a thread, the HTTP listener on others."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable
from typing import Final

from kcoord.server.failures import EXIT_LISTEN, EXIT_OK, ServerError
from kcoord.server.listen.descriptors import raise_descriptor_limit
from kcoord.server.logs import ServerLog
from kcoord.server.settings.listeners import Listener, split_address
from kcoord.server.settings.load import Config
from kcoord.testing.fixture import KcoordServer
from kcoord.testing.remote.http import ControlServer
from kcoord.testing.state.seed import Seed

# How often the main thread looks whether the server still runs.
LOOK_S: Final = 0.2
TOKEN_BYTES: Final = 16


def run(
    config: Config,
    log: ServerLog,
    announce: Callable[[str, int], None],
    announce_control: Callable[[str, str], None],
    is_orphan: Callable[[], bool] | None,
    seed: Seed | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT, SIGHUP, a failure or the end of the parent. Returns the exit code.

    `announce_control(url, token)` is called before `announce(host, port)`. `seed` is what the server begins with.
    """
    raise_descriptor_limit()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    token = config.server.control_token or secrets.token_urlsafe(TOKEN_BYTES)
    try:
        server = _server(config, log)
        if seed is not None:
            server.begin_with(seed)
        _, host, port = split_address(config.server.control_listen)
        control = ControlServer(server, host, port, token)
    except (OSError, ValueError) as error:
        log.error("failed", message=f"control: {error}", exit_code=EXIT_LISTEN)
        log.open()
        return EXIT_LISTEN
    try:
        server.start()
        control.start()
        announce_control(control.url, token)
        for host, port in server.addresses:
            announce(host, port)
        log.open()
        while not stop.wait(LOOK_S) and not (is_orphan is not None and is_orphan()):
            server.check()
        control.stop()
        server.stop()
    except ServerError as error:
        log.error("failed", message=error.message, exit_code=error.code)
        log.open()
        return error.code
    return EXIT_OK


def _server(config: Config, log: ServerLog) -> KcoordServer:
    """Raises ValueError if there are fewer listeners than brokers."""
    brokers = config.server.control_brokers
    first = config.listeners[0]
    if len(config.listeners) == 1 and first.port == 0:
        config.listeners += [Listener(first.name, first.host, 0) for _ in range(brokers - 1)]
    return KcoordServer(clock=config.server.control_clock, config=config, log=log, brokers=brokers)
