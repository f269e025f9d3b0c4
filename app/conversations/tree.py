"""Tree: the loaded messages of one conversation, and their branching."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app.store.conversation import Message


class Tree:
    """Has the messages of the branches that were on view, and of others at most their ids.

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
            self.put(message)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    def __getitem__(self, message_id: str) -> Message:
        return self._messages[message_id]

    def get(self, message_id: str) -> Message | None:
        return self._messages.get(message_id)

    def put(self, message: Message) -> None:
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
