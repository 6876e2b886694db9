"""A small HTTP server for the metrics of a process that does not run the service: `mainspring worker --metrics-port`.

It has threads of its own, and reads the store by the loop that serves code without one. So it answers also while a
handler blocks the worker's event loop.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from mainspring.app import Mainspring
from mainspring.errors import ConfigurationError, MainspringError
from mainspring.log import get_log
from mainspring.metrics.metrics import CONTENT_TYPE, Metrics

log = get_log("mainspring.metrics")

TOKEN_VARIABLE = "MAINSPRING_METRICS_TOKEN"  # noqa: S105 - the name of a variable
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
POLL = 0.1  # seconds after which the server sees that it shall end
SOCKET_TIMEOUT = 10.0  # seconds for a client to send its request


class MetricsServer:
    """Serves `/metrics` and `/metrics/cluster`, on this machine only unless a token is given.

    `with MetricsServer(app, port=9464): …` counts from now on. With a token, requests need the header
    `Authorization: Bearer <token>`.
    """

    def __init__(self, app: Mainspring, *, port: int, host: str = "127.0.0.1", token: str | None = None) -> None:
        self.metrics = Metrics.of(app)
        self._app = app
        self._token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        if not is_loopback(host) and not self._token:
            msg = (
                f"metrics on {host} need a token, because other machines can reach them: set {TOKEN_VARIABLE}, or use "
                "the host 127.0.0.1"
            )
            raise ConfigurationError(msg)
        self._server = bound(host, port, self)
        self._thread = threading.Thread(target=self._serve, name="mainspring-metrics", daemon=True)

    @property
    def url(self) -> str:
        host, port = map(str, self._server.socket.getsockname()[:2])
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

    def __enter__(self) -> Self:
        self._thread.start()
        log.info("metrics_served", url=self.url)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self) -> None:
        self._server.serve_forever(POLL)

    # -- answers, in threads ----------------------------------------------------------------------

    def admits(self, host: str, authorization: str) -> HTTPStatus | None:
        """Return the status of a refusal; None if the request may go on."""
        if self._token:
            kind, _, given = authorization.partition(" ")
            right = kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())
            return None if right else HTTPStatus.UNAUTHORIZED
        name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
        return None if name.lower() in LOOPBACK_NAMES else HTTPStatus.MISDIRECTED_REQUEST

    def of_process(self) -> bytes:
        return self._app.run(self.metrics.of_process())

    def of_cluster(self) -> bytes | None:
        """Return the metrics of all processes; None if the store does not answer."""
        try:
            return self._app.run(self.metrics.of_cluster())
        except MainspringError as error:
            log.warning("cluster_metrics_unavailable", error=str(error))
            return None


def is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int, server: MetricsServer) -> ThreadingHTTPServer:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    class Handler(MetricsHandler):
        metrics_server = server

    try:
        return Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        msg = f"cannot serve metrics on {host}:{port}: {error}; choose another port with --metrics-port"
        raise ConfigurationError(msg) from error


class MetricsHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    metrics_server: MetricsServer
    timeout = SOCKET_TIMEOUT

    def do_GET(self) -> None:
        """Answer; the name is that of the standard library."""
        path = self.path.partition("?")[0]
        refusal = self.metrics_server.admits(self.headers.get("host", ""), self.headers.get("authorization", ""))
        if refusal is not None:
            self._answer(refusal, f"{refusal.phrase}\n".encode())
        elif path == "/metrics":
            self._answer(HTTPStatus.OK, self.metrics_server.of_process())
        elif path == "/metrics/cluster":
            found = self.metrics_server.of_cluster()
            status = HTTPStatus.SERVICE_UNAVAILABLE if found is None else HTTPStatus.OK
            self._answer(status, b"the store does not answer\n" if found is None else found)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there are /metrics and /metrics/cluster\n")

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response_only(status)
        self.send_header("content-type", CONTENT_TYPE if status is HTTPStatus.OK else "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-content-type-options", "nosniff")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("www-authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("metrics_request", line=format % args)
