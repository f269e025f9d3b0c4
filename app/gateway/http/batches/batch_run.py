"""BatchRun: one batch, from its stored state to its end."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from app.gateway.admission import ANOTHER_MODEL
from app.gateway.faults import Fault
from app.gateway.http.batches.answerer import Answered, Answerer
from app.gateway.http.batches.inspection import Inspection
from app.gateway.http.batches.room import EVICTED, Room
from app.gateway.http.batches.shelf import Shelf
from app.gateway.http.protocol.batches import custom_id_of
from app.gateway.loop_thread import pause
from app.gateway.quotas import Quotas
from app.store.batches import Answer
from app.store.files import Line
from app.store.store import Store
from app.store.stored_batch import BatchStatus, StoredBatch, TokenCounts
from engine.api.client import new_request_id

log = logging.getLogger(__name__)

T = TypeVar("T")

# Most answers that are not in the store yet, while the disk is slow.
MOST_UNWRITTEN = 1024
# The pauses before a retry: after a transient fault, and while another model is served.
RETRY_SECONDS = 1.0
MODEL_SECONDS = 5.0
# How often a request may fail with its step, which may be its own fault.
MOST_STEPS = 3
_CANCELLED = ("batch_cancelled", "This request was not executed before the batch was cancelled.")
_EXPIRED = (
    "batch_expired",
    "This request could not be executed before the completion window expired.",
)
_FULL = (
    "storage_exceeded",
    "This request was not executed: its owner's files have reached their size limit.",
)


class BatchRun:
    """Validates, answers and ends a batch. Each step is in the store before the next one, so that a
    later run resumes there, loses nothing and answers nothing twice.

    Args:
        rates: each user's rate limit in batches, separate from their other requests.
        validating, turn: held while the batch is validated, and while its requests are answered.
    """

    def __init__(
        self,
        batch: StoredBatch,
        *,
        shelf: Shelf,
        answerer: Answerer,
        room: Room,
        rates: Quotas,
        validating: asyncio.Lock,
        turn: asyncio.Lock,
    ) -> None:
        self._id = batch.id
        self._batch = batch
        self._shelf = shelf
        self._answerer = answerer
        self._room = room
        self._rates = rates
        self._validating = validating
        self._turn = turn
        self._until: asyncio.Timeout | None = None
        self._is_cancelled = self._is_full = False
        self._line_ended = asyncio.Event()
        self._unwritten: list[Answer] = []
        self._writing = asyncio.Lock()
        self._trouble = ""

    async def go(self) -> None:
        """Run the batch to its end."""
        if self._batch.status is BatchStatus.VALIDATING:
            await self._validate()
        if self._batch.status is BatchStatus.IN_PROGRESS:
            await self._answer_all()
        if self._batch.status is BatchStatus.FINALIZING:
            is_left = await self._answer_rest(*(_FULL if self._is_full else _EXPIRED))
            has_expired = is_left and not self._is_full
            await self._end(BatchStatus.EXPIRED if has_expired else BatchStatus.COMPLETED)
        elif self._batch.status is BatchStatus.CANCELLING:
            await self._answer_rest(*_CANCELLED)
            await self._end(BatchStatus.CANCELLED)
        log.info(
            "%s of %s is %s: %d requests, %d answered, %d with an error",
            *(self._id, self._batch.user, self._batch.status.value),
            *(self._batch.total, self._batch.completed, self._batch.failed),
        )

    def cancel(self) -> None:
        """Cancel the batch, which the store already records as cancelled."""
        self._is_cancelled = True
        if self._until is not None and not self._until.expired():
            self._until.reschedule(0.0)

    @asynccontextmanager
    async def _until_cancelled(self, seconds: float | None = None) -> AsyncIterator[None]:
        """Cancel the body of the context at a cancellation of the batch, or after so many
        seconds."""
        try:
            async with asyncio.timeout(0.0 if self._is_cancelled else seconds) as self._until:
                yield
        except TimeoutError:
            log.debug("%s is broken off", self._id)
        finally:
            self._until = None

    async def _validate(self) -> None:
        found: Inspection | None = None
        async with self._until_cancelled(), self._validating:
            found = await self._inspected()
        if found is None:
            self._batch = await self._ask(lambda store: store.batches.reread(self._id))
        elif errors := found.errors:
            self._batch = await self._ask(lambda store: store.batches.fail(self._id, errors))
        else:
            total = found.total
            self._batch = await self._ask(lambda store: store.batches.start(self._id, total))

    async def _inspected(self) -> Inspection:
        """Inspect the batch's file."""
        while True:
            await self._room.opened()
            inspection = Inspection(self._batch.endpoint, self._answerer.check_model)
            after = 0
            try:
                while lines := await self._part(after):
                    # Parsing runs off the loop, a part of the file at a time.
                    await asyncio.to_thread(inspection.check, lines)
                    after = lines[-1].number
                    if inspection.has_enough:
                        break
                inspection.end()
                return inspection
            except Fault:
                await asyncio.sleep(RETRY_SECONDS)  # Another model is loading.

    async def _answer_all(self) -> None:
        """Answer the unanswered requests, until all are done, the batch expires or is cancelled, or
        its owner's storage is full."""
        log.info(
            "%s of %s: %d requests, %d of them answered",
            *(self._id, self._batch.user, self._batch.total),
            self._batch.completed + self._batch.failed,
        )
        seconds = max(0.0, self._batch.expires - time.time())
        async with self._until_cancelled(seconds), self._turn, asyncio.TaskGroup() as tasks:
            async for line in self._unanswered():
                if self._is_full:
                    break
                await self._acquire_slot()
                tasks.create_task(self._answer(line))
                # Let the task start: a task that is cancelled before that would not release its
                # slot.
                await asyncio.sleep(0.0)
        self._batch = await self._ask(lambda store: store.batches.finalize(self._id))

    async def _answer(self, line: Line) -> None:
        """Answer a line that has a slot."""
        try:
            answered = await self._answered(line)
        finally:
            self._rates.ended(self._batch.user)
            self._line_ended.set()
        content = f"{answered.line}\n".encode()
        tokens = tokens_of(answered.usage)
        self._unwritten.append(Answer(line.number, content, answered.fault is None, tokens))
        await self._write()

    async def _answered(self, line: Line) -> Answered:
        """Answer a line, with retries while the fault is not the line's. The caller has taken a
        slot, which is released at the end."""
        num_steps = 0
        while True:
            try:
                answered = await self._answerer.answer(self._batch.user, line.content)
            finally:
                self._room.release()
            fault = answered.fault
            num_steps += fault is not None and fault.code == 500
            if fault is None or not _may_pass(fault) or num_steps >= MOST_STEPS:
                return answered
            if fault.reason != EVICTED:
                is_of_model = fault.reason == ANOTHER_MODEL
                await asyncio.sleep(MODEL_SECONDS if is_of_model else RETRY_SECONDS)
            await self._room.acquire()

    async def _acquire_slot(self) -> None:
        """Wait for a slot for another line."""
        user = self._batch.user
        while len(self._unwritten) >= MOST_UNWRITTEN:
            await asyncio.sleep(RETRY_SECONDS)
        while True:
            self._line_ended.clear()
            try:
                self._rates.check(user)
                break
            except Fault as fault:
                await pause(self._line_ended, (fault.retry_after_ms or 1000) / 1000.0)
        await self._room.acquire()
        self._rates.opened(user)

    async def _write(self) -> None:
        """Store the unwritten answers, together all that came while the store was busy. A cancelled
        write is handed to the store's thread."""
        answers: list[Answer] = []
        try:
            async with self._writing:
                answers, self._unwritten = self._unwritten, []
                if answers:
                    await self._ask(partial(self._store_answers, answers))
        except asyncio.CancelledError:
            answers, self._unwritten = answers + self._unwritten, []
            self._shelf.post(partial(self._store_answers, answers))
            raise

    async def _answer_rest(self, code: str, message: str) -> bool:
        """Answer the unanswered requests with an error; returns whether there were any."""
        found = False
        async for line in self._unanswered():
            found = True
            answer = Answer(line.number, _unexecuted(line, code, message), False)
            self._unwritten.append(answer)
            if len(self._unwritten) >= MOST_UNWRITTEN:
                await self._write()
        await self._write()
        return found

    async def _end(self, status: BatchStatus) -> None:
        self._batch = await self._ask(lambda store: store.batches.end(self._id, status))

    async def _unanswered(self) -> AsyncIterator[Line]:
        """The unanswered requests, as the store knows them when each is reached."""
        after = 0
        while lines := await self._part(after):
            after = lines[-1].number
            for line in await self._ask(partial(self._without_answer, lines)):
                if line.content.strip():
                    yield line

    async def _part(self, after: int) -> list[Line]:
        return await self._ask(lambda store: store.batches.input(self._batch, after))

    def _store_answers(self, answers: Sequence[Answer], store: Store) -> None:
        store.batches.answer(self._id, answers)
        self._is_full = self._shelf.is_full(store, self._batch.user)

    def _without_answer(self, lines: Sequence[Line], store: Store) -> list[Line]:
        return store.batches.unanswered(self._batch, lines)

    async def _ask(self, call: Callable[[Store], T]) -> T:
        """The store's result, with retries until it succeeds."""
        while True:
            try:
                given = await self._shelf.call(call)
            except Fault as fault:
                if fault.message != self._trouble:
                    log.error("%s waits: %s", self._id, fault.message)
                self._trouble = fault.message
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._trouble = ""
                return given


def tokens_of(usage: Mapping[str, Any]) -> TokenCounts:
    """The token counts of an answer, in either of OpenAI's two forms."""
    into, out = ("input", "output") if "input_tokens" in usage else ("prompt", "completion")
    return TokenCounts(
        input=usage.get(f"{into}_tokens", 0),
        cached=usage.get(f"{into}_tokens_details", {}).get("cached_tokens", 0),
        output=usage.get(f"{out}_tokens", 0),
        reasoning=usage.get(f"{out}_tokens_details", {}).get("reasoning_tokens", 0),
    )


def _may_pass(fault: Fault) -> bool:
    """Whether a failed request may succeed later. The model was served when the batch was
    validated."""
    return fault.retryable or fault.reason == ANOTHER_MODEL


def _unexecuted(line: Line, code: str, message: str) -> bytes:
    """The error entry for a line that was not answered."""
    payload = {
        "id": f"batch_req_{new_request_id()}",
        "custom_id": custom_id_of(line.content),
        "response": None,
        "error": {"code": code, "message": message},
    }
    return f"{json.dumps(payload, ensure_ascii=False)}\n".encode()
