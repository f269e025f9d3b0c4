"""History: the messages of one conversation, the prompts made from them, and their storage."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from app.conversations.question import check_question, title_from
from app.conversations.shown_branch import ShownBranch
from app.store.conversation import Asked, Attachment, Conversation, Message
from app.store.database import StoreError
from app.store.store import Store
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.lifecycle import FinishReason, Timings
from engine.api.stream import Context, Delta, Finish, Usage

log = logging.getLogger(__name__)


class ResumedReply:
    """The earlier text of a reply stays until its stream repeats it.

    Args:
        context: the token ids of that earlier part; None if they are not stored.
    """

    def __init__(self, reply: Message, context: Context | None) -> None:
        self.context = context
        self._usage = reply.usage or Usage(0, 0, 0)
        self._timings = reply.timings or Timings()
        self._is_repeated = False

    def clear_earlier(self, reply: Message, delta: Delta) -> None:
        """Clear the earlier text before the first delta, which repeats all of it."""
        if not self._is_repeated and (delta.text or delta.thinking):
            reply.thinking = reply.content = ""
            self._is_repeated = True

    def timings(self, usage: Usage, later: Timings) -> Timings:
        """The timings of the whole reply: it has one time to first token, and the times of its
        parts add up.

        Args:
            usage: of the whole reply.
            later: of the continuation.
        """
        first = self._timings
        if first.ttft is None:
            return later
        gaps = max(0, self._usage.completion_tokens - 1)
        later_gaps = max(0, usage.completion_tokens - self._usage.completion_tokens - 1)
        parts = [(first.tpot, gaps), (later.tpot, later_gaps)]
        known = [(tpot, count) for tpot, count in parts if tpot is not None and count]
        return Timings(
            queue=first.queue,
            prefill=first.prefill,
            decode=_sum(first.decode, later.decode),
            ttft=first.ttft,
            tpot=sum(t * n for t, n in known) / sum(n for _, n in known) if known else None,
            e2e=_sum(first.e2e, later.e2e),
            thinking=_sum(first.thinking, later.thinking),
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None and other is None else (one or 0.0) + (other or 0.0)


class History(ShownBranch):
    """A conversation's messages, which form a tree. One thread changes it.

    A regenerated reply and an edited message are alternatives of the old one. The branch that ends
    in the conversation's leaf is on view. Other branches are read from the store when they are
    opened.

    A turn that failed before any text is shown but left out of prompts. The token ids of earlier
    turns are passed with a new one, so that it extends them exactly, whatever the template does.

    Args:
        store: stores the conversation; None keeps it in memory only.

    Raises:
        StoreError: the conversation cannot be read.
    """

    def __init__(self, conversation: Conversation, store: Store | None = None) -> None:
        super().__init__(conversation, store)
        # Unsaved contexts of replies.
        self._contexts: dict[str, Context] = {}
        self._stale: set[str] = set()  # replies whose stored contexts are out of date
        self._resumed: ResumedReply | None = None  # the reply in progress, if it was resumed

    def add(
        self,
        text: str,
        *,
        instead_of: str | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> Message:
        """Add a question at the end of the branch on view.

        Args:
            instead_of: id of an earlier question, whose alternative it becomes.

        Raises:
            InvalidRequestError: the text is empty or invalid Unicode, or the id is not a
                question's.
        """
        conversation = self.conversation
        parent_id = conversation.leaf
        if instead_of is not None:
            edited = self._tree.get(instead_of)
            if edited is None or edited.role != "user":
                raise InvalidRequestError(
                    f"message {instead_of!r} cannot be edited; only the user's own can", "message"
                )
            parent_id = edited.parent_id
        question = Message(
            conversation_id=conversation.id,
            parent_id=parent_id,
            role="user",
            content=text,
            attachments=attachments,
        )
        check_question(question)
        self._set(question)
        if not conversation.title or (parent_id is None and not conversation.is_named):
            conversation.title = title_from(question)
        return question

    def add_outcomes(self, outcomes: Sequence[ChatMessage]) -> Message:
        """Add tool results at the end of the branch on view; returns the last one."""
        parent_id = self.conversation.leaf
        for outcome in outcomes:
            message = Message(
                conversation_id=self.conversation.id,
                parent_id=parent_id,
                role=outcome.role,
                content=outcome.content,
                tool_call_id=outcome.tool_call_id,
                name=outcome.name,
            )
            self._set(message)
            parent_id = message.id
        return message

    def asked(self, request_id: str) -> Message | None:
        """The question of the newest turn, if its reply is an earlier attempt at this request."""
        branch = self.messages
        return branch[-2] if branch and branch[-1].request_id == request_id else None

    def prompt(
        self, question: Message, asked: Asked | None = None
    ) -> tuple[tuple[ChatMessage, ...], Context | None]:
        """The prompt for a question, and the newest context that its messages begin with.

        Args:
            asked: the settings, if not the conversation's current ones.
        """
        turns: list[Message] = []
        for turn in _turns(self._tree.branch(question.parent_id)):
            if turn[-1].content or turn[-1].finish_reason is not FinishReason.ERROR:
                turns += turn
        system = self.conversation.system if asked is None else asked.system
        first = (ChatMessage("system", system),) if system else ()
        messages = (*first, *(message.chat_message() for message in (*turns, question)))
        lengths = {message.id: len(first) + n for n, message in enumerate(turns, 1)}
        newest = self._newest_context(question.parent_id)
        if newest is None or newest[1].num_messages != lengths.get(newest[0]):
            return messages, None
        before = self._tree[newest[0]].asked
        if before is None or before.system != system:
            # The ids begin with the system prompt of their turn.
            return messages, None
        return messages, newest[1]

    def reply(
        self,
        question: Message,
        *,
        model: str,
        request_id: str,
        sampling: Mapping[str, object],
    ) -> Message:
        """Add an empty reply at the end of the branch on view.

        Args:
            sampling: the parameters that it is requested with.
        """
        conversation = self.conversation
        reply = Message(
            conversation_id=conversation.id,
            parent_id=question.id,
            role="assistant",
            content="",
            model=model,
            request_id=request_id,
            asked=Asked(conversation.system, dict(sampling)),
        )
        self._set(reply)
        self._tree.leave(conversation.leaf)
        conversation.leaf = self._making = reply.id
        conversation.updated = time.time()
        return reply

    def resumable_reply(self) -> Message:
        """The newest reply, which must be resumable.

        Raises:
            InvalidRequestError: it is not, or there is none.
        """
        reply = next(reversed(self.messages), None)
        if reply is None or reply.role != "assistant":
            raise InvalidRequestError("there is no reply yet to continue", "message")
        if not (reply.content or reply.thinking):
            raise InvalidRequestError("this reply has no text yet; regenerate it", "message")
        if reply.finish_reason is FinishReason.STOP:
            raise InvalidRequestError(
                "this reply is complete; send a message to ask for more", "message"
            )
        return reply

    def resume(
        self, reply: Message, request_id: str
    ) -> tuple[tuple[ChatMessage, ...], Context | None, int]:
        """Resume the newest reply.

        Returns:
            messages, context and num_partial for `Submission`.
        """
        assert reply.parent_id is not None
        messages_before, context = self.prompt(self._tree[reply.parent_id], reply.asked)
        messages, num_partial = (*messages_before, reply.chat_message()), 0
        newest = self._newest_context(reply.id)
        own = newest[1] if newest is not None and newest[0] == reply.id else None
        if own is not None and own.num_messages == len(messages) and reply.usage is not None:
            context, num_partial = own, reply.usage.completion_tokens
        self._resumed = ResumedReply(reply, own)
        self._contexts.pop(reply.id, None)
        self._stale.add(reply.id)
        self._making = reply.id
        reply.request_id, reply.error, reply.finish_reason = request_id, None, None
        self._unwritten[reply.id] = reply
        return messages, context, num_partial

    def add_delta(self, reply: Message, delta: Delta) -> None:
        """Add output to the reply in progress."""
        if self._resumed is not None:
            self._resumed.clear_earlier(reply, delta)
        reply.thinking += delta.thinking
        reply.content += delta.text

    def finish(self, reply: Message, finish: Finish | None) -> None:
        """End a reply; `finish` is None if the engine gave none."""
        resumed = self._resumed
        if finish is not None:
            reply.error = finish.error
            if resumed is None or finish.usage.completion_tokens:
                reply.timings = finish.timings
                if resumed is not None:
                    reply.timings = resumed.timings(finish.usage, finish.timings)
                reply.usage, reply.tool_use = finish.usage, finish.tool_use
                if finish.context is not None:
                    self._contexts[reply.id] = finish.context
            elif resumed.context is not None:
                # It was not served: the reply is unchanged.
                self._contexts[reply.id] = resumed.context
        self._making = self._resumed = None
        # Last: other threads then treat the reply as complete.
        reply.finish_reason = finish.reason if finish else FinishReason.ABORT
        self._unwritten[reply.id] = reply

    def save(self, *changed: Message) -> None:
        """Write new messages and these, with those that could not be written before.

        It may be part of a larger transaction; nothing may be added here before that is committed.

        Raises:
            DeletedError: another program deleted the conversation.
            StoreError: the next call writes what this one could not.
        """
        if self._store is None:
            return
        self._unwritten |= {message.id: message for message in changed}
        with self._store.transaction():
            if self._is_changed:
                self._store.save_conversation(self.conversation)
            for message in self._unwritten.values():
                self._store.save_message(message)
            for reply_id in self._stale:
                self._store.contexts.forget(reply_id)
            for reply_id, context in self._contexts.items():
                self._store.contexts.save(reply_id, context)
            self._store.on_commit(self._be_written)

    def _be_written(self) -> None:
        self._is_changed = False
        self._unwritten.clear()
        self._contexts.clear()
        self._stale.clear()

    def _set(self, message: Message) -> None:
        self._tree.set(message)
        self._unwritten[message.id] = message
        self._is_changed = True

    def _newest_context(self, leaf: str | None) -> tuple[str, Context] | None:
        """The last context on a branch, with the id of its reply: a reply that failed half-way has
        no context."""
        for message in reversed(self._tree.branch(leaf)):
            context = self._contexts.get(message.id)
            if context is not None:
                return message.id, context
            if self._store is not None and message.id not in self._unwritten:
                try:
                    return self._store.contexts.of(message.id)
                except StoreError as error:
                    log.error("the earlier text is rendered again: %s", error)
                    return None
        return None


def _turns(branch: tuple[Message, ...]) -> Iterator[list[Message]]:
    """The turns of a branch: a question, or tool results, and the reply; the last may have none
    yet."""
    turn: list[Message] = []
    for message in branch:
        turn.append(message)
        if message.role == "assistant":
            yield turn
            turn = []
    if turn:
        yield turn
