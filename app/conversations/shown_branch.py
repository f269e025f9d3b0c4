"""ShownBranch: the branch of a conversation that is on view, and switching to another one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from app.conversations.question import title_from
from app.store.conversation import Conversation, Message
from app.store.database import DeletedError, StoreError
from app.store.store import Store

log = logging.getLogger(__name__)


class Tree:
    """The messages of all branches that were on view; of other branches at most their messages'
    ids.

    Attributes:
        places: ids of the known messages after each one, oldest first; after None, of those that
            begin the conversation.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages: dict[str, Message] = {}
        self._left: dict[str, str] = {}  # for messages that were on view, the leaf of their branch
        # The branch that was requested last, by its leaf, and its alternatives: the screen requests
        # them several times a turn, and walking 10,000 messages takes milliseconds.
        self._walked: tuple[str | None, tuple[Message, ...]] = (None, ())
        self._parted: tuple[str | None, dict[str, tuple[int, int]]] | None = None
        self.places: dict[str | None, list[str]] = {}
        for message in messages:
            self.set(message)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    def __getitem__(self, message_id: str) -> Message:
        return self._messages[message_id]

    def get(self, message_id: str) -> Message | None:
        return self._messages.get(message_id)

    def set(self, message: Message) -> None:
        """Add a message, or replace it."""
        self._parted = None
        if message.id in self._messages:
            self._walked = (None, ())
        self._messages[message.id] = message
        behind = self.places.setdefault(message.parent_id, [])
        if message.id not in behind:
            behind.append(message.id)

    def learn(self, places: Mapping[str | None, Sequence[str]]) -> list[str]:
        """Add the store's messages after these places, with the unsaved ones at their end.

        Returns:
            the ids that were not known.
        """
        self._parted = None
        new = []
        for parent_id, ids in places.items():
            known = self.places.get(parent_id, [])
            new += [i for i in ids if i not in known]
            self.places[parent_id] = [*ids, *(i for i in known if i not in ids)]
        return new

    def branch(self, leaf: str | None) -> tuple[Message, ...]:
        """The messages up to a leaf, oldest first. From any thread."""
        known_leaf, known = self._walked
        behind: list[Message] = []
        above = leaf
        while above is not None and above != known_leaf:
            behind.append(self._messages[above])
            above = behind[-1].parent_id
        branch = (known if above is not None else ()) + tuple(reversed(behind))
        self._walked = (leaf, branch)
        return branch

    def parted(self, leaf: str | None) -> Mapping[str, tuple[int, int]]:
        """The messages up to a leaf that have alternatives: the index of each among them, from 1,
        and their number."""
        if self._parted is None or self._parted[0] != leaf:
            found = {}
            for message in self.branch(leaf):
                beside = self.places[message.parent_id]
                if len(beside) > 1:
                    found[message.id] = (beside.index(message.id) + 1, len(beside))
            self._parted = leaf, found
        return self._parted[1]

    def leave(self, leaf: str | None) -> None:
        """Record a branch as the last one on view, for each of its messages."""
        if leaf is not None:
            self._left |= {message.id: leaf for message in self.branch(leaf)}

    def left(self, message_id: str) -> str | None:
        """The leaf of the last viewed branch through a message; None if there is none."""
        return self._left.get(message_id)


class ShownBranch:
    """The base of `History`: a tree of messages, of which one branch is on view.

    Args:
        store: stores the conversation; None keeps it in memory only.

    Raises:
        StoreError: the conversation cannot be read.
    """

    def __init__(self, conversation: Conversation, store: Store | None = None) -> None:
        self.conversation = conversation
        self._store = store
        # Unsaved changes: of the conversation, and of messages.
        self._is_changed = False
        self._unwritten: dict[str, Message] = {}
        leaf = conversation.leaf
        kept = store.branch(leaf) if store is not None and leaf is not None else []
        if store is not None and leaf is not None and not kept:
            raise DeletedError(f"the last message of {conversation.title!r} is not in the store")
        self._tree = Tree(kept)
        self._version: int | None = None  # of the store, when its branches were read
        self._making: str | None = None  # the reply in progress here

    @property
    def messages(self) -> tuple[Message, ...]:
        """The branch on view, oldest first; the last message may still grow. From any thread."""
        return self._tree.branch(self.conversation.leaf)

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """The messages on view that have alternatives: the index of each among them, from 1, and
        their number.
        """
        if self._version is None:
            self.read_changes()
        return self._tree.parted(self.conversation.leaf)

    @property
    def is_busy(self) -> bool:
        """Whether the newest reply is unfinished, here or in another program."""
        branch = self.messages
        if not branch or branch[-1].role != "assistant":
            return False  # an imported one may end with a question
        return branch[-1].finish_reason is None

    @property
    def is_awaited(self) -> bool:
        """Whether another program is writing the newest reply."""
        return self.is_busy and self._making is None

    def turn(self, message_id: str, steps: int) -> bool:
        """Switch to the branch of an alternative, `steps` places after a message on view: to its
        last viewed leaf, or else to its newest one. The alternatives wrap around.

        Returns:
            False if the message has no alternatives.

        Raises:
            StoreError: the branch cannot be read; the previous one stays on view.
        """
        if message_id not in self.places:
            return False
        beside = self._tree.places[self._tree[message_id].parent_id]
        wanted = beside[(beside.index(message_id) + steps) % len(beside)]
        self._switch_to_leaf(self._tree.left(wanted) or self._newest_leaf(wanted))
        self._is_changed = True
        return True

    def switch_to(self, message_id: str) -> None:
        """Switch to the branch of a message: to its last viewed leaf, or else to its newest one.

        Raises:
            StoreError: the branch cannot be read; the previous one stays on view.
        """
        self._switch_to_leaf(self._tree.left(message_id) or self._newest_leaf(message_id))
        self._is_changed = True

    def read_changes(self) -> str:
        """Read other programs' changes to the conversation; cheap if there are none.

        If they continued the branch on view, their continuation is then on view.

        Returns:
            a sentence for the user if they continued it; else an empty text.
        """
        if self._store is None:
            self._version = 0
            return ""
        try:
            return self._read_changes(self._store)
        except StoreError as error:
            self._version = self._version or 0
            log.error(
                "messages of other programs in %r cannot be read: %s",
                self.conversation.title,
                error,
            )
            return ""

    def _newest_leaf(self, message_id: str) -> str:
        found = self._store.branches.newest_leaf(message_id) if self._store is not None else None
        return found or message_id

    def _switch_to_leaf(self, leaf: str) -> None:
        """Put the branch that ends in a leaf on view."""
        conversation = self.conversation
        if leaf not in self._tree and self._store is not None:
            for message in self._store.branch(leaf):
                if message.id not in self._tree:
                    self._tree.set(message)
        before = self.messages
        self._tree.leave(conversation.leaf)
        conversation.leaf = leaf
        first = self.messages[0]
        if not conversation.is_named and before[:1] != (first,):
            conversation.title = title_from(first)
        self._version = None

    def _read_changes(self, store: Store) -> str:
        version = store.branches.version()
        if self.is_awaited:
            self._read_awaited(store)
        if version == self._version:
            return ""
        is_first, self._version = self._version is None, version
        conversation = self.conversation
        self._read_conversation(store)
        places = store.branches.places(conversation.id, conversation.leaf)
        behind = places.pop(conversation.leaf, []) if conversation.leaf is not None else []
        new = self._tree.learn(places)
        if behind and conversation.leaf not in self._unwritten:
            self._switch_to_leaf(store.branches.newest_leaf(behind[-1]) or behind[-1])
            self._tree.learn(store.branches.places(conversation.id, conversation.leaf))
            self._version = version
            return "Another program continued this chat."
        if is_first or not new:
            return ""
        parted = [m for m in self.messages if set(new) & set(self._tree.places[m.parent_id])]
        if not parted:
            return ""
        place, count = self.places[parted[-1].id]
        return f"Another program continued this chat: this is {place}/{count}."

    def _read_conversation(self, store: Store) -> None:
        """Read other programs' changes to the conversation itself."""
        kept = store.conversation(self.conversation.id)
        if kept is None:
            return
        conversation = self.conversation
        conversation.system, conversation.sampling = kept.system, kept.sampling
        conversation.is_archived, conversation.pinned_at = kept.is_archived, kept.pinned_at
        if not self._is_changed:
            conversation.title, conversation.is_named = kept.title, kept.is_named

    def _read_awaited(self, store: Store) -> None:
        """Read the current text of the reply that another program is writing, if that is alive."""
        store.journal.end_orphans()
        newest = self.messages[-1]
        kept = store.message(newest.id)
        if kept is not None and kept != newest:
            self._tree.set(kept)
