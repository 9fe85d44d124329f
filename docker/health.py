#!/usr/local/bin/python3 -IS
"""Health check of the container image: exit code 0 if the server responds to ApiVersions, otherwise 1.

`health.py [HOST:PORT]` asks this address; without an argument it asks the server of the same environment, as `kcoord
health` does: the first address in KCOORD_LISTEN, or this machine if the server listens on every address.

An engine runs it every few seconds, so it costs little more than the start of the interpreter: without site-packages
(-S) and without the modules of kcoord. Even the module `socket` would double its CPU time; `_socket`, on which
`socket` is based, has all that is needed.
"""

import _socket
import os
import sys

TIMEOUT_S = 2.0
# Size, API key 18 (ApiVersions), version 0, correlation id, no client id.
REQUEST = b"\0\0\0\x0a" + b"\0\x12" + b"\0\0" + b"kcoo" + b"\xff\xff"
# Size, correlation id, error code, number of APIs.
ANSWER_BYTES = 4 + 4 + 2 + 4
EVERY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def own_listener(environ: os._Environ[str]) -> str:
    """The first listener of a server with this environment."""
    listeners = environ.get("KCOORD_LISTENERS") or environ.get("KCOORD_LISTEN") or "127.0.0.1:9092"
    ignored = {name.strip().upper() for name in environ.get("KCOORD_CONTROLLER_LISTENER_NAMES", "").split(",")}
    for listener in listeners.split(","):
        name = listener.partition("://")[0].strip().upper() if "://" in listener else ""
        if listener.strip() and (not name or name not in ignored):
            return listener.strip()
    raise ValueError("KCOORD_LISTEN has no address")


def address(listener: str) -> tuple[str, int]:
    """Where a listener, [NAME://]HOST:PORT, can be reached from here. Raises ValueError."""
    host, _, port = listener.rpartition("://")[2].rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdigit() or port == "0":
        raise ValueError(f"the port of the server is not known: {listener}")
    return EVERY_ADDRESS.get(host, host), int(port)


def connect(host: str, port: int) -> _socket.socket:
    """A connection to the first address of the host that accepts one. Raises OSError."""
    error: OSError = OSError(f"{host} has no address")
    # As bytes: a text would load the codec for international names.
    for family, kind, protocol, _, target in _socket.getaddrinfo(host.encode(), port, 0, _socket.SOCK_STREAM):
        connection = _socket.socket(family, kind, protocol)
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(target)
        except OSError as problem:
            error = problem
            connection.close()
        else:
            return connection
    raise error


def check(host: str, port: int) -> str:
    """What is wrong with the server, or an empty text. Raises OSError."""
    connection = connect(host, port)
    connection.send(REQUEST)
    answer = b""
    while len(answer) < ANSWER_BYTES:
        part = connection.recv(ANSWER_BYTES - len(answer))
        if not part:
            return "the connection was closed without a response"
        answer += part
    connection.close()
    if answer[4:8] != REQUEST[8:12]:
        return "the response is not a Kafka response"
    if answer[8:10] != b"\0\0":
        return f"the response has error code {int.from_bytes(answer[8:10], 'big', signed=True)}"
    return "" if any(answer[10:]) else "the server serves no APIs"


def main() -> int:
    where = ""
    try:
        where = sys.argv[1] if len(sys.argv) > 1 else own_listener(os.environ)
        problem = check(*address(where))
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        print(f"kcoord: {where} is not healthy: {problem}", file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
