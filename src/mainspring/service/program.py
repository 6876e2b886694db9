"""`mainspring serve`: the HTTP API and a worker in one process, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from mainspring.app import Mainspring
from mainspring.errors import ConfigurationError, StoreUnavailable
from mainspring.log import get_log
from mainspring.runtime import Runtime
from mainspring.service.application import make_service
from mainspring.service.connection import HttpConnection
from mainspring.service.guard import MAX_HEADERS, App
from mainspring.service.live import Live
from mainspring.service.proxy_users import noting_peer
from mainspring.service.settings import ServiceSettings
from mainspring.service.tokens import Tokens
from mainspring.stores.encrypted import bare, check_keys, keys_of
from mainspring.worker import Worker, WorkerSettings
from mainspring.worker.program import Program

log = get_log("mainspring.service")

BACKLOG = 2048  # connections that wait to be accepted
KEEP_ALIVE = 75  # seconds that an idle connection stays open: longer than most load balancers keep theirs
REQUEST_GRACE = 5  # seconds that requests have to end when the service stops


class Server(uvicorn.Server):
    """A server whose process has its own signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """The API and, unless it is left out, a worker. `worker.program.Program` runs it."""

    def __init__(self, app: Mainspring, settings: ServiceSettings, worker: Worker | None = None) -> None:
        self._app = app
        settings = settings.bound()
        if worker is None and settings.worker:
            worker = Worker(app, worker_settings(settings))
        self._worker = worker
        self._socket = listen(settings.host, settings.port)
        self._live = Live(app, Tokens(app.store))
        service = make_service(app, settings, self._live)
        config = uvicorn.Config(
            service if settings.proxy_header is None else behind_proxies(service),
            proxy_headers=settings.proxy_header is None,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=REQUEST_GRACE,
            http=connections_with(settings.header_timeout),
            h11_max_incomplete_event_size=MAX_HEADERS,
        )
        self._server = Server(config)
        self._stopped = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._worker.id if self._worker is not None else "service"

    @property
    def runtime(self) -> Runtime:
        return self._app.runtime

    @property
    def exit_code(self) -> int:
        return 0 if self._worker is None else self._worker.exit_code

    @property
    def stops_now(self) -> bool:
        return self._server.force_exit

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT; return the exit code for the process."""
        return Program(self).run()

    def stop(self) -> None:
        """Answer the requests under way and let running jobs end. A second call stops at once."""
        self._server.force_exit = self._stopped
        self._server.should_exit = self._stopped = True
        if self._worker is not None:
            self._worker.stop()
        self._closing = asyncio.get_running_loop().create_task(self._live.close())  # streams would hold up the end

    async def serve(self) -> None:
        await self._app.store.open()
        with contextlib.suppress(StoreUnavailable):  # then requests get an error, and a worker waits
            await check_keys(bare(self._app.store), keys_of(self._app.store))
        log.info("service_started", url=self.url, store=self._app.store.url, worker=self._worker is not None)
        parts = [asyncio.create_task(self._server.serve([self._socket]), name="mainspring-http")]
        if self._worker is not None:
            parts.append(asyncio.create_task(self._worker.serve(), name="mainspring-worker"))
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not self._stopped:  # one of them has ended by itself: the other must not look alive without it
                self.stop()
            results = await asyncio.gather(*parts, return_exceptions=True)
            if self._closing is not None:  # what still reads the feed would connect again after the application closes
                await self._closing
            await self._live.tokens.uses.flush()  # of requests that were under way
            log.info("service_stopped")
        for result in results:
            if isinstance(result, BaseException):
                raise result


def connections_with(header_timeout: float) -> type[asyncio.Protocol]:
    """Return what uvicorn makes for each connection. It parses by h11: the other parser takes headers of any size."""
    return cast("type[asyncio.Protocol]", partial(HttpConnection, header_timeout=header_timeout))


def behind_proxies(service: App) -> App:
    """Read X-Forwarded-For and X-Forwarded-Proto of trusted proxies, as uvicorn does.

    The address of the TCP connection is noted first, because those headers replace it.
    """
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    return noting_peer(cast("App", ProxyHeadersMiddleware(cast("Any", service), trusted)))


def worker_settings(settings: ServiceSettings) -> WorkerSettings:
    """Return the settings of the worker inside the service."""
    return WorkerSettings.of(queues=settings.queues, concurrency=settings.concurrency, schedules=settings.schedules)


def listen(host: str, port: int) -> socket.socket:
    """Bind the socket before anything else starts, so that a port in use is one clear error.

    Its protocol is named: asyncio sends small packets without delay (TCP_NODELAY) only if it knows that this is TCP.
    With the delay, each request on a connection that was used before takes 40 ms longer.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        unnamed = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        msg = f"cannot listen on {host}:{port}: {why}; choose another address with --host and --port"
        raise ConfigurationError(msg) from error
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=unnamed.detach())
