"""Tree: the messages of one conversation that were read or added, and where its branches part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from app.store.conversation import Message


class Tree:
    """Has the messages of the branches that were on view, and of all others at most their ids.

    Attributes:
        places: ids of the messages behind each one, oldest first, as far as they are known; behind
            None, of those that begin the conversation.
    """

    def __init__(self, messages: Iterable[Message]) -> None:
        self._messages: dict[str, Message] = {}
        self._left: dict[str, str] = {}  # of messages that were on view, the end of their branch
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
        self._messages[message.id] = message
        behind = self.places.setdefault(message.parent_id, [])
        if message.id not in behind:
            behind.append(message.id)

    def learn(self, places: Mapping[str | None, Sequence[str]]) -> list[str]:
        """Take in what the store has in these places, and what it will have at their end.

        Returns:
            the ids that were not known.
        """
        new = []
        for parent_id, ids in places.items():
            known = self.places.get(parent_id, [])
            new += [i for i in ids if i not in known]
            self.places[parent_id] = [*ids, *(i for i in known if i not in ids)]
        return new

    def branch(self, leaf: str | None) -> tuple[Message, ...]:
        """The messages up to a leaf, oldest first."""
        branch: list[Message] = []
        while leaf is not None:
            branch.append(self._messages[leaf])
            leaf = branch[-1].parent_id
        return tuple(reversed(branch))

    def leave(self, leaf: str | None) -> None:
        """Remember a branch as the last one on view, for each of its messages."""
        if leaf is not None:
            self._left |= {message.id: leaf for message in self.branch(leaf)}

    def left(self, message_id: str) -> str | None:
        """Where the branch of a message ended that was last on view; None if none was."""
        return self._left.get(message_id)
