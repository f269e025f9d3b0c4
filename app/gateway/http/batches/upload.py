"""Upload: POST /v1/files, which writes a file to the store as it arrives."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Send

from app.gateway.faults import Fault
from app.gateway.http.batches.form_reader import FormReader, LineCutter, too_large
from app.gateway.http.batches.forms import file_payload
from app.gateway.http.batches.shelf import Shelf, Sweep
from app.gateway.http.endpoint import Endpoint
from app.gateway.http.protocol.file_requests import UploadForm, read_texts
from app.gateway.http.service import Service
from app.store.files import Line, StoredFile
from app.store.store import Store

# Most bytes of a file that are buffered for the store, besides the current line.
HELD_BYTES = 1 << 19
# Pause between two parts of a file, so that others may write.
PAUSE_SECONDS = 0.01
# Most bytes of the form besides its file.
FORM_BYTES = 1 << 16
# Timeouts for the next chunk, and for the whole upload.
PIECE_SECONDS = 60.0
UPLOAD_SECONDS = 4 * 3600.0


class Upload(Endpoint):
    """A file with a request in each line. An incomplete upload leaves nothing.

    Args:
        max_bytes: limit of a file.
        max_line_bytes: limit of a line.
    """

    kind = UploadForm
    media_type: ClassVar[str] = "multipart/form-data"

    def __init__(
        self, service: Service, shelf: Shelf, sweep: Sweep, max_bytes: int, max_line_bytes: int
    ) -> None:
        super().__init__(service)
        self._shelf = shelf
        self._sweep = sweep
        self._max_bytes = max_bytes
        self._max_line_bytes = max_line_bytes

    async def answer(self, request: Request, send: Send) -> Response:
        user = self.service.asker(request)
        stated = request.headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > self._max_bytes + FORM_BYTES:
            raise too_large(self._max_bytes)
        cutter = LineCutter(self._max_bytes, self._max_line_bytes)
        reader = FormReader(request.headers.get("content-type", ""), cutter)
        quotas = self.service.quotas
        quotas.check(user)
        quotas.opened(user)
        try:
            file, form = await self._receive(request, user, cutter, reader)
        finally:
            quotas.ended(user)
        return JSONResponse(file_payload(file), headers=form.ignored_header)

    async def _receive(
        self, request: Request, user: str, cutter: LineCutter, reader: FormReader
    ) -> tuple[StoredFile, UploadForm]:
        shelf, stated = self._shelf, request.headers.get("content-length", "")
        # All but the form's own bytes; without a stated length, each part is checked.
        num_bytes = max(0, int(stated) - FORM_BYTES) if stated.isdecimal() else 0
        number = (await shelf.call(partial(_create_file, shelf, user, num_bytes))).number
        try:
            await self._read(request, user, number, cutter, reader)
            form = read_texts(UploadForm, reader.texts)
            await self._shelf.call(partial(_append_lines, shelf, user, number, cutter.drain()))
            return await self._shelf.call(partial(_finish, number, form)), form
        except BaseException:
            self._shelf.post(partial(_drop, number))
            self._sweep.poke()
            raise

    async def _read(
        self, request: Request, user: str, number: int, cutter: LineCutter, reader: FormReader
    ) -> None:
        """Read the form, and store all of the file but its last lines.

        Raises:
            Fault: it is too large, is no such form, or does not arrive in time.
            ClientDisconnect: the client has gone.
        """
        pieces = aiter(request.stream())
        num_beside = 0
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                while True:
                    async with asyncio.timeout(PIECE_SECONDS):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    before = cutter.num_bytes
                    reader.feed(piece)
                    num_beside += len(piece) - (cutter.num_bytes - before)
                    if num_beside > FORM_BYTES:
                        text = f"the form has more than {FORM_BYTES} bytes beside its file"
                        raise Fault(413, text, reason="too large")
                    if cutter.num_held >= HELD_BYTES and (lines := cutter.drain()):
                        await self._shelf.call(
                            partial(_append_lines, self._shelf, user, number, lines)
                        )
                        await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise Fault(408, "the file did not arrive in time", reason="slow request") from None
        reader.end()


def _create_file(shelf: Shelf, user: str, num_bytes: int, store: Store) -> StoredFile:
    shelf.check_file(store, user, num_bytes)
    return store.files.create(user)


def _append_lines(shelf: Shelf, user: str, number: int, lines: list[Line], store: Store) -> None:
    shelf.check_file(store, user, sum(len(line.content) for line in lines))
    store.files.append(number, lines)


def _finish(number: int, form: UploadForm, store: Store) -> StoredFile:
    return store.files.finish(number, form.file, form.purpose, form.retention_seconds)


def _drop(number: int, store: Store) -> None:
    store.files.drop(number)
