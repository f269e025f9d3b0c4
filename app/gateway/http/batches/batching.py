"""Batching: the parts of files and batches, as the gateway has them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from starlette.routing import Route

from app.gateway.http.batches.answerer import Answerer
from app.gateway.http.batches.batch_keeper import BatchKeeper
from app.gateway.http.batches.room import Room
from app.gateway.http.batches.shelf import Shelf
from app.gateway.http.batches.stored_batches import BatchCancel, BatchList, NewBatch, OneBatch
from app.gateway.http.batches.stored_files import FileContent, FileList, OneFile
from app.gateway.http.batches.sweep import Sweep
from app.gateway.http.batches.upload import Upload
from app.gateway.http.service import Service
from app.gateway.http.settings import HttpSettings
from app.gateway.quotas import Quotas
from app.gateway.view import Transcript
from engine.api.snapshot import Snapshot


class Batching:
    """Serves files and runs batches, on the gateway's loop.

    Args:
        service: that of the gateway.
        store_file: where files and batches are kept.
    """

    def __init__(
        self,
        service: Service,
        settings: HttpSettings,
        store_file: Path,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        client = service.client
        self._service = service
        self._settings = settings
        self._shelf = Shelf(store_file, settings.stored_bytes)
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
        """The addresses of files and batches."""
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

    async def keep(self) -> None:
        """Run batches and remove what is over, until cancelled: then requests that run are left to
        whoever goes on."""
        async with asyncio.TaskGroup() as tasks:
            for part in (self._keeper, self._room, self._sweep):
                tasks.create_task(part.keep())

    def look(self, snapshot: Snapshot | None) -> None:
        """See who is in the engine; called each second or so."""
        self._room.look(snapshot)

    def transcript(self, request_id: str) -> Transcript | None:
        """The chat of a request of a batch, by the engine's id; from any thread."""
        return self._answerer.exchanges.transcript(request_id)

    def close(self) -> None:
        """Let go of the store, when all that was asked of it is done."""
        self._shelf.close()
