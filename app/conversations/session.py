"""ChatSession: one conversation with the engine, for the screen and for lines of text."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from app.conversations.history import History
from app.store.conversation import Attachment, Conversation, Message
from app.store.database import StoreError
from app.store.journal import Journal, JournalEntry
from app.store.store import Store
from engine.api.client import Submission, new_request_id
from engine.api.errors import InvalidRequestError
from engine.api.origin import Origin
from engine.api.status import EngineStatus
from engine.api.stream import Delta, Finish, RequestStream, Thought

log = logging.getLogger(__name__)

# The most that a crash may lose. A write of 4,000 characters takes 0.03 ms, so 20 streaming
# sessions spend 0.03 % of a core on it.
SAVE_SECONDS = 2.0


class ChatEngine(Protocol):
    """The part of `EngineClient` that a session calls."""

    def submit(
        self, submission: Submission, wake: Callable[[], None] | None = None
    ) -> RequestStream: ...

    def abort(self, request_id: str) -> None: ...

    def status(self) -> EngineStatus: ...


class ChatSession:
    """A conversation and its reply in progress. It belongs to one thread.

    Its messages are read from the store on first use: of many open chats few are viewed. Every
    method that uses them raises StoreError if they cannot be read, unless `read` was called before.

    Args:
        store: stores the conversation; None keeps it in memory only.
        sampling: overrides the defaults of chats; the conversation's own sampling overrides it.
        clock: seconds, for the cadence of saving.

    Attributes:
        unsaved: why the last write to the store failed; the chat continues. Empty if it succeeded.
    """

    def __init__(
        self,
        client: ChatEngine,
        conversation: Conversation,
        store: Store | None = None,
        sampling: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.conversation = conversation
        self.unsaved = ""
        self._read: History | None = None
        self._client = client
        self._store = store
        self._sampling = dict(sampling or {})
        self._clock = clock
        self._saved_at = 0.0
        self._stream: RequestStream | None = None
        self._reply: Message | None = None
        # Unwritten changes of the journal.
        self._unjournalled: list[Callable[[Journal], object]] = []

    @property
    def is_empty(self) -> bool:
        """Whether it has no messages yet."""
        return self.conversation.leaf is None

    @property
    def is_read(self) -> bool:
        """Whether the messages are in memory."""
        return self._read is not None

    def read(self) -> None:
        """Read the messages, if they are not in memory.

        Raises:
            StoreError: they cannot be read.
        """
        if self._read is None:
            self._read = History(self.conversation, self._store)

    @property
    def _history(self) -> History:
        self.read()
        assert self._read is not None
        return self._read

    @property
    def messages(self) -> tuple[Message, ...]:
        """The branch on view, oldest first; the last may still grow."""
        return self._history.messages

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """As `History.places`."""
        return self._history.places

    @property
    def is_busy(self) -> bool:
        """Whether a reply is in progress."""
        return self._stream is not None

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of the reply in progress; 0 while not known."""
        return self._stream.num_prompt_tokens if self._stream is not None else 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the reply in progress, as far as they were read."""
        return self._stream.num_output_tokens if self._stream is not None else 0

    @property
    def thought(self) -> Thought:
        """The thinking of the reply in progress so far, including the part before it was
        resumed."""
        if self._stream is None or self._reply is None:
            return Thought()
        tokens, seconds = self._stream.thought
        before = self._reply.timings.thinking if self._reply.timings is not None else None
        return Thought(tokens, seconds + (before or 0.0))

    def send(
        self,
        text: str,
        wake: Callable[[], None] | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> None:
        """Send `text` and request a reply.

        Raises:
            InvalidRequestError: the text is empty or invalid Unicode, or a reply is in progress.
        """
        self._check_idle()
        self._ask(self._history.add(text, attachments=attachments), wake)

    def edit(
        self,
        message_id: str,
        text: str,
        wake: Callable[[], None] | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> None:
        """Send `text` instead of an earlier message of the user, which stays as another branch.

        Raises:
            InvalidRequestError: as `send`, or the message is not the user's.
        """
        self._check_idle()
        question = self._history.add(text, instead_of=message_id, attachments=attachments)
        self._ask(question, wake)

    def regenerate(
        self, message_id: str | None = None, wake: Callable[[], None] | None = None
    ) -> None:
        """Request another reply, as an alternative to the old one.

        Args:
            message_id: of the reply on view; None is the last one.

        Raises:
            InvalidRequestError: there is none, or a reply is in progress.
        """
        self._check_idle()
        replies = {m.id: m.parent_id for m in self.messages if m.role == "assistant"}
        if not replies:
            raise InvalidRequestError("there is no reply yet to regenerate", "message")
        parent_id = replies[next(reversed(replies)) if message_id is None else message_id]
        self._ask(next(m for m in self.messages if m.id == parent_id), wake)

    @property
    def can_resume(self) -> bool:
        """Whether the newest reply has ended before it was complete."""
        if self.is_busy or self._history.is_awaited:
            return False
        try:
            self._history.resumable_reply()
        except InvalidRequestError:
            return False
        return True

    def resume(self, wake: Callable[[], None] | None = None) -> None:
        """Resume the newest reply where it ended, with its original settings.

        Raises:
            InvalidRequestError: there is none, it is complete, or a reply is in progress.
        """
        self._check_idle()
        reply = self._history.resumable_reply()
        request_id = new_request_id()
        messages, context, num_partial = self._history.resume(reply, request_id)
        asked = {**self._sampling, **self.conversation.sampling}
        submission = Submission(
            messages=messages,
            context=context,
            num_partial=num_partial,
            sampling=asked if reply.asked is None else reply.asked.sampling,
            chat_defaults=True,
            request_id=request_id,
            origin=self._origin,
        )
        self._submit(submission, reply, wake)

    def turn(self, message_id: str, steps: int) -> bool:
        """Switch to another branch, as `History.turn`.

        Raises:
            InvalidRequestError: a reply is in progress, or the branch cannot be read.
        """
        self._check_idle()
        with self._switching():
            return self._history.turn(message_id, steps)

    def switch_to(self, message_id: str) -> None:
        """Switch to the branch of a message, as `History.switch_to`.

        Raises:
            InvalidRequestError: a reply is in progress, or the branch cannot be read.
        """
        self._check_idle()
        with self._switching():
            self._history.switch_to(message_id)

    def read_changes(self) -> str:
        """As `History.read_changes`."""
        return self._history.read_changes()

    def stop(self) -> None:
        """End the reply at the next step; its text so far stays."""
        if self._stream is not None:
            self._client.abort(self._stream.request_id)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until `poll` has something to return; False after `timeout` seconds without."""
        return self._stream is not None and self._stream.wait(timeout)

    def poll(self) -> Delta | None:
        """Read the engine's output since the last call. Never blocks."""
        if self._stream is None or self._reply is None:
            return None
        delta = self._stream.drain()
        if delta is None:
            return None
        if not self._reply.content:
            # The model has its name once it is loaded.
            self._reply.model = self._client.status().model
        self._history.add_delta(self._reply, delta)
        if delta.finish is not None:
            self._end(self._reply, delta.finish)
        elif self._clock() - self._saved_at >= SAVE_SECONDS:
            self._save(self._reply)
        return delta

    def close(self) -> None:
        """Read the remaining output, and end a reply that is still in progress."""
        self.stop()
        self.poll()
        if self._reply is not None:
            self._end(self._reply, None)

    def _ask(self, question: Message, wake: Callable[[], None] | None) -> None:
        conversation = self.conversation
        messages, context = self._history.prompt(question)
        submission = Submission(
            messages=messages,
            context=context,
            sampling={**self._sampling, **conversation.sampling},
            chat_defaults=True,
            origin=self._origin,
        )
        reply = self._history.reply(
            question,
            model=self._client.status().model,
            request_id=submission.request_id,
            sampling=submission.sampling,
        )
        self._submit(submission, reply, wake)

    @property
    def _origin(self) -> Origin:
        """The origin of its requests."""
        conversation = self.conversation
        return Origin(
            user=conversation.user,
            conversation=conversation.id,
            source=conversation.source,
            title=conversation.title,
        )

    @contextmanager
    def _switching(self) -> Iterator[None]:
        """For switching branches within the block: raises InvalidRequestError if a branch cannot be
        read."""
        try:
            yield
        except StoreError as error:
            raise InvalidRequestError(str(error), "message") from error
        self._save()

    def _submit(
        self, submission: Submission, reply: Message, wake: Callable[[], None] | None
    ) -> None:
        """Journal a request, and submit it to the engine."""
        origin = submission.origin
        body = {"message": reply.parent_id, "sampling": dict(submission.sampling)}
        entry = JournalEntry(
            request_id=submission.request_id,
            user=origin.user,
            conversation_id=origin.conversation,
            source=origin.source,
            body=json.dumps(body),
        )
        self._reply = reply
        self._save(journal=lambda journal: journal.start(entry))
        self._stream = self._client.submit(submission, wake)

    def _end(self, reply: Message, finish: Finish | None) -> None:
        """End the reply; `finish` is None if the engine gave none."""
        self._stream = self._reply = None
        self._history.finish(reply, finish)
        request_id, reason, error = reply.request_id, reply.finish_reason, reply.error
        assert request_id is not None
        assert reason is not None
        self._save(journal=lambda journal: journal.end(request_id, reason, error))

    def _save(self, *changed: Message, journal: Callable[[Journal], object] | None = None) -> None:
        """Write to the store, with earlier unwritten changes; on failure the chat continues."""
        if self._store is None:
            return
        self._saved_at = self._clock()
        if journal is not None:
            self._unjournalled.append(journal)
        try:
            with self._store.transaction():
                self._history.save(*changed)
                for write in self._unjournalled:
                    write(self._store.journal)
        except StoreError as error:
            self.unsaved = str(error)
            log.error("%s", error)
        else:
            self.unsaved = ""
            self._unjournalled.clear()

    def _check_idle(self) -> None:
        if self._stream is not None:
            raise InvalidRequestError("a reply is being generated; stop it first", "prompt")
        if self._history.is_awaited:
            raise InvalidRequestError(
                "another program is generating this reply; wait until it ends", "prompt"
            )
