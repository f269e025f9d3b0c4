"""Steering: acts on engine and gateway for the user: knobs, policy, pins, requests, the broker."""

from __future__ import annotations

from textual import on
from textual.screen import Screen

from app.gateway.sources import THEIRS
from app.screens.chats.sessions import SessionList
from app.screens.dialogs.confirm import Confirm
from app.screens.dialogs.pick_named import Named
from app.screens.dialogs.pick_policy import PickPolicy
from app.screens.feeds.comparison import TURN_SECONDS
from app.screens.feeds.engine_watch import EngineWatch
from app.screens.feeds.http_watch import HttpWatch
from app.screens.feeds.mqtt_watch import MqttWatch
from app.screens.panels import Panels
from app.screens.policies import policy_meanings
from engine.api.client import ChatMessage
from engine.api.errors import EngineError
from engine.api.knob_spec import KnobValue
from widgets.figures import change_text
from widgets.glyphs import UNICODE, Glyphs
from widgets.panels.broker_state import BrokerState
from widgets.panels.chat_row import YOU
from widgets.panels.knob_panel import KnobPanel
from widgets.panels.mqtt_panel import MqttPanel

PIN = "system"


class Steering(Screen[None]):
    """The part of the deck that acts on engine and gateway. `Deck` lays out and has the chats.

    Args:
        sessions: over the engine, and over the gateways if there are any.
    """

    def __init__(self, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__()
        self._client = sessions.client
        self.sessions = sessions
        self.engine = EngineWatch(sessions.client)
        self.mqtt = MqttWatch(sessions.gateway)
        self.http = HttpWatch(sessions.http)
        self.panels = Panels(glyphs, sessions.numbering)
        self._passing: set[str] = set()  # messages that mean nothing once the user has gone on
        self._priorities: dict[str, int] = {}  # those asked for that no snapshot has yet

    def refuse(self, why: str, timeout: float | None = None) -> None:
        """Tell why something is not done, for a moment or until the user sends something."""
        self.notify(why, severity="warning", timeout=timeout)
        self._passing.add(UNICODE.fit(why))

    def advise(self, how: str) -> None:
        """Tell how one goes on, for a moment or until one has."""
        self.notify(how)
        self._passing.add(UNICODE.fit(how))

    def forget_passing(self) -> None:
        """Take away what was refused or advised. Textual 8.2 can take all messages away in public,
        and not some."""
        for message in list(self.app._notifications):
            if message.message in self._passing:
                self.app._unnotify(message)
        self._passing.clear()

    def action_stop_request(self) -> None:
        """Stop the request under the cursor, as Esc stops the reply of the chat on view."""
        row = self.panels.table.current
        view = row.view if row else None
        if row is None or view is None or view.finish_reason is not None:
            return
        if view.origin.source in THEIRS:
            self.stop_theirs(view.request_id, row.name.title, view.origin.user)
        else:
            self._client.abort(view.request_id)

    def stop_theirs(self, request_id: str, title: str, user: str) -> None:
        """Stop somebody else's reply, if that is meant: the key is the one that stops one's own."""

        def stop(sure: bool | None) -> None:
            # By its id: the user may have asked again meanwhile.
            if sure:
                self._client.abort(request_id)

        question = UNICODE.fit(f"Stop the reply in “{title}”? {user} is told.")
        self.app.push_screen(Confirm(question, "stop it"), stop)

    def action_prioritize(self, levels: int) -> None:
        """Raise the priority of the request under the cursor by so many levels."""
        row = self.panels.table.current
        if row is None:
            return
        view = row.view
        if view is None:
            self.notify("This chat has no request; only what runs or waits has a priority.")
            return
        if view.finish_reason is not None:
            self.notify("This request has ended; only what runs or waits has a priority.")
            return
        views = self.engine.views
        self._priorities = {
            request_id: priority
            for request_id, priority in self._priorities.items()
            if request_id in views and views[request_id].priority != priority
        }
        # Keys come faster than snapshots.
        priority = self._priorities.get(view.request_id, view.priority) + levels
        try:
            self._client.set_priority(view.request_id, priority)
        except EngineError as error:
            self.refuse(error.message)
        else:
            self._priorities[view.request_id] = priority

    @on(MqttPanel.ReconnectWanted)
    def action_reconnect(self) -> None:
        """Connect to the broker now, if there is no connection."""
        gateway, readings = self.mqtt.gateway, self.mqtt.readings
        if gateway is None or readings is None:
            return
        if readings.state is BrokerState.ONLINE:
            self.notify(f"{readings.address} is connected.")
        elif readings.state is BrokerState.STOPPED:
            text = "The gateway has stopped; it comes back with a new start of the program."
            self.notify(text, severity="error")
        else:
            gateway.reconnect()
            self.notify(f"Connecting to {readings.address}…")

    @on(KnobPanel.Turned)
    def turn_knob(self, event: KnobPanel.Turned) -> None:
        try:
            self._client.set_knobs({event.name: event.value}, who=YOU)
        except EngineError as error:
            self.panels.knobs.refuse(error.message)

    def action_policy(self) -> None:
        """Choose the policy among those that the engine knows."""
        knob = self.engine.knob("policy")
        if knob is None:
            self.refuse("There is no model yet to schedule for.")
            return
        meanings, now = policy_meanings(), str(knob.requested)
        items = [
            Named(name, f"{name} · now" if name == now else name, meanings.get(name, ""))
            for name in map(str, knob.allowed.choices)
        ]

        def take(chosen: tuple[str, str] | None) -> None:
            if chosen is not None:
                self.set_knob("policy", chosen[1])

        self.app.push_screen(PickPolicy(items, now), take)

    def set_knob(self, name: str, value: KnobValue) -> None:
        try:
            self._client.set_knobs({name: value}, who=YOU)
        except EngineError as error:
            self.notify(error.message, severity="error")

    def action_pin(self) -> None:
        """Keep the system prompt of the conversation on view in the KV cache."""
        system = self.sessions.current.chat.conversation.system
        if not system:
            self.refuse("This chat has no system prompt.")
            return
        self._client.pin(PIN, (ChatMessage("system", system),))
        self.notify("Pinned the system prompt; the KV panel says how much of it is computed.")

    def action_unpin(self) -> None:
        self._client.unpin(PIN)
        self.notify("The system prompt may be evicted again.")

    def action_undo(self) -> None:
        """Take the last change of knobs back, whichever panel is on view. Several presses of a key
        are one change, as they are where its effect is shown."""
        self.panels.knobs.forget()
        try:
            change = self._client.undo_knobs(who=YOU, within=TURN_SECONDS)
        except EngineError as error:
            self.notify(error.message, severity="error")
            return
        if change is None:
            self.notify("No change of knobs is left to undo.")
        else:
            self.notify(f"Undone: {change_text(change)}.")

    def switch_knob(self, name: str) -> None:
        """Turn a switch the other way."""
        if knob := self.engine.knob(name):
            self.set_knob(name, not knob.requested)
