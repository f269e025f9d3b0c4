"""EngineControl: acts on engine and gateway for the user: knobs, policy, pins, requests, broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from app.gateway.sources import THEIRS
from app.screens.chats.sessions import SessionList
from app.screens.deck.dialogue import Dialogue
from app.screens.dialogs.dialog import Named, PickPolicy
from app.screens.feeds.engine_watch import EngineWatch
from app.screens.feeds.gateway_watch import MqttWatch
from app.screens.panels import Panels
from engine.api.client import ChatMessage
from engine.api.errors import EngineError
from engine.api.knob_spec import KnobValue
from engine.core.comparison import TURN_SECONDS
from widgets.figures import change_text
from widgets.glyphs import UNICODE
from widgets.panels.chat_row import YOU
from widgets.panels.gateway_readings import BrokerState
from widgets.panels.knob_panel import KnobPanel

PIN = "system"


@dataclass(eq=False)
class EngineControl:
    """Changes knobs, pins, priorities and the broker's connection, and stops requests."""

    _user: Dialogue
    _sessions: SessionList
    _engine: EngineWatch
    _mqtt: MqttWatch
    _panels: Panels
    # Priorities that were set and that no snapshot has yet, by request id.
    _priorities: dict[str, int] = field(default_factory=dict, init=False)

    # Requests.

    def stop_request(self) -> None:
        """Stop the request under the table's cursor; ask first if it belongs to another user."""
        row = self._panels.table.current
        view = row.view if row else None
        if row is None or view is None or view.finish_reason is not None:
            return
        if view.origin.source in THEIRS:
            self.stop_theirs(view.request_id, row.name.title, view.origin.user)
        else:
            self._sessions.client.abort(view.request_id)

    def stop_theirs(self, request_id: str, title: str, user: str) -> None:
        """Ask, then stop another user's reply. The same key stops a reply of the user's own at
        once."""
        question = UNICODE.fit(f"Stop the reply in “{title}”? {user} is told.")
        # By the request's id: its user may have sent another one meanwhile.
        self._user.confirm(question, "stop it", partial(self._sessions.client.abort, request_id))

    def prioritize(self, levels: int) -> None:
        """Raise the priority of the request under the table's cursor by this many levels."""
        row = self._panels.table.current
        if row is None:
            return
        view = row.view
        if view is None:
            self._user.notify(
                "This chat has no request; only running and waiting requests have one."
            )
            return
        if view.finish_reason is not None:
            self._user.notify("This request has ended; only running and waiting requests have one.")
            return
        views = self._engine.views
        self._priorities = {
            request_id: priority
            for request_id, priority in self._priorities.items()
            if request_id in views and views[request_id].priority != priority
        }
        # A key can be pressed again before a snapshot has the new priority.
        priority = self._priorities.get(view.request_id, view.priority) + levels
        try:
            self._sessions.client.set_priority(view.request_id, priority)
        except EngineError as error:
            self._user.refuse(error.message)
        else:
            self._priorities[view.request_id] = priority

    # Knobs.

    def turn_knob(self, event: KnobPanel.Turned) -> None:
        """Set a knob from its panel, which shows a refusal itself."""
        try:
            self._sessions.client.set_knobs({event.name: event.value}, who=YOU)
        except EngineError as error:
            self._panels.knobs.refuse(error.message)

    def set_knob(self, name: str, value: KnobValue) -> None:
        try:
            self._sessions.client.set_knobs({name: value}, who=YOU)
        except EngineError as error:
            self._user.fail(error.message)

    def switch_knob(self, name: str) -> None:
        """Turn a switch on if it is off, and off if it is on."""
        if knob := self._engine.knob(name):
            self.set_knob(name, not knob.requested)

    def pick_policy(self) -> None:
        """Choose the policy among those that the engine knows."""
        knob = self._engine.knob("policy")
        if knob is None:
            self._user.refuse("No model is loaded yet, so there is no policy to choose.")
            return
        from engine.scheduling.policies import policy_meanings

        meanings, now = policy_meanings(), str(knob.requested)
        items = [
            Named(name, f"{name} · now" if name == now else name, meanings.get(name, ""))
            for name in map(str, knob.allowed.choices)
        ]
        self._user.ask(PickPolicy(items, now), lambda chosen: self.set_knob("policy", chosen[1]))

    def undo_knob(self) -> None:
        """Undo the last change of knobs. Several presses of a key within `TURN_SECONDS` count as
        one change, as in the display of its effect."""
        self._panels.knobs.forget()
        try:
            change = self._sessions.client.undo_knobs(who=YOU, within=TURN_SECONDS)
        except EngineError as error:
            self._user.fail(error.message)
            return
        if change is None:
            self._user.notify("There is no knob change to undo.")
        else:
            self._user.notify(f"Undone: {change_text(change)}.")

    # The system prompt in the cache, and the broker.

    def pin(self) -> None:
        """Pin the system prompt of the chat on view in the KV cache."""
        system = self._sessions.current.chat.conversation.system
        if not system:
            self._user.refuse("This chat has no system prompt.")
            return
        self._sessions.client.pin(PIN, (ChatMessage("system", system),))
        self._user.notify("Pinned the system prompt; the KV panel says how much of it is computed.")

    def unpin(self) -> None:
        self._sessions.client.unpin(PIN)
        self._user.notify("The system prompt may be evicted again.")

    def reconnect(self) -> None:
        """Connect to the broker now, if there is no connection."""
        gateway, readings = self._mqtt.gateway, self._mqtt.readings
        if gateway is None or readings is None:
            return
        if readings.state is BrokerState.ONLINE:
            self._user.notify(f"{readings.address} is connected.")
        elif readings.state is BrokerState.STOPPED:
            self._user.fail("The gateway has stopped; restart the program to bring it back.")
        else:
            gateway.reconnect()
            self._user.notify(f"Connecting to {readings.address}…")
