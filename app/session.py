"""ChatSession: one conversation held with the engine, the same for the screen and the gateways."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping

from app.database import StoreError
from app.store import Conversation, JournalEntry, Message, Store
from engine.client import ChatMessage, EngineClient, Submission
from engine.errors import InvalidRequestError
from engine.request import FinishReason, Origin
from engine.stream import Context, Delta, Finish, RequestStream

log = logging.getLogger(__name__)

# What a crash may cost. A write of 4,000 characters takes 0.03 ms, so 20 streaming sessions spend
# 0.03 % of a core on it.
SAVE_SECONDS = 2.0
TITLE_LENGTH = 60


class ChatSession:
    """A conversation and its reply in the making. One thread holds it.

    Messages form a tree: a regenerated reply and an edited message stand beside the old one. The
    branch that ends in the conversation's leaf is the one on view.

    A turn that failed before any text is shown but not told to the model. The token ids of earlier
    turns go along with a new one, so that it extends them exactly whatever the template does.

    Args:
        store: keeps the conversation; None keeps it in memory only.
        sampling: under the conversation's own sampling, over the model's defaults.
        clock: seconds, for the cadence of saving.

    Attributes:
        unsaved: why the last write to the store failed; the chat goes on. Empty if it did not.
    """

    def __init__(
        self,
        client: EngineClient,
        conversation: Conversation,
        store: Store | None = None,
        sampling: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.conversation = conversation
        self.unsaved = ""
        self._client = client
        self._store = store
        self._sampling = dict(sampling or {})
        self._clock = clock
        self._saved_at = 0.0
        self._stream: RequestStream | None = None
        self._reply: Message | None = None
        self._unwritten: dict[str, Message] = {}
        self._contexts: dict[str, Context] = {}
        kept = store.messages(conversation.id) if store else []
        self._tree = {message.id: message for message in kept}

    @property
    def messages(self) -> tuple[Message, ...]:
        """The branch on view, oldest first; the last may still grow."""
        return self._branch(self.conversation.leaf)

    @property
    def is_busy(self) -> bool:
        """Whether a reply is being made."""
        return self._stream is not None

    def send(self, text: str, wake: Callable[[], None] | None = None) -> None:
        """Say `text` and ask for a reply.

        Raises:
            InvalidRequestError: the text is empty or no Unicode, or a reply is being made.
        """
        self._say(text, self.conversation.leaf, wake)

    def edit(self, message_id: str, text: str, wake: Callable[[], None] | None = None) -> None:
        """Say `text` instead of an earlier message of the user, which stays as another branch.

        Raises:
            InvalidRequestError: as `send`, or it is no message of the user.
        """
        edited = self._tree.get(message_id)
        if edited is None or edited.role != "user":
            raise InvalidRequestError(
                f"message {message_id!r} cannot be edited; only the user's own can", "message"
            )
        self._say(text, edited.parent_id, wake)

    def regenerate(self, wake: Callable[[], None] | None = None) -> None:
        """Ask for another reply to the last message.

        Raises:
            InvalidRequestError: there is none, or a reply is being made.
        """
        self._check_idle()
        branch = self.messages
        if not branch:
            raise InvalidRequestError("there is no reply yet to make anew", "message")
        self._ask(branch[-2], wake, repeats=branch[-1].request_id)

    def stop(self) -> None:
        """End the reply at the next step; what has come of it stays."""
        if self._stream is not None:
            self._client.abort(self._stream.request_id)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until `poll` has something to give; False after `timeout` seconds without."""
        return self._stream is not None and self._stream.wait(timeout)

    def poll(self) -> Delta | None:
        """Take in what the engine has given since the last call. Never blocks."""
        if self._stream is None or self._reply is None:
            return None
        delta = self._stream.drain()
        if delta is None:
            return None
        self._reply.content += delta.text
        if delta.finish is not None:
            self._end(self._reply, delta.finish)
        elif self._clock() - self._saved_at >= SAVE_SECONDS:
            self._keep(self._reply)
        return delta

    def close(self) -> None:
        """Take in what has come, and end a reply that nobody will take in any more."""
        self.stop()
        self.poll()
        if self._reply is not None:
            self._end(self._reply, None)

    def _say(self, text: str, parent_id: str | None, wake: Callable[[], None] | None) -> None:
        self._check_idle()
        if not text.strip():
            raise InvalidRequestError("the prompt is empty; it must have some text", "prompt")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"the prompt has half a surrogate pair at character {error.start}; it must be"
                " valid Unicode",
                "prompt",
            ) from None
        question = Message(
            conversation_id=self.conversation.id, parent_id=parent_id, role="user", content=text
        )
        self._tree[question.id] = question
        if not self.conversation.title:
            self.conversation.title = _title(text)
        self._ask(question, wake)

    def _ask(
        self, question: Message, wake: Callable[[], None] | None, repeats: str | None = None
    ) -> None:
        conversation = self.conversation
        messages, context = self._prompt(question)
        submission = Submission(
            messages=messages,
            context=context,
            sampling={**self._sampling, **conversation.sampling},
            parent=repeats,
            origin=Origin(
                user=conversation.user,
                conversation=conversation.id,
                source=conversation.source,
                title=conversation.title,
            ),
        )
        reply = Message(
            conversation_id=conversation.id,
            parent_id=question.id,
            role="assistant",
            content="",
            model=self._client.status().model,
            request_id=submission.request_id,
        )
        self._tree[reply.id] = self._reply = reply
        conversation.leaf = reply.id
        conversation.updated = time.time()
        entry = JournalEntry(
            request_id=submission.request_id,
            user=conversation.user,
            conversation_id=conversation.id,
            source=conversation.source,
            body=json.dumps({"message": question.id, "sampling": submission.sampling}),
        )

        self._keep(question, reply, also=lambda store: store.begin_request(entry))
        self._stream = self._client.submit(submission, wake)

    def _prompt(self, question: Message) -> tuple[tuple[ChatMessage, ...], Context | None]:
        """What the model is told, and the newest context that these messages begin with."""
        told: list[Message] = []
        for asked, reply in _turns(self._branch(question.parent_id)):
            if reply.content or reply.finish_reason is not FinishReason.ERROR:
                told += (asked, reply)
        system = self.conversation.system
        first = (ChatMessage("system", system),) if system else ()
        messages = (*first, *(ChatMessage(m.role, m.content) for m in (*told, question)))
        for index in range(len(told) - 1, 0, -2):
            # A reply that failed half-way has none; the one before it has.
            context = self._context(told[index])
            if context is not None and context.num_messages == len(first) + index + 1:
                return messages, context
        return messages, None

    def _context(self, reply: Message) -> Context | None:
        context = self._contexts.get(reply.id)
        if context is None and self._store is not None:
            try:
                context = self._store.context(reply.id)
            except StoreError as error:
                log.error("%s", error)
        return context

    def _end(self, reply: Message, finish: Finish | None) -> None:
        """`finish` is None where the engine gave no end."""
        self._stream = self._reply = None
        reply.finish_reason = finish.reason if finish else FinishReason.ABORT
        if finish is not None:
            reply.error = finish.error
            reply.usage = finish.usage
            reply.timings = finish.timings
        context = finish.context if finish else None
        if context is not None:
            self._contexts[reply.id] = context

        def end(store: Store) -> None:
            if context is not None:
                store.save_context(reply.id, context)
            if reply.request_id is not None and reply.finish_reason is not None:
                store.end_request(reply.request_id, reply.finish_reason, reply.error)

        self._keep(reply, also=end)

    def _keep(self, *changed: Message, also: Callable[[Store], None] | None = None) -> None:
        """Write to the store, with what could not be written before; the chat goes on without."""
        if self._store is None:
            return
        self._saved_at = self._clock()
        self._unwritten |= {message.id: message for message in changed}
        try:
            with self._store.transaction():
                self._store.save_conversation(self.conversation)
                for message in self._unwritten.values():
                    self._store.save_message(message)
                if also is not None:
                    also(self._store)
        except StoreError as error:
            self.unsaved = str(error)
            log.error("%s", error)
        else:
            self.unsaved = ""
            self._unwritten.clear()

    def _branch(self, leaf: str | None) -> tuple[Message, ...]:
        branch: list[Message] = []
        while leaf is not None:
            branch.append(self._tree[leaf])
            leaf = branch[-1].parent_id
        return tuple(reversed(branch))

    def _check_idle(self) -> None:
        if self._stream is not None:
            raise InvalidRequestError("a reply is being made; stop it first", "prompt")


def _turns(branch: tuple[Message, ...]) -> zip[tuple[Message, Message]]:
    """Messages in pairs: the user's and the reply."""
    return zip(branch[::2], branch[1::2], strict=True)


def _title(text: str) -> str:
    """The beginning of a text in one line, cut between words."""
    words = " ".join(text.split())
    if len(words) <= TITLE_LENGTH:
        return words
    return words[:TITLE_LENGTH].rsplit(" ", 1)[0] + "…"
