"""ScriptedGateway: the screen's side of an MQTT gateway, saying what a test has it say."""

from __future__ import annotations

from dataclasses import replace

from app.gateway.mqtt.transport.link import LinkPhase
from app.gateway.mqtt.view import MqttView
from app.gateway.view import Transcript
from app.store.conversation import Conversation, Message
from engine.api.client import ChatMessage, EngineClient, Submission
from engine.api.origin import Origin
from engine.api.stream import RequestStream
from engine.api.telemetry import Distribution

VIEW = MqttView(
    time=100.0,
    address="mqtt://broker.example:1883",
    pool="default",
    node="gpu-1",
    phase=LinkPhase.ONLINE,
    detail="",
    since=37.0,
    protocol="5",
    running=0,
    waiting=0,
    undelivered=0,
    received=0,
    published=0,
    accepted=0,
    finished=0,
    rejected=(),
    first_token=Distribution.of(()),
    bad=(),
    users=(),
)


class _Held:
    """A chat held by somebody over MQTT, and its requests by the engine's id."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.messages: list[Message] = []
        self.requests: list[str] = []
        self.stream: RequestStream | None = None
        self.version = 0


class ScriptedGateway:
    """Puts chats through an engine as the real one does; a broker it has none.

    Attributes:
        shown: what `view` gives.
        reconnects: how often that was asked for.
    """

    def __init__(self, client: EngineClient) -> None:
        self.shown = VIEW
        self.reconnects = 0
        self._client = client
        self._held: dict[str, _Held] = {}

    # What the screen may call.

    def view(self) -> MqttView:
        return self.shown

    def transcript(self, request_id: str) -> Transcript | None:
        held = next((h for h in self._held.values() if request_id in h.requests), None)
        if held is None:
            return None
        self._take(held)
        running = held.requests[-1] if held.stream is not None else None
        stream = held.stream
        return Transcript(
            held.conversation,
            tuple(held.messages),
            running,
            held.version,
            num_prompt_tokens=stream.num_prompt_tokens if stream else 0,
            num_output_tokens=stream.num_output_tokens if stream else 0,
        )

    def holds(self, conversation_id: str) -> bool:
        return conversation_id in self._held

    def reconnect(self) -> None:
        self.reconnects += 1

    # What a test tells it.

    def show(self, **changes: object) -> None:
        """Change what `view` gives."""
        self.shown = replace(self.shown, **changes)  # type: ignore[arg-type]  # real fields

    def ask(self, user: str, session: str, text: str, *, priority: int = 0) -> str:
        """Have `user` say something in a session; returns the engine's id of the request.

        Args:
            session: an empty one is a single shot.
        """
        key = f"{user}/{session}" if session else f"{user}/once-{len(self._held)}"
        held = self._held.get(key)
        if held is None:
            conversation = Conversation(id=key, title=text, user=user, source="mqtt")
            held = self._held[key] = _Held(conversation)
        self._take(held)
        request_id = f"default/{key}/{len(held.requests)}"
        held.messages += (
            Message(conversation_id=key, parent_id=None, role="user", content=text),
            Message(
                conversation_id=key,
                parent_id=None,
                role="assistant",
                content="",
                model="scripted",
                request_id=request_id,
            ),
        )
        title = held.conversation.title
        origin = Origin(user=user, conversation=key, source="mqtt", title=title)
        said = (ChatMessage("user", text),)
        held.stream = self._client.submit(
            Submission(messages=said, request_id=request_id, origin=origin, priority=priority)
        )
        held.requests.append(request_id)
        held.version += 1
        return request_id

    def forget(self) -> None:
        """All that ended has been too long ago."""
        for held in self._held.values():
            self._take(held)
        self._held = {key: h for key, h in self._held.items() if h.stream is not None}

    def _take(self, held: _Held) -> None:
        """Take in what the engine has given."""
        delta = held.stream.drain() if held.stream is not None else None
        if delta is None:
            return
        reply = held.messages[-1]
        reply.content += delta.text
        held.version += 1
        if delta.finish is not None:
            held.stream = None
            reply.finish_reason = delta.finish.reason
            reply.usage, reply.timings = delta.finish.usage, delta.finish.timings
            reply.error = delta.finish.error
