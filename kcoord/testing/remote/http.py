"""The HTTP listener of the controls: `POST /v1/OPERATION` with a JSON object, and `GET /openapi.json`.

It runs on threads of its own, since waits block. Every request needs the token, so that no web page in a browser on
this machine can use it. Sizes, connections and times are bounded.
"""

from __future__ import annotations

import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, final

from kcoord.client.errors import KafkaError
from kcoord.server.failures import ServerError
from kcoord.testing.fixture import KcoordServer
from kcoord.testing.remote.openapi import describe
from kcoord.testing.remote.operations import BadRequest, Executor
from kcoord.testing.waiting import WaitTimeout

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
CONNECTIONS_MAX: Final = 64
# A client that sends nothing for so long is disconnected.
SILENCE_S_MAX: Final = 60.0
PREFIX: Final = "/v1/"


@final
class Failure(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "kcoord"
    sys_version = ""
    timeout = SILENCE_S_MAX
    server: ControlServer

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _get(self) -> Any:
        self._authorize()
        if self.path == "/openapi.json":
            return describe()
        raise Failure(404, f"there is no {self.path}; POST {PREFIX}OPERATION, GET /openapi.json")

    def _post(self) -> Any:
        body = self._body()
        self._authorize()
        if not self.path.startswith(PREFIX):
            raise Failure(404, f"there is no {self.path}; POST {PREFIX}OPERATION, GET /openapi.json")
        try:
            return {"result": self.server.executor.run(self.path[len(PREFIX) :], body)}
        except (BadRequest, ValueError, LookupError) as error:
            raise Failure(400, str(error)) from None
        except WaitTimeout as error:
            raise Failure(408, str(error)) from None
        except (KafkaError, ServerError, RuntimeError) as error:
            raise Failure(409, str(error)) from None

    def _body(self) -> dict[str, Any]:
        size = self.headers.get("Content-Length", "0")
        if not size.isdigit() or int(size) > BODY_BYTES_MAX:
            self.close_connection = True
            raise Failure(413, f"a request has at most {BODY_BYTES_MAX} bytes and a Content-Length")
        data = self.rfile.read(int(size))
        try:
            body = json.loads(data or b"{}")
        except ValueError as error:
            raise Failure(400, f"the request is no JSON: {error}") from None
        if not isinstance(body, dict):
            raise Failure(400, "the request is no JSON object")
        return body

    def _authorize(self) -> None:
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            raise Failure(401, "the header `Authorization: Bearer TOKEN` is missing or wrong")

    def _answer(self, work: Any) -> None:
        status = 200
        try:
            document = work()
        except Failure as error:
            status = error.status
            document = {"error": str(error)}
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """The server's log has what the operations do."""


@final
class ControlServer(ThreadingHTTPServer):
    """Listens from its creation; `start` serves, `stop` ends. Port 0 takes a free port. Raises OSError."""

    daemon_threads = True
    # Clients that wait must not keep the server from ending.
    block_on_close = False

    def __init__(self, server: KcoordServer, host: str, port: int, token: str) -> None:
        super().__init__((host, port), _Handler)
        self.executor = Executor(server)
        self.token = token
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._thread = threading.Thread(target=self.serve_forever, name="kcoord-control", daemon=True)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client has disconnected, or sent no HTTP: that costs its connection only."""
