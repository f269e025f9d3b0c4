"""Numbering: one number for one session, on its tab, in the session table and on the KV map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from engine.snapshot import BlockMap, RequestView, Sharing

FIRST_BEYOND_TABS = 10


class Numbering:
    """Replaces the ordinals of requests, which the engine counts up, by the numbers of sessions.

    A tab's number is its place, which its key goes by. What is served and has no tab, such as chats
    over MQTT, is numbered from 10 on, beyond the keys, and keeps its number as long as it is shown.
    """

    def __init__(self) -> None:
        self._untabbed: dict[str, int] = {}  # by session
        self._numbers: dict[int, int] = {}  # by ordinal

    def look(self, requests: Sequence[RequestView], tabs: Iterable[str]) -> None:
        """Number the sessions of these requests.

        Args:
            tabs: the conversations that are open, in order.
        """
        numbers = {key: place for place, key in enumerate(tabs, 1)}
        first = max(len(numbers) + 1, FIRST_BEYOND_TABS)
        others = dict.fromkeys(key for view in requests if (key := session_of(view)) not in numbers)
        kept = {key: n for key in others if (n := self._untabbed.get(key, 0)) >= first}
        taken = set(kept.values())
        free = (n for n in count(first) if n not in taken)
        self._untabbed = {key: kept[key] if key in kept else next(free) for key in others}
        numbers |= self._untabbed
        self._numbers = {view.ordinal: numbers[session_of(view)] for view in requests}

    def of_request(self, view: RequestView) -> RequestView:
        return replace(view, ordinal=self._numbers[view.ordinal])

    def of_blocks(self, blocks: BlockMap) -> BlockMap:
        """Owners that are not among the requests are unknown, -1."""
        return replace(blocks, owners=tuple(self._numbers.get(o, -1) for o in blocks.owners))

    def of_sharing(self, sharing: Iterable[Sharing]) -> list[Sharing]:
        return [
            Sharing(tuple(sorted({self._numbers.get(o, -1) for o in s.ordinals})), s.blocks)
            for s in sharing
        ]


def session_of(view: RequestView) -> str:
    """What a request belongs to: its conversation; without one it stands for itself."""
    return view.origin.conversation or view.request_id
