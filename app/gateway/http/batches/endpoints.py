"""Endpoints of files and batches: those that list, show, change and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.batches.batch_keeper import BatchKeeper
from app.gateway.http.batches.forms import batch_payload, file_payload, page_of
from app.gateway.http.batches.shelf import Shelf, Sweep
from app.gateway.http.body import read_body
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.protocol.batches import BatchQuery, BatchRequest
from app.gateway.http.protocol.file_requests import FileQuery, read_texts
from app.gateway.http.protocol.payload import read
from app.gateway.http.service import Service
from app.store.batches import OUTPUT
from app.store.files import Line, StoredFile
from app.store.store import Store
from app.store.stored_batch import BatchStatus, StoredBatch

T = TypeVar("T")

_CANCELLED = (BatchStatus.CANCELLING, BatchStatus.CANCELLED)
_PLURALS = {"file": "files", "batch": "batches"}


class _StoreEndpoint(Endpoint):
    """The base of endpoints of stored files and batches."""

    def __init__(self, service: Service, shelf: Shelf) -> None:
        super().__init__(service)
        self._shelf = shelf

    async def _file(self, user: str, name: str, param: str | None = None) -> StoredFile:
        """A file of a user; arguments and faults as of `_found`."""
        file = await self._shelf.call(lambda store: store.files.get(user, name))
        return _found("file", file, name, param)

    async def _batch(self, user: str, name: str, param: str | None = None) -> StoredBatch:
        """A batch of a user; arguments and faults as of `_found`."""
        batch = await self._shelf.call(lambda store: store.batches.get(user, name))
        return _found("batch", batch, name, param)


class _BatchEndpoint(_StoreEndpoint):
    """The base of endpoints that change batches and wake their keeper."""

    def __init__(self, service: Service, shelf: Shelf, keeper: BatchKeeper) -> None:
        super().__init__(service, shelf)
        self._keeper = keeper


def _found(kind: str, found: T | None, name: str, param: str | None = None) -> T:
    """A file or a batch that was read.

    Args:
        name: its id, as the request states it.
        param: the field with the id; None if the path has it.

    Raises:
        Fault: 404, there is none.
    """
    if found is None:
        which, plural = param or f"the {kind}", _PLURALS[kind]
        text = f"{which} is {name[:100]!r}; it must be the id of one of your {plural}"
        raise Fault(404, text, param, reason=f"{kind} not found")
    return found


class FileList(_StoreEndpoint):
    """The caller's files: GET /v1/files."""

    query = FileQuery

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        asked = read_texts(FileQuery, request.query_params)
        after = None if asked.after is None else await self._file(user, asked.after, "after")
        files = await self._shelf.call(
            lambda store: store.files.of_user(
                user,
                after=after,
                most=asked.limit + 1,
                purpose=asked.purpose,
                newest=asked.order == "desc",
            )
        )
        return JSONResponse(page_of([file_payload(one) for one in files], asked.limit))


class OneFile(_StoreEndpoint):
    """GET describes a file, DELETE removes it: /v1/files/{id}."""

    def __init__(self, service: Service, shelf: Shelf, sweep: Sweep) -> None:
        super().__init__(service, shelf)
        self._sweep = sweep

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        file = await self._file(user, request.path_params["name"])
        if request.method != "DELETE":
            return JSONResponse(file_payload(file))
        await self._shelf.call(lambda store: store.files.delete(user, file.id))
        self._sweep.poke()
        return JSONResponse({"id": file.id, "object": "file", "deleted": True})


class FileContent(_StoreEndpoint):
    """The content of a file: GET /v1/files/{id}/content."""

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        file = await self._file(user, request.path_params["name"])
        headers = {"Content-Length": str(file.num_bytes), "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(
            self._content(file.number), media_type="application/octet-stream", headers=headers
        )

    async def _content(self, number: int) -> AsyncIterator[bytes]:
        after = 0
        while lines := await self._shelf.call(partial(_part, number, after)):
            after = lines[-1].number
            yield b"".join(line.content for line in lines)


def _part(number: int, after: int, store: Store) -> list[Line]:
    return store.files.part(number, after)


class NewBatch(_BatchEndpoint):
    """Answers the requests of a file: POST /v1/batches."""

    kind = BatchRequest

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        asked = read(BatchRequest, await read_body(request, self.service.admission.check_size))
        param = "input_file_id"
        file = await self._file(user, asked.input_file_id, param)
        if file.purpose == OUTPUT:
            text = f"{param} is {file.id!r}, which has answers; it must be a file of purpose batch"
            raise Fault(400, text, param, reason="file of answers")

        def create(store: Store) -> StoredBatch:
            self._shelf.check_batch(store, user)
            return store.batches.create(
                user,
                endpoint=asked.endpoint,
                input_file=file.id,
                completion_window=asked.completion_window,
                seconds=asked.seconds,
                metadata=asked.metadata,
                keep_seconds=asked.retention_seconds,
            )

        batch = await self._shelf.call(create)
        self._keeper.poke()
        return JSONResponse(batch_payload(batch), headers=asked.ignored_header)


class BatchList(_StoreEndpoint):
    """The caller's batches, newest first: GET /v1/batches."""

    query = BatchQuery

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        asked = read_texts(BatchQuery, request.query_params)
        after = None if asked.after is None else await self._batch(user, asked.after, "after")
        batches = await self._shelf.call(
            lambda store: store.batches.of_user(user, after=after, most=asked.limit + 1)
        )
        return JSONResponse(page_of([batch_payload(one) for one in batches], asked.limit))


class OneBatch(_StoreEndpoint):
    """The state of a batch: GET /v1/batches/{id}."""

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        batch = await self._batch(user, request.path_params["name"])
        return JSONResponse(batch_payload(batch))


class BatchCancel(_BatchEndpoint):
    """Ends a batch without its missing answers: POST /v1/batches/{id}/cancel."""

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        name = request.path_params["name"]
        cancelled = await self._shelf.call(lambda store: store.batches.cancel(user, name))
        batch = _found("batch", cancelled, name)
        if batch.status not in _CANCELLED:
            text = f"the batch {batch.id} is {batch.status.value}; it cannot be cancelled any more"
            raise Fault(409, text, reason="batch has ended")
        self._keeper.poke()
        return JSONResponse(batch_payload(batch))
