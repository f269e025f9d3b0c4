"""WatchedChat: a chat that somebody holds over MQTT, to be read and stopped here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from app.store.conversation import Conversation, Message
from engine.api.client import EngineClient
from engine.api.errors import InvalidRequestError

if TYPE_CHECKING:
    # It brings aiomqtt, which takes 80 ms to import and is not needed without a broker.
    from app.gateway.mqtt.view import Gateway, Transcript


class WatchedChat:
    """Reads like a `ChatSession`; what would say something in it is refused.

    Args:
        messages: as the store has them; a chat that the gateway has is read from there.
        gateway: None where none runs here.
        request_id: the engine's, of the newest request known of it.

    Attributes:
        unsaved: always empty, for who holds the chat keeps it.
    """

    unsaved = ""

    def __init__(
        self,
        client: EngineClient,
        conversation: Conversation,
        messages: Sequence[Message] = (),
        gateway: Gateway | None = None,
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
    def is_live(self) -> bool:
        """Whether the gateway has it, so that whoever holds it may go on with it."""
        return self._seen is not None

    @property
    def request_id(self) -> str | None:
        """The engine's, of the reply being made."""
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
    def refusal(self) -> str:
        """Why nothing can be said in it."""
        who = self.conversation.user
        return f"{who} holds this chat over MQTT; here it can be watched and stopped"

    def follow(self, request_id: str) -> None:
        """There is a newer request of this chat."""
        self._followed = request_id

    def poll(self) -> Transcript | None:
        """Read what is new of it, if anything is."""
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
        """End the reply at the next step; whoever holds the chat is told."""
        if self.request_id is not None:
            self._client.abort(self.request_id)

    def close(self) -> None:
        """Look away; a reply in the making goes on."""

    def send(self, _text: str) -> NoReturn:
        """Raises InvalidRequestError."""
        raise InvalidRequestError(self.refusal, "prompt")

    def edit(self, _message_id: str, _text: str) -> NoReturn:
        """Raises InvalidRequestError."""
        raise InvalidRequestError(self.refusal, "message")

    def regenerate(self) -> NoReturn:
        """Raises InvalidRequestError."""
        raise InvalidRequestError(self.refusal, "message")
