"""HttpGateway: passes requests over HTTP to the engine, and the replies back."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from app.gateway.admission import Admission, Standing
from app.gateway.faults import Fault
from app.gateway.http.access import Access, Pages
from app.gateway.http.application import make_application
from app.gateway.http.batches.batching import Batching
from app.gateway.http.batches.shelf import Shelf
from app.gateway.http.connection import Connection, Connections
from app.gateway.http.exchange import Exchange
from app.gateway.http.exchanges import Exchanges
from app.gateway.http.metrics.exposition import Exposition
from app.gateway.http.metrics.watch import Watch
from app.gateway.http.page.chats import PageChats
from app.gateway.http.page.live_feed import LiveFeed
from app.gateway.http.page.routes import page_routes
from app.gateway.http.service import Service
from app.gateway.http.settings import Address, HttpError, HttpSettings
from app.gateway.http.tracing.opening import open_traces
from app.gateway.http.view import HttpView
from app.gateway.loop_thread import LoopThread, ThreadedGateway
from app.gateway.quotas import Quotas
from app.gateway.tally import Tally
from app.gateway.view import Transcript
from engine.api.client import EngineClient
from engine.model.machine.driver import Driver

log = logging.getLogger(__name__)

VIEW_SECONDS = 0.25
POLL_SECONDS = 1.0
# Seconds between keep-alive lines. They show a waiting client that its request is still served, and
# show us that the client is still connected.
NUDGE_SECONDS = 10.0
# Timeout for the last events of a stream.
FAREWELL_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 75
# Connections that the system queues until they are accepted: a load generator opens hundreds at
# once.
_BACKLOG = 2048
# Timeout in milliseconds for a client that reads nothing and stays connected.
_DEAF_MS = 120_000
# Most connections, or twice as many as there may be replies if that is more.
MOST_CONNECTIONS = 8192
# Descriptors for other things than client connections: the store, the log, the model's files.
DESCRIPTORS_LEFT = 256

ENDING = Fault(503, "the server is shutting down; ask again", reason="draining")


class HttpGateway(ThreadedGateway):
    """A separate thread with an event loop, so that neither the screen nor a step waits for it.

    A request's work ends with it: nothing is journalled, because the client holds the connection
    and sees at once if there is no answer. Files, batches and the chats of the page are in the
    store.

    Args:
        store_file: the file of that store.
        sampling: for fields that a request leaves open, over the model's defaults.

    Attributes:
        url: the gateway's URL.

    Raises:
        HttpError: it cannot listen, or a key or a certificate cannot be read.
    """

    def __init__(
        self,
        client: EngineClient,
        settings: HttpSettings,
        store_file: Path,
        *,
        sampling: Mapping[str, object] | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._thread = LoopThread("http", "the HTTP gateway", self._serve, (self._abandon,))
        self._closing = asyncio.Event()
        self._drain_seconds = settings.drain_seconds
        self._draining = False
        self._engine_drains = False
        self._queue_limit = 1 << 30
        self._tally = Tally(time.monotonic)
        self._quotas = Quotas(settings.quota, settings.keys, self._tally.pace, time.monotonic)
        self._exchanges = Exchanges(
            client=client,
            quotas=self._quotas,
            tally=self._tally,
            loop=self._thread.loop,
            clock=time.monotonic,
            ended=self._ended,
        )
        self._watch = Watch(client)
        self._driver = Driver()
        self._since = time.monotonic()
        self._traces = open_traces()
        self._live = LiveFeed(client)
        access = Access(settings.secrets(), settings.operators())
        service = Service(
            client=client,
            access=access,
            pages=Pages(access, (settings.address.host, *settings.hosts), settings.cors),
            admission=Admission(
                client,
                max_request_bytes=settings.max_request_bytes,
                max_requests=settings.max_requests,
                quotas=self._quotas,
                standing=self._standing,
            ),
            quotas=self._quotas,
            exchanges=self._exchanges,
            tally=self._tally,
            names=frozenset(settings.names),
            sampling=dict(sampling or {}),
            separate_caches=settings.separate_caches,
        )
        self._shelf = Shelf(store_file, settings.stored_bytes)
        self._batching = Batching(service, settings, self._shelf, self._thread.loop)
        self._chats = PageChats(service, self._shelf, self._thread.loop)
        wanted = max(MOST_CONNECTIONS, 2 * settings.max_requests)
        limit = raise_limit(wanted + DESCRIPTORS_LEFT)
        most = min(wanted, max(limit - DESCRIPTORS_LEFT, limit // 2))
        self._connections = Connections(access, self._tally, most)
        self._server = self._make_server(service)
        self._socket = _bound(settings.address)
        host, port = self._socket.getsockname()[:2]
        scheme = "http" if settings.cert_file is None else "https"
        self.url = f"{scheme}://{Address(host, port)}"
        self._view = self._current_view()

    def _make_server(self, service: Service) -> uvicorn.Server:
        settings = self._settings
        page = page_routes(service, self._live, self._chats)
        cert, key = settings.cert_file, settings.key_file
        metrics = Exposition(self._watch, self.view, self._driver, settings.metrics_prefix)
        application: ASGIApp = make_application(
            service,
            settings.cors,
            metrics,
            self._batching.routes(),
            page,
            metrics_open=settings.metrics_open,
        )
        if self._traces is not None:
            application = self._traces.wrap(application)
        config = uvicorn.Config(
            application,
            http=Connection,  # created by `_connection`
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(FAREWELL_SECONDS),
            ssl_certfile=None if cert is None else str(cert),
            ssl_keyfile=None if key is None else str(key),
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise HttpError(
                f"http.cert_file is {str(cert)!r}; it cannot be used: {error}"
            ) from None
        return uvicorn.Server(config)

    def _connection(self) -> Connection:
        server, loop = self._server, self._thread.loop
        return Connection(self._connections, server.config, server.server_state, {}, loop)

    def close(self) -> None:
        """Release its resources, also those of a gateway that was never started."""
        self._socket.close()
        self._driver.close()
        self._shelf.close()
        if (traces := self._traces) is not None:
            self._traces = None
            traces.close()

    @property
    def failure(self) -> str:
        """The reason why it has ended; empty if it has not."""
        return self._thread.crash

    def view(self) -> HttpView:
        return self._view

    def transcript(self, request_id: str) -> Transcript | None:
        if self._thread.has_ended:
            return None
        found = self._exchanges.transcript(request_id)
        return found or self._batching.transcript(request_id)

    def holds(self, conversation_id: str) -> bool:
        """Whether a page of another user has the chat open; other clients send the whole chat with
        each request."""
        return self._chats.holds(conversation_id)

    # Called on the loop.

    def _abandon(self) -> None:
        """Cancel all replies, which have no reader any more."""
        self._exchanges.cancel_all(ENDING)
        self._view = self._current_view()
        self.close()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            server = tasks.create_task(self._thread.guard(self._server.serve([])))
            accept = self._connections.accept(
                self._socket, self._connection, self._server.config.ssl
            )
            accepting = tasks.create_task(self._thread.guard(accept))
            batching = tasks.create_task(self._thread.guard(self._batching.run()))
            others = [
                batching,
                accepting,
                tasks.create_task(self._thread.guard(self._tick())),
                *(tasks.create_task(e.wait()) for e in (self._closing, self._thread.failed)),
            ]
            await asyncio.wait([server, *others], return_when=asyncio.FIRST_COMPLETED)
            # Other requests may end; batch requests resume at the next start.
            batching.cancel()
            await asyncio.wait([batching])
            if not self._thread.failed.is_set():
                await self._drain()
            self._live.close()
            self._chats.close()
            accepting.cancel()
            await asyncio.wait([accepting])
            self._socket.close()
            self._server.should_exit = True
            await server
            for task in others:
                task.cancel()

    async def _drain(self) -> None:
        """Let requests end, then cancel them, and wait until their clients know."""
        self._draining = True
        began = time.monotonic()
        while len(self._exchanges) and time.monotonic() < began + self._drain_seconds:
            await asyncio.sleep(0.02)
        self._exchanges.cancel_all(ENDING)
        began = time.monotonic()
        while len(self._exchanges) and time.monotonic() < began + FAREWELL_SECONDS:
            await asyncio.sleep(0.01)

    def _close(self, drain_seconds: float | None) -> None:
        if drain_seconds is not None:
            self._drain_seconds = drain_seconds
        self._closing.set()

    async def _tick(self) -> None:
        """Refresh the view and the state of the engine, and send keep-alives to waiting clients."""
        nudge_at, poll_at = time.monotonic() + NUDGE_SECONDS, 0.0
        while True:
            self._view = self._current_view()
            if time.monotonic() >= poll_at:
                # Building a snapshot takes some milliseconds.
                poll_at = time.monotonic() + POLL_SECONDS
                self._poll_engine()
            else:
                self._watch.catch_up()
            if time.monotonic() >= nudge_at:
                nudge_at = time.monotonic() + NUDGE_SECONDS
                self._exchanges.nudge_all()
            await asyncio.sleep(VIEW_SECONDS)

    def _ended(self, exchange: Exchange) -> None:
        if self._traces is not None:
            self._traces.ended(exchange, self._client.status().model)

    def _standing(self) -> Standing:
        return Standing(
            draining=self._draining or self._engine_drains,
            queue_limit=self._queue_limit,
            waiting=self._exchanges.num_waiting,
            running=self._exchanges.num_replies,
        )

    def _poll_engine(self) -> None:
        snapshot = self._client.snapshot()
        self._watch.update(snapshot)
        self._batching.update(snapshot)
        knobs = {} if snapshot is None else {one.name: one.effective for one in snapshot.knobs}
        self._engine_drains = bool(knobs.get("draining"))
        if isinstance(limit := knobs.get("queue_limit"), int):
            self._queue_limit = limit

    def _current_view(self) -> HttpView:
        tally, exchanges = self._tally, self._exchanges
        return HttpView(
            time=time.monotonic(),
            since=self._since,
            url=self.url,
            draining=self._draining,
            connections=len(self._connections),
            running=len(exchanges),
            waiting=exchanges.num_waiting,
            accepted=tally.accepted,
            finished=tally.finished,
            rejected=tally.rejected,
            first_token=tally.first_tokens,
            bad=tally.bad_messages,
            users=tally.users((one.user, one.started) for one in exchanges),
            used=dict(tally.used),
        )


def _bound(address: Address) -> socket.socket:
    """A listening socket.

    Raises:
        HttpError: it cannot.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sends pieces at once only if the protocol is stated. Otherwise the second of two waits
    # until the first is acknowledged, 40 ms on a kept-alive connection.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Accepted sockets inherit it.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAF_MS)
    try:
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or str(error)
        raise HttpError(f"http.listen is {str(address)!r}; it cannot listen there: {why}") from None
    listening.setblocking(False)
    return listening


def raise_limit(wanted: int) -> int:
    """Raise the limit to `wanted`, as far as the system allows; returns the resulting limit.

    Shells and services mostly start with 1,024, and may raise that to 500,000.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    with suppress(OSError, ValueError):  # macOS refuses more than its kernel's limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
