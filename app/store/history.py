"""History: the messages of one conversation, what the model is told of them, and their saving."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

from app.store.attachment import Attachment, told_with
from app.store.conversation import Asked, Conversation, Message
from app.store.database import DeletedError, StoreError
from app.store.store import Store
from app.store.tree import Tree
from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.lifecycle import FinishReason
from engine.api.stream import Context, Finish

log = logging.getLogger(__name__)

TITLE_LENGTH = 60


class History:
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
        self.conversation = conversation
        self._store = store
        # What the store does not have yet: of the conversation, messages, and contexts of replies.
        self._is_changed = False
        self._unwritten: dict[str, Message] = {}
        self._contexts: dict[str, Context] = {}
        leaf = conversation.leaf
        kept = store.branch(leaf) if store is not None and leaf is not None else []
        if store is not None and leaf is not None and not kept:
            raise DeletedError(f"the last message of {conversation.title!r} is not in the store")
        self._tree = Tree(kept)
        self._version: int | None = None  # of the store, when its branches were read
        self._making: str | None = None  # the reply that is being made here

    @property
    def messages(self) -> tuple[Message, ...]:
        """The branch on view, oldest first; the last may still grow. From any thread."""
        return self._tree.branch(self.conversation.leaf)

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """The messages on view that stand beside others: which one of these it is, from 1, and how
        many they are.
        """
        if self._version is None:
            self.look()
        places = {}
        for message in self.messages:
            beside = self._tree.places[message.parent_id]
            if len(beside) > 1:
                places[message.id] = (beside.index(message.id) + 1, len(beside))
        return places

    @property
    def is_busy(self) -> bool:
        """Whether the newest reply has no end yet, whoever is making it."""
        branch = self.messages
        return bool(branch) and branch[-1].finish_reason is None

    @property
    def is_awaited(self) -> bool:
        """Whether the newest reply is being made by another program."""
        return self.is_busy and self._making is None

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
        _check(told_with(text, attachments))
        question = Message(
            conversation_id=conversation.id,
            parent_id=parent_id,
            role="user",
            content=text,
            attachments=attachments,
        )
        self._put(question)
        if not conversation.title or (parent_id is None and not conversation.is_named):
            conversation.title = _title(question)
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

    def prompt(self, question: Message) -> tuple[tuple[ChatMessage, ...], Context | None]:
        """What the model is told, and the newest context that these messages begin with."""
        told: list[Message] = []
        for turn in _turns(self._tree.branch(question.parent_id)):
            if turn[-1].content or turn[-1].finish_reason is not FinishReason.ERROR:
                told += turn
        system = self.conversation.system
        first = (ChatMessage("system", system),) if system else ()
        messages = (*first, *(message.told() for message in (*told, question)))
        lengths = {message.id: len(first) + n for n, message in enumerate(told, 1)}
        newest = self._newest_context(question.parent_id)
        if newest is None or newest[1].num_messages != lengths.get(newest[0]):
            return messages, None
        asked = self._tree[newest[0]].asked
        if asked is None or asked.system != system:
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

    def turn(self, message_id: str, steps: int) -> bool:
        """Have another branch on view: that of the message so many places on from one on view, as
        it was left, or else to its newest end. After the last one comes the first.

        Returns:
            False where the message stands alone.

        Raises:
            StoreError: the branch cannot be read; the one before is still on view.
        """
        if message_id not in self.places:
            return False
        beside = self._tree.places[self._tree[message_id].parent_id]
        wanted = beside[(beside.index(message_id) + steps) % len(beside)]
        self._show(self._tree.left(wanted) or self._newest_leaf(wanted))
        self._is_changed = True
        return True

    def look(self) -> str:
        """Take in what other programs have done to the conversation; cheap where they did nothing.

        Where they went on behind what is on view, their branch is on view then.

        Returns:
            that they went on with it, as a sentence for the user; else nothing.
        """
        if self._store is None:
            self._version = 0
            return ""
        try:
            return self._look(self._store)
        except StoreError as error:
            self._version = self._version or 0
            log.error("what others said in %r is not known: %s", self.conversation.title, error)
            return ""

    def finish(self, reply: Message, finish: Finish | None) -> None:
        """The end of a reply; None where the engine gave none."""
        if finish is not None:
            reply.error = finish.error
            reply.usage = finish.usage
            reply.timings = finish.timings
            reply.tool_use = finish.tool_use
            if finish.context is not None:
                self._contexts[reply.id] = finish.context
        self._making = None
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
            for reply_id, context in self._contexts.items():
                self._store.save_context(reply_id, context)
            self._store.on_commit(self._be_written)

    def _be_written(self) -> None:
        self._is_changed = False
        self._unwritten.clear()
        self._contexts.clear()

    def _put(self, message: Message) -> None:
        self._tree.put(message)
        self._unwritten[message.id] = message
        self._is_changed = True

    def _newest_leaf(self, message_id: str) -> str:
        found = self._store.branches.newest_leaf(message_id) if self._store is not None else None
        return found or message_id

    def _show(self, leaf: str) -> None:
        """Have the branch that ends in a leaf on view."""
        conversation = self.conversation
        if leaf not in self._tree and self._store is not None:
            for message in self._store.branch(leaf):
                if message.id not in self._tree:
                    self._tree.put(message)
        before = self.messages
        self._tree.leave(conversation.leaf)
        conversation.leaf = leaf
        first = self.messages[0]
        if not conversation.is_named and before[:1] != (first,):
            conversation.title = _title(first)
        self._version = None

    def _look(self, store: Store) -> str:
        version = store.branches.version()
        if version == self._version and not self.is_awaited:
            return ""
        is_first, self._version = self._version is None, version
        conversation = self.conversation
        self._refresh(store)
        places = store.branches.places(conversation.id, conversation.leaf)
        behind = places.pop(conversation.leaf, []) if conversation.leaf is not None else []
        new = self._tree.learn(places)
        if behind and conversation.leaf not in self._unwritten:
            self._show(store.branches.newest_leaf(behind[-1]) or behind[-1])
            self._tree.learn(store.branches.places(conversation.id, conversation.leaf))
            self._version = version
            return "Another program went on with this chat."
        if is_first or not new:
            return ""
        parted = [m for m in self.messages if set(new) & set(self._tree.places[m.parent_id])]
        if not parted:
            return ""
        place, count = self.places[parted[-1].id]
        return f"Another program went on with this chat: this is {place}/{count}."

    def _refresh(self, store: Store) -> None:
        """Read what others may have changed: its title, and the reply that they are making."""
        kept = store.conversation(self.conversation.id)
        if kept is not None and not self._is_changed:
            self.conversation.title, self.conversation.is_named = kept.title, kept.is_named
        if self.is_awaited:
            store.journal.end_orphans()
            for message in store.branch(self.messages[-1].id)[-1:]:
                self._tree.put(message)

    def _newest_context(self, leaf: str | None) -> tuple[str, Context] | None:
        """The last one on a branch, with the id of its reply: one that failed half-way has none."""
        for message in reversed(self._tree.branch(leaf)):
            context = self._contexts.get(message.id)
            if context is not None:
                return message.id, context
            if self._store is not None and message.id not in self._unwritten:
                try:
                    return self._store.context(message.id)
                except StoreError as error:
                    log.error("the text before is rendered anew: %s", error)
                    return None
        return None


def _check(text: str) -> None:
    """Raises InvalidRequestError."""
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


def _title(question: Message) -> str:
    """The beginning of what a conversation begins with in one line, cut between words."""
    text = question.content or next((file.name for file in question.attachments), "")
    words = " ".join(text.split())
    if len(words) <= TITLE_LENGTH:
        return words
    return words[:TITLE_LENGTH].rsplit(" ", 1)[0] + "…"
