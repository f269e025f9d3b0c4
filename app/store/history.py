"""History: the messages of one conversation, what the model is told of them, and their saving."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from app.store.attachment import Attachment
from app.store.branch_on_view import BranchOnView
from app.store.conversation import Asked, Conversation, Message
from app.store.database import StoreError
from app.store.question import check_question, title_from
from app.store.resumed import Resumed
from app.store.store import Store
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.lifecycle import FinishReason
from engine.api.stream import Context, Delta, Finish

log = logging.getLogger(__name__)


class History(BranchOnView):
    """A conversation's messages, which form a tree. One thread changes it.

    A regenerated reply and an edited message stand beside the old one. The branch that ends in the
    conversation's leaf is the one on view. Another one is read from the store when it is gone to.

    A turn that failed before any text is shown but not told to the model. The token ids of earlier
    turns go along with a new one, so that it extends them exactly whatever the template does.

    Args:
        store: keeps the conversation; None keeps it in memory only.

    Raises:
        StoreError: the conversation cannot be read.
    """

    def __init__(self, conversation: Conversation, store: Store | None = None) -> None:
        super().__init__(conversation, store)
        # What the store does not have yet of the contexts of replies.
        self._contexts: dict[str, Context] = {}
        self._stale: set[str] = set()  # replies whose contexts in the store lack what came since
        self._resumed: Resumed | None = None  # the reply that is being made, if it had begun before

    def add(
        self,
        text: str,
        *,
        instead_of: str | None = None,
        attachments: tuple[Attachment, ...] = (),
    ) -> Message:
        """A question at the end of the branch on view.

        Args:
            instead_of: id of an earlier question, beside which it then stands.

        Raises:
            InvalidRequestError: the text is empty or no Unicode, or the id is no question's.
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
        self._put(question)
        if not conversation.title or (parent_id is None and not conversation.is_named):
            conversation.title = title_from(question)
        return question

    def add_outcomes(self, outcomes: Sequence[ChatMessage]) -> Message:
        """What tools gave, at the end of the branch on view; returns the last one of these."""
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
            self._put(message)
            parent_id = message.id
        return message

    def asked(self, request_id: str) -> Message | None:
        """The question of the newest turn, if its reply is an earlier attempt at this request."""
        branch = self.messages
        return branch[-2] if branch and branch[-1].request_id == request_id else None

    def prompt(
        self, question: Message, asked: Asked | None = None
    ) -> tuple[tuple[ChatMessage, ...], Context | None]:
        """What the model is told, and the newest context that these messages begin with.

        Args:
            asked: with what, if not with what the conversation has now.
        """
        told: list[Message] = []
        for turn in _turns(self._tree.branch(question.parent_id)):
            if turn[-1].content or turn[-1].finish_reason is not FinishReason.ERROR:
                told += turn
        system = self.conversation.system if asked is None else asked.system
        first = (ChatMessage("system", system),) if system else ()
        messages = (*first, *(message.told() for message in (*told, question)))
        lengths = {message.id: len(first) + n for n, message in enumerate(told, 1)}
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
        """A reply to be written, as the end of the branch on view.

        Args:
            sampling: what it is asked for with.
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
        self._put(reply)
        self._tree.leave(conversation.leaf)
        conversation.leaf = self._making = reply.id
        conversation.updated = time.time()
        return reply

    def begun(self) -> Message:
        """The newest reply, which can be gone on with.

        Raises:
            InvalidRequestError: it cannot, or there is none.
        """
        reply = next(reversed(self.messages), None)
        if reply is None or reply.role != "assistant":
            raise InvalidRequestError("there is no reply yet to go on with", "message")
        if not (reply.content or reply.thinking):
            raise InvalidRequestError("nothing has come of this reply; ask for another", "message")
        if reply.finish_reason is FinishReason.STOP:
            raise InvalidRequestError(
                "this reply is complete; say what more it is to tell", "message"
            )
        return reply

    def resume(
        self, reply: Message, request_id: str
    ) -> tuple[tuple[ChatMessage, ...], Context | None, int]:
        """Go on with the newest reply.

        Returns:
            what `Submission` takes as messages, context and begun.
        """
        assert reply.parent_id is not None
        told, context = self.prompt(self._tree[reply.parent_id], reply.asked)
        messages, begun = (*told, reply.told()), 0
        newest = self._newest_context(reply.id)
        own = newest[1] if newest is not None and newest[0] == reply.id else None
        if own is not None and own.num_messages == len(messages) and reply.usage is not None:
            context, begun = own, reply.usage.completion_tokens
        self._resumed = Resumed(reply, own)
        self._contexts.pop(reply.id, None)
        self._stale.add(reply.id)
        self._making = reply.id
        reply.request_id, reply.error, reply.finish_reason = request_id, None, None
        self._unwritten[reply.id] = reply
        return messages, context, begun

    def take(self, reply: Message, delta: Delta) -> None:
        """What has come of the reply that is being made."""
        if self._resumed is not None:
            self._resumed.take(reply, delta)
        reply.thinking += delta.thinking
        reply.content += delta.text

    def finish(self, reply: Message, finish: Finish | None) -> None:
        """The end of a reply; None where the engine gave none."""
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
                # It was not served: the reply is what it was.
                self._contexts[reply.id] = resumed.context
        self._making = self._resumed = None
        # Last: with it another thread takes the reply for complete.
        reply.finish_reason = finish.reason if finish else FinishReason.ABORT
        self._unwritten[reply.id] = reply

    def save(self, *changed: Message) -> None:
        """Write what is new and these messages, with what could not be written before.

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

    def _put(self, message: Message) -> None:
        self._tree.put(message)
        self._unwritten[message.id] = message
        self._is_changed = True

    def _newest_context(self, leaf: str | None) -> tuple[str, Context] | None:
        """The last one on a branch, with the id of its reply: one that failed half-way has none."""
        for message in reversed(self._tree.branch(leaf)):
            context = self._contexts.get(message.id)
            if context is not None:
                return message.id, context
            if self._store is not None and message.id not in self._unwritten:
                try:
                    return self._store.contexts.of(message.id)
                except StoreError as error:
                    log.error("the text before is rendered anew: %s", error)
                    return None
        return None


def _turns(branch: tuple[Message, ...]) -> Iterator[list[Message]]:
    """What was asked, or what tools gave, and the reply to that; the last may have none yet."""
    turn: list[Message] = []
    for message in branch:
        turn.append(message)
        if message.role == "assistant":
            yield turn
            turn = []
    if turn:
        yield turn
