"""Numbering: gives a session one number on its tab, in the session table and on the KV map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from engine.api.snapshot import RequestView
from widgets.chat_number import ChatNumber

FIRST_BEYOND_TABS = 10


class Numbering:
    """Numbers sessions.

    The number of a tab is its place, and its key is Alt with that number. Sessions that are served
    without a tab, such as chats over MQTT, are numbered from 10 on, beyond the keys. They keep
    their numbers as long as they are shown.

    Attributes:
        numbers: the number of each request's session, by the request's ordinal, for the requests of
            the last look.
    """

    def __init__(self) -> None:
        self.numbers: Mapping[int, ChatNumber] = {}
        self._untabbed: dict[str, int] = {}  # by session

    def look(self, requests: Sequence[RequestView], tabs: Iterable[str]) -> None:
        """Number the sessions of these requests.

        Args:
            tabs: the ids of the conversations that are open, in the order of their tabs.
        """
        numbers = {key: place for place, key in enumerate(tabs, 1)}
        first = max(len(numbers) + 1, FIRST_BEYOND_TABS)
        others = dict.fromkeys(key for view in requests if (key := session_of(view)) not in numbers)
        kept = {key: n for key in others if (n := self._untabbed.get(key, 0)) >= first}
        taken = set(kept.values())
        free = (n for n in count(first) if n not in taken)
        self._untabbed = {key: kept[key] if key in kept else next(free) for key in others}
        numbers |= self._untabbed
        self.numbers = {view.ordinal: ChatNumber(numbers[session_of(view)]) for view in requests}


def session_of(view: RequestView) -> str:
    """The session of a request: its conversation, or the request itself if it has none."""
    return view.origin.conversation or view.request_id
