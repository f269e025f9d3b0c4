"""Demonstration: the application, used by a scripted crowd until a user presses a key."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from textual import events

from app.screens.bound import bindings_of, key_of
from app.screens.demo.captions import Captions
from app.screens.demo.crowd import Crowd
from app.screens.tui import Tui
from engine.api.errors import EngineError
from engine.api.status import EnginePhase
from widgets.panels.caption_line import CaptionLine

log = logging.getLogger(__name__)

SEED = 15
TURN_SECONDS = 0.25
# Seconds until the next chat is shown and, if not all panes fit, the next pane.
VIEW_SECONDS, PANE_SECONDS = 9.0, 4.0
# The number of views that take turns: the chat, and one panel fewer than this.
PANES = 4
# By seconds from the first question on: the knobs to change, and the captions for the changes.
POLICY_SECONDS, POLICY, BACK_SECONDS = 30.0, "static", 45.0
# Seconds for which the line shows after a user has taken over.
CAPTION_SECONDS = 30.0
WHO = "demo"

WAITING = "The demonstration begins when the built-in model is loaded. Any key takes over."
TAKEN_OVER = "You have taken over: replies in flight continue, and no chat is kept. Write below;"


class Demonstration(Tui):
    """A `Tui` with a line of captions.

    Args:
        clock: seconds; all others are as for `Tui`.

    Attributes:
        is_over: whether a user has taken over.
    """

    def __init__(
        self, *args: Any, clock: Callable[[], float] = time.monotonic, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.is_over = False
        self._clock = clock
        self._crowd: Crowd | None = None
        self._captions = Captions(self._chat_of, clock)
        self._line = CaptionLine(self.deck.key_bar.glyphs, id="caption")
        self._step = 0
        self._events = [
            (POLICY_SECONDS, self._change_policy),
            (BACK_SECONDS, self._change_back),
        ]
        self._panes = 0
        self._began = self._viewed = self._turned = self._ended_at = 0.0

    def on_ready(self) -> None:
        self.deck.mount(self._line, before="#body")
        self._line.show(WAITING)
        self.set_interval(TURN_SECONDS, self.demonstrate)

    async def on_event(self, event: events.Event) -> None:
        is_over = self.is_over
        if isinstance(event, (events.Key, events.MouseDown, events.Paste)):
            self._end_script()
        # The user cannot know which widget has the focus, nor what a key would do there.
        swallowed = isinstance(event, events.Paste) or (
            isinstance(event, events.Key) and not self._leads_elsewhere(event.key)
        )
        if is_over or not swallowed:
            await super().on_event(event)

    def demonstrate(self) -> None:
        """Run the crowd, with captions. The caption line disappears some seconds after a user has
        taken over."""
        if self.is_over and self._clock() >= self._ended_at + CAPTION_SECONDS:
            self._line.display = False
        if self.is_over or self.deck.engine.status.phase is not EnginePhase.READY:
            return
        now = self._clock()
        if self._crowd is None:
            self._crowd = Crowd(self.deck.sessions, self._clock, SEED)
            self._began = self._viewed = self._turned = now
        self._crowd.turn()
        while self._events and now >= self._began + self._events[0][0]:
            self._events.pop(0)[1]()
        self._change_view(now)
        records = [r for r in self.deck.engine.records if r.step > self._step]
        if records:
            self._step = records[-1].step
            self._captions.add_steps(records)
            self._line.show(self._captions.text)

    def _change_view(self, now: float) -> None:
        sessions = self.deck.sessions
        busy = [s for s in sessions.sessions if s.chat.is_busy and s is not sessions.current]
        # Here, showing another chat would hide the panels.
        reads = not self.deck.has_class("-engine")
        if busy and reads and (now >= self._viewed + VIEW_SECONDS or sessions.current.is_empty):
            self._viewed = now
            sessions.go_to(busy[-1])
            self.deck.switched()
        if now >= self._turned + PANE_SECONDS and not self.deck.has_class("-split"):
            self._turned = now
            self._change_pane()

    def _change_pane(self) -> None:
        """From the chat to the engine, there from panel to panel, and back."""
        self._panes += 1
        if self._panes % PANES < 2:
            self.deck.toggle_engine()
        else:
            self.deck.step_panel(1)

    def _change_policy(self) -> None:
        self._turn_knob(lambda: self._client.set_knobs({"policy": POLICY}, who=WHO))

    def _change_back(self) -> None:
        self._turn_knob(lambda: self._client.undo_knobs(who=WHO))

    def _turn_knob(self, turn: Callable[[], object]) -> None:
        try:
            turn()
        except EngineError as error:
            log.error("%s", error.message)

    def _chat_of(self, request_id: str) -> str:
        """The chat of a request, as the tabs and the table call it."""
        view = self.deck.engine.views.get(request_id)
        session = self.deck.sessions.find(view.origin.conversation) if view else None
        number = session.chat.conversation.number if session else None
        return f"Chat {number}" if number is not None else "A chat"

    def _leads_elsewhere(self, key: str) -> bool:
        """Whether a key only opens or leaves a view, so that it changes no chat."""
        deck = (b for b in bindings_of(self.deck, self) if b.id == "view.mode")
        return key in {binding.key for binding in (*bindings_of(self, self), *deck)}

    def _end_script(self) -> None:
        """End the script. Running replies continue, under the policy of the beginning."""
        if not self.is_over:
            self.is_over = True
            self._ended_at = self._clock()
            if [act for _, act in self._events] == [self._change_back]:
                self._change_back()
            engine = self.deck.user.key_of("view.mode")
            keys, leave = key_of("help", self, self), key_of("quit", self, self)
            self._line.show(f"{TAKEN_OVER} {engine} engine, {keys} every key, {leave} quits.")
