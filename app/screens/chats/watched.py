"""WatchedChat: a chat over a gateway, whose replies can be read and stopped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from app.store.conversation import Conversation, Message
from engine.api.client import EngineClient
from engine.api.errors import InvalidRequestError
from engine.api.stream import Thought

if TYPE_CHECKING:
    from app.gateway.view import Transcript, Transcripts


class WatchedChat:
    """Has the interface of a `ChatSession`, and refuses to send or change anything.

    Args:
        messages: the chat's messages as the store has them. If the gateway has the chat, they are
            read from there.
        gateway: None if none runs here.
        request_id: the engine's id of the chat's newest request, as far as it is known.

    Attributes:
        unsaved: always empty, because the screen does not store this chat.
        places: always empty, because only the chat's owner sees branches.
        can_resume: always False.
    """

    unsaved = ""
    places: Mapping[str, tuple[int, int]] = MappingProxyType({})
    can_resume = False

    def __init__(
        self,
        client: EngineClient,
        conversation: Conversation,
        messages: Sequence[Message] = (),
        gateway: Transcripts | None = None,
        request_id: str = "",
    ) -> None:
        self.conversation = conversation
        self.messages = tuple(messages)
        self._client = client
        self._gateway = gateway
        self._followed = request_id
        self._seen: Transcript | None = None
        self.poll()

    @property
    def request_id(self) -> str | None:
        """The engine's id of the running reply; None if there is none."""
        return self._seen.request_id if self._seen else None

    @property
    def is_busy(self) -> bool:
        return self.request_id is not None

    @property
    def num_prompt_tokens(self) -> int:
        return self._seen.num_prompt_tokens if self._seen else 0

    @property
    def num_output_tokens(self) -> int:
        return self._seen.num_output_tokens if self._seen else 0

    @property
    def thought(self) -> Thought:
        return self._seen.thought if self._seen else Thought()

    @property
    def refusal(self) -> str:
        """Why no message can be sent in this chat."""
        return held_by(self.conversation.user)

    def follow(self, request_id: str) -> None:
        """Follow a newer request of this chat."""
        self._followed = request_id

    def poll(self) -> Transcript | None:
        """Read the chat again; returns None if nothing has changed."""
        if self._gateway is None or not self._followed:
            return None
        before, self._seen = self._seen, self._gateway.transcript(self._followed)
        after = self._seen
        if after is None:
            return None
        if before is not None and (after.version, after.request_id) == (
            before.version,
            before.request_id,
        ):
            return None
        self.conversation, self.messages = after.conversation, after.messages
        return after

    def stop(self) -> None:
        """End the reply at the next step; the gateway says so to the user who holds the chat."""
        if self.request_id is not None:
            self._client.abort(self.request_id)

    def close(self) -> None:
        """Stop watching. A running reply continues."""

    def send(self, _text: str, *, attachments: object = ()) -> NoReturn:
        """Refuse to send a message.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(self.refusal, "prompt")

    def edit(self, _message_id: str, _text: str, *, attachments: object = ()) -> NoReturn:
        """Refuse to change anything.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(self.refusal, "message")

    def resume(self) -> NoReturn:
        """Refuse to continue a reply.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(self.refusal, "message")

    def read_changes(self) -> str:
        """Do nothing: `poll` reads the actions of the chat's owner."""
        return ""

    def switch_to(self, _message_id: str) -> NoReturn:
        """Refuse to have another branch on view.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(self.refusal, "message")

    def turn(self, _message_id: str, _steps: int) -> NoReturn:
        """Refuse to have another branch on view.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(self.refusal, "message")

    def regenerate(self, _message_id: str | None = None) -> NoReturn:
        """Refuse to generate another reply.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError(self.refusal, "message")


def held_by(user: str) -> str:
    """Why a chat that is held over a gateway cannot be changed elsewhere."""
    return f"{user} holds this chat elsewhere; here it can be watched and stopped"
