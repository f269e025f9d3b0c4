"""Numbering: gives each chat one number everywhere on the screen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from app.screens.chats.open_session import title_of
from app.store.conversation import Conversation
from engine.api.snapshot import RequestView
from widgets.chat_number import ChatName, ChatNumber
from widgets.panels.log_line import Subject
from widgets.panels.session_columns import title_of as title_of_request

KEPT = 702  # A to ZZ
KEPT_REQUESTS = 4096


class Numbering:
    """Numbers chats.

    A chat of the screen has the number that the store keeps for it. Chats of others, such as those
    over MQTT, and requests without a chat are numbered as they come. They keep their numbers while
    they are shown, and afterwards until `KEPT` others have come.

    Args:
        chat_of: gives the chat of a request that was made just now, by the request's id; None if it
            is not known.

    Attributes:
        names: the name of each request's chat, by the request's ordinal, for the requests of the
            last look.
        chats: the names of the chats that were open then, by their ids.
    """

    def __init__(self, chat_of: Callable[[str], Conversation | None]) -> None:
        self._chat_of = chat_of
        self.chats: Mapping[str, ChatName] = {}
        self.names: Mapping[int, ChatName] = {}
        self._own: dict[int, str] = {}  # the key of the chat, by its number
        self._theirs: dict[str, int] = {}  # by the key, the last seen ones at the end
        self._asked: dict[str, Subject] = {}  # by request

    def update(self, requests: Sequence[RequestView], chats: Iterable[Conversation]) -> None:
        """Name the chats of these requests.

        Args:
            chats: those that are open.
        """
        known = {chat.id: ChatName(self.number_of(chat), title_of(chat)) for chat in chats}
        closed = {key: number for number, key in self._own.items()}
        self.chats, names = known, {}
        for view in requests:
            key = session_of(view)
            name = known.get(key)
            if name is None:
                own = closed.get(key)
                number = self._theirs_of(key) if own is None else ChatNumber(own)
                name = ChatName(number, title_of_request(view))
            names[view.ordinal] = name
            self._asked[view.request_id] = Subject(str(name), view.origin.conversation)
        self.names = names
        shown = known.keys() | set(map(session_of, requests))
        _drop_oldest(self._theirs, len(self._theirs) - KEPT, shown)
        _drop_oldest(self._asked, len(self._asked) - KEPT_REQUESTS)

    def number_of(self, chat: Conversation) -> ChatNumber:
        """The number of an open chat."""
        if chat.number is None:
            return self._theirs_of(chat.id)
        self._own[chat.number] = chat.id
        return ChatNumber(chat.number)

    def letter_of(self, key: str) -> ChatNumber | None:
        """The number of a chat that others hold, by its id; None if it has had no request
        lately."""
        return ChatNumber(self._theirs[key], theirs=True) if key in self._theirs else None

    def subject(self, request_id: str, chat: str = "") -> Subject:
        """The chat of a request, as the log names it. A request that was never shown, or not
        lately, is named by its id, unless its chat is known: a new request is in the step records
        before it is in a snapshot.

        Args:
            chat: the id of its chat, if that is known.
        """
        if chat in self.chats:
            return Subject(str(self.chats[chat]), chat)
        if request_id not in self._asked and (new := self._chat_of(request_id)):
            name = ChatName(self.number_of(new), title_of(new))
            self._asked[request_id] = Subject(str(name), new.id)
        return self._asked.get(request_id) or Subject(f"request {request_id}")

    def _theirs_of(self, key: str) -> ChatNumber:
        taken = self._theirs.pop(key, None)
        if taken is None:
            others = set(self._theirs.values())
            taken = next(n for n in count(1) if n not in others)
        self._theirs[key] = taken
        return ChatNumber(taken, theirs=True)


def session_of(view: RequestView) -> str:
    """The chat of a request: its conversation, or the request itself if it has none."""
    return view.origin.conversation or view.request_id


def _drop_oldest(kept: dict[str, Any], number: int, spared: Collection[str] = ()) -> None:
    if number > 0:
        for key in [key for key in kept if key not in spared][:number]:
            del kept[key]
