"""Batching: the components of files and batches in the gateway."""

from __future__ import annotations

import asyncio
import time

from starlette.routing import Route

from app.gateway.http.batches.answerer import Answerer
from app.gateway.http.batches.batch_keeper import BatchKeeper
from app.gateway.http.batches.endpoints import (
    BatchCancel,
    BatchList,
    FileContent,
    FileList,
    NewBatch,
    OneBatch,
    OneFile,
)
from app.gateway.http.batches.room import Room
from app.gateway.http.batches.shelf import Shelf, Sweep
from app.gateway.http.batches.upload import Upload
from app.gateway.http.service import Service
from app.gateway.http.settings import HttpSettings
from app.gateway.quotas import Quotas
from app.gateway.view import Transcript
from engine.api.snapshot import Snapshot


class Batching:
    """Serves files and runs batches, on the gateway's loop.

    Args:
        service: the gateway's service.
        shelf: the store of files and batches.
    """

    def __init__(
        self,
        service: Service,
        settings: HttpSettings,
        shelf: Shelf,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        client = service.client
        self._service = service
        self._settings = settings
        self._shelf = shelf
        self._answerer = Answerer(
            client,
            loop=loop,
            names=service.names,
            sampling=service.sampling,
            separate_caches=service.separate_caches,
        )
        self._room = Room(client, service.admission, self._answerer.exchanges)
        rates = Quotas(settings.quota, settings.keys, lambda: None, time.monotonic)
        self._keeper = BatchKeeper(self._shelf, self._answerer, self._room, rates)
        self._sweep = Sweep(self._shelf)

    def routes(self) -> list[Route]:
        """The routes of files and batches."""
        service, shelf, keeper, sweep = self._service, self._shelf, self._keeper, self._sweep
        upload = Upload(
            service, shelf, sweep, self._settings.max_file_bytes, self._settings.max_request_bytes
        )
        return [
            Route("/v1/files", upload, methods=["POST"]),
            Route("/v1/files", FileList(service, shelf), methods=["GET"]),
            Route("/v1/files/{name}", OneFile(service, shelf, sweep), methods=["GET", "DELETE"]),
            Route("/v1/files/{name}/content", FileContent(service, shelf), methods=["GET"]),
            Route("/v1/batches", NewBatch(service, shelf, keeper), methods=["POST"]),
            Route("/v1/batches", BatchList(service, shelf), methods=["GET"]),
            Route("/v1/batches/{name}", OneBatch(service, shelf), methods=["GET"]),
            Route(
                "/v1/batches/{name}/cancel", BatchCancel(service, shelf, keeper), methods=["POST"]
            ),
        ]

    async def run(self) -> None:
        """Run batches and remove expired data, until cancelled. Requests in flight then remain for
        the next run."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self._keeper, self._room, self._sweep):
                tasks.create_task(part.run())

    def update(self, snapshot: Snapshot | None) -> None:
        """Count the engine's requests; called about once a second."""
        self._room.update(snapshot)

    def transcript(self, request_id: str) -> Transcript | None:
        """The chat of a batch request, by the engine's id; callable from any thread."""
        return self._answerer.exchanges.transcript(request_id)
