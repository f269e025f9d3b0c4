"""ResponseMemory: the last responses of each user, to be continued and fetched again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from app.gateway.http.replies import compact
from engine.api.client import ChatMessage
from engine.api.stream import Context

# Limits of one user. A conversation of 32,000 tokens takes 0.3 MB: its text, and its token ids.
MOST_RESPONSES = 256
MOST_BYTES = 1 << 25
_ID_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedResponse:
    """A response, and the conversation that it ends.

    Attributes:
        payload: the response as it was sent to its client.
        instructions: the request's instructions, which precede the messages; empty without any.
        messages: the conversation, with the response as its last one.
        context: token ids of instructions and messages; None if not known.
    """

    payload: Mapping[str, object]
    instructions: str
    messages: tuple[ChatMessage, ...]
    context: Context | None


class ResponseMemory:
    """Forgets a user's oldest responses when there are too many or they are too large. A user
    cannot find those of others. It belongs to the gateway's loop.
    """

    def __init__(self) -> None:
        self._users: dict[str, dict[str, _Kept]] = {}

    def store(self, user: str, name: str, response: RememberedResponse) -> None:
        """Store a response under its id, which is a new one."""
        all_kept = self._users.setdefault(user, {})
        all_kept[name] = _Kept(response, _num_bytes(response))
        while len(all_kept) > MOST_RESPONSES or _total(all_kept) > MOST_BYTES:
            del all_kept[next(iter(all_kept))]

    def get(self, user: str, name: str) -> RememberedResponse | None:
        """A response of this user; None if it is not stored."""
        kept = self._users.get(user, {}).get(name)
        return None if kept is None else kept.response

    def forget(self, user: str, name: str) -> None:
        """Forget a response; one that is not stored is ignored."""
        self._users.get(user, {}).pop(name, None)


class _Kept(NamedTuple):
    response: RememberedResponse
    num_bytes: int


def _total(all_kept: Mapping[str, _Kept]) -> int:
    return sum(kept.num_bytes for kept in all_kept.values())


def _num_bytes(response: RememberedResponse) -> int:
    """The approximate memory of a response, as if it shared nothing with others."""
    ids = 0 if response.context is None else len(response.context.token_ids)
    texts = sum(
        len(text)
        for one in response.messages
        for text in (one.content, one.thinking, *(call.arguments for call in one.tool_calls))
    )
    return texts + len(compact(response.payload)) + _ID_BYTES * ids
