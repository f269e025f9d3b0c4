"""NewBatch, BatchList, OneBatch, BatchCancel: the endpoints of batches."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.batches.batch_keeper import BatchKeeper
from app.gateway.http.batches.forms import batch_payload, page_of
from app.gateway.http.batches.shelf import Shelf
from app.gateway.http.batches.stored_files import found_file
from app.gateway.http.body import read_body
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.protocol.batches import BatchQuery, BatchRequest
from app.gateway.http.protocol.file_requests import read_texts
from app.gateway.http.protocol.payload import read
from app.gateway.http.service import Service
from app.store.batches import OUTPUT
from app.store.store import Store
from app.store.stored_batch import BatchStatus, StoredBatch

_CANCELLED = (BatchStatus.CANCELLING, BatchStatus.CANCELLED)


class NewBatch(Endpoint):
    """Answers the requests of a file: POST /v1/batches."""

    kind = BatchRequest

    def __init__(self, service: Service, shelf: Shelf, keeper: BatchKeeper) -> None:
        super().__init__(service)
        self._shelf = shelf
        self._keeper = keeper

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        asked = read(BatchRequest, await read_body(request, self.service.admission.check_size))
        param = "input_file_id"
        file = await found_file(self._shelf, user, asked.input_file_id, param)
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
                keep_seconds=asked.keep_seconds,
            )

        batch = await self._shelf.ask(create)
        self._keeper.poke()
        return JSONResponse(batch_payload(batch), headers=asked.ignored_header)


class BatchList(Endpoint):
    """The caller's batches, newest first: GET /v1/batches."""

    query = BatchQuery

    def __init__(self, service: Service, shelf: Shelf) -> None:
        super().__init__(service)
        self._shelf = shelf

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        asked = read_texts(BatchQuery, request.query_params)
        after = None
        if (name := asked.after) is not None:
            found = await self._shelf.ask(lambda store: store.batches.get(user, name))
            after = _found(found, name, "after")
        batches = await self._shelf.ask(
            lambda store: store.batches.of_user(user, after=after, most=asked.limit + 1)
        )
        return JSONResponse(page_of([batch_payload(one) for one in batches], asked.limit))


class OneBatch(Endpoint):
    """The state of a batch: GET /v1/batches/{id}."""

    def __init__(self, service: Service, shelf: Shelf) -> None:
        super().__init__(service)
        self._shelf = shelf

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        name = request.path_params["name"]
        batch = await self._shelf.ask(lambda store: store.batches.get(user, name))
        return JSONResponse(batch_payload(_found(batch, name)))


class BatchCancel(Endpoint):
    """Ends a batch without its missing answers: POST /v1/batches/{id}/cancel."""

    def __init__(self, service: Service, shelf: Shelf, keeper: BatchKeeper) -> None:
        super().__init__(service)
        self._shelf = shelf
        self._keeper = keeper

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        name = request.path_params["name"]
        batch = _found(await self._shelf.ask(lambda store: store.batches.cancel(user, name)), name)
        if batch.status not in _CANCELLED:
            text = f"the batch {batch.id} is {batch.status.value}; it cannot be cancelled any more"
            raise Fault(409, text, reason="batch has ended")
        self._keeper.poke()
        return JSONResponse(batch_payload(batch))


def _found(batch: StoredBatch | None, name: str, param: str | None = None) -> StoredBatch:
    """
    Args:
        param: the field with the id; None if the path has it.

    Raises:
        Fault: 404, there is none.
    """
    if batch is None:
        text = f"{param or 'the batch'} is {name[:100]!r}; it must be the id of one of your batches"
        raise Fault(404, text, param, reason="batch not found")
    return batch
