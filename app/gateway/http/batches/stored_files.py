"""FileList, OneFile, FileContent: the endpoints of stored files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.batches.forms import file_payload, page_of
from app.gateway.http.batches.shelf import Shelf, Sweep
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.protocol.file_requests import FileQuery, read_texts
from app.gateway.http.service import Service
from app.store.files import Line, StoredFile
from app.store.store import Store


class FileList(Endpoint):
    """The caller's files: GET /v1/files."""

    query = FileQuery

    def __init__(self, service: Service, shelf: Shelf) -> None:
        super().__init__(service)
        self._shelf = shelf

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        asked = read_texts(FileQuery, request.query_params)
        after = None
        if asked.after is not None:
            after = await found_file(self._shelf, user, asked.after, "after")
        files = await self._shelf.ask(
            lambda store: store.files.of_user(
                user,
                after=after,
                most=asked.limit + 1,
                purpose=asked.purpose,
                newest=asked.order == "desc",
            )
        )
        return JSONResponse(page_of([file_payload(one) for one in files], asked.limit))


class OneFile(Endpoint):
    """GET describes a file, DELETE removes it: /v1/files/{id}."""

    def __init__(self, service: Service, shelf: Shelf, sweep: Sweep) -> None:
        super().__init__(service)
        self._shelf = shelf
        self._sweep = sweep

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        file = await found_file(self._shelf, user, request.path_params["name"])
        if request.method != "DELETE":
            return JSONResponse(file_payload(file))
        await self._shelf.ask(lambda store: store.files.delete(user, file.id))
        self._sweep.poke()
        return JSONResponse({"id": file.id, "object": "file", "deleted": True})


class FileContent(Endpoint):
    """The content of a file: GET /v1/files/{id}/content."""

    def __init__(self, service: Service, shelf: Shelf) -> None:
        super().__init__(service)
        self._shelf = shelf

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        file = await found_file(self._shelf, user, request.path_params["name"])
        headers = {"Content-Length": str(file.num_bytes), "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(
            self._content(file.number), media_type="application/octet-stream", headers=headers
        )

    async def _content(self, number: int) -> AsyncIterator[bytes]:
        after = 0
        while lines := await self._shelf.ask(partial(_part, number, after)):
            after = lines[-1].number
            yield b"".join(line.content for line in lines)


def _part(number: int, after: int, store: Store) -> list[Line]:
    return store.files.part(number, after)


async def found_file(shelf: Shelf, user: str, name: str, param: str | None = None) -> StoredFile:
    """A file of a user.

    Args:
        param: the field with the id; None if the path has it.

    Raises:
        Fault: 404, there is none.
    """
    file = await shelf.ask(lambda store: store.files.get(user, name))
    if file is None:
        text = f"{param or 'the file'} is {name[:100]!r}; it must be the id of one of your files"
        raise Fault(404, text, param, reason="file not found")
    return file
