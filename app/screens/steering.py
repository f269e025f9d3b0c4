"""Steering: what the user does to the engine: knobs, the policy, pins, requests."""

from __future__ import annotations

from textual import on
from textual.screen import Screen

from app.screens.dialogs import PickPolicy
from app.screens.engine_watch import EngineWatch
from app.screens.panels import Panels
from app.screens.policies import policy_meanings
from app.screens.sessions import SessionList
from engine.client import ChatMessage, EngineClient
from engine.errors import EngineError
from engine.knobs import KnobValue
from widgets.glyphs import Glyphs
from widgets.knob_panel import KnobPanel

WHO = "local"
PIN = "system"


class Steering(Screen[None]):
    """The half of the deck that acts on the engine; `Deck` lays out and has the chats."""

    def __init__(self, client: EngineClient, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__()
        self._client = client
        self.sessions = sessions
        self.engine = EngineWatch(client)
        self.panels = Panels(glyphs)

    def action_stop_request(self) -> None:
        if view := self.panels.table.current:
            self._client.abort(view.request_id)

    @on(KnobPanel.Turned)
    def turn_knob(self, event: KnobPanel.Turned) -> None:
        try:
            self._client.set_knobs({event.name: event.value}, who=WHO)
        except EngineError as error:
            self.panels.knobs.refuse(error.message)

    def action_policy(self) -> None:
        """Choose the policy among those that the engine knows."""
        knob = self.engine.knob("policy")
        if knob is None:
            self.notify("There is no model yet to schedule for.", severity="warning")
            return
        names = [str(name) for name in knob.allowed.choices]
        meanings = policy_meanings()
        choices = [(name, meanings.get(name, "")) for name in names]

        def take(name: str | None) -> None:
            if name is not None:
                self.set_knob("policy", name)

        self.app.push_screen(PickPolicy(choices, str(knob.requested)), take)

    def set_knob(self, name: str, value: KnobValue) -> None:
        try:
            self._client.set_knobs({name: value}, who=WHO)
        except EngineError as error:
            self.notify(error.message, severity="error")

    def action_pin(self) -> None:
        """Keep the system prompt of the conversation on view in the KV cache."""
        system = self.sessions.current.chat.conversation.system
        if not system:
            self.notify("This conversation has no system prompt.", severity="warning")
            return
        self._client.pin(PIN, (ChatMessage("system", system),))
        self.notify("Pinned the system prompt; the KV panel says how much of it is computed.")

    def action_unpin(self) -> None:
        self._client.unpin(PIN)
        self.notify("The system prompt may be evicted again.")

    def action_undo(self) -> None:
        """Take back the last change of knobs, whichever panel is on view."""
        self.panels.knobs.forget()
        try:
            self._client.undo_knobs(who=WHO)
        except EngineError as error:
            self.notify(error.message, severity="error")

    def switch_knob(self, name: str) -> None:
        """Turn a switch the other way."""
        if knob := self.engine.knob(name):
            self.set_knob(name, not knob.requested)
