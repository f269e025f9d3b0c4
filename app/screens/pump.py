"""Pump: updates the screen from engine and gateways, at the screen's own pace."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator

from textual.screen import Screen
from textual.timer import Timer

from app.screens.bound import action_of, key_of
from app.screens.chats.chat import ChatPane
from app.screens.chats.sessions import SessionList
from app.screens.feeds.alerts import Alerts
from app.screens.feeds.cadence import Cadence, LoopLag, Thrift
from app.screens.feeds.engine_watch import EngineWatch
from app.screens.feeds.gateway_watch import HttpWatch, MqttWatch
from app.screens.feeds.log_feed import LogFeed
from app.screens.panels import Panels
from app.system.devices import Devices
from app.system.machine import num_cores
from engine.api.snapshot import Snapshot
from engine.api.status import EnginePhase, EngineStatus, ModelCard
from engine.api.telemetry import StepRecord
from widgets.figures import change_text, percent
from widgets.off_path import in_full as off_in_full
from widgets.panels.gateway_readings import BrokerState
from widgets.panels.log_line import LogLine, engine_events, is_fallback, knob_event
from widgets.quantization import shortly

log = logging.getLogger(__name__)

# Between two parts of a turn, Textual paints the changes of the first one and handles keys.
BREATH_SECONDS = 0.03


class Pump:
    """Takes turns by one timer. The timer is set again after each part of a turn, so that turns
    never pile up, and a key waits for one part and not for a whole turn.

    The engine's threads touch no widget and wake no loop: `call_from_thread` would block them, and
    a posted message would wake the loop for each token.

    Args:
        update_layout: is called in each turn, after the sessions were polled.
        clock: monotonic seconds.

    Attributes:
        seen: whether the terminal has the focus. Without it the screen is painted more rarely.
        frugal: whether the user wants the engine to be polled less often.
        alerts: warns the user; its rules are the user's.
        frames: how often the screen was repainted so far; the app counts it.
    """

    def __init__(
        self,
        screen: Screen[None],
        sessions: SessionList,
        engine: EngineWatch,
        mqtt: MqttWatch,
        http: HttpWatch,
        chat: ChatPane,
        panels: Panels,
        update_layout: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seen = True
        self.frugal = False
        self.alerts = Alerts(clock=clock)
        self.frames = 0
        self._screen = screen
        self._sessions = sessions
        self._engine = engine
        self._mqtt = mqtt
        self._http = http
        self._chat = chat
        self._panels = panels
        self._update_layout = update_layout
        self._clock = clock
        self._devices = Devices()
        self._log = LogFeed()
        self._lag = LoopLag()
        self._thrift = Thrift(num_cores(), clock)
        self._timer: Timer | None = None
        self._turn_at = 0.0
        self._began = 0.0
        self._parts = self._turn_parts(everything=False)  # the rest of the turn, or the next one
        self._done = {"engine": -math.inf, "table": -math.inf, "devices": -math.inf}
        self._frames_before = (0, clock())
        self._status = EngineStatus(EnginePhase.EMPTY)
        self._standing: tuple[object, ...] = ()

    def start(self) -> None:
        self._log.attach()
        self._lag.start()
        self._come_again()

    def stop(self) -> None:
        self._log.detach()
        self._lag.stop()
        self._devices.close()

    @property
    def cadence(self) -> Cadence:
        on_cpu, stretch = self._engine.on_cpu, self._thrift.stretch
        quiet = not (self._engine.is_computing or self._thrift.is_attended)
        return Cadence.fit(
            on_cpu=on_cpu, seen=self.seen, stretch=stretch, frugal=self.frugal, quiet=quiet
        )

    def attend(self) -> None:
        """Take the next turn after the usual pause, without slowing down, because a key was pressed
        and the user waits for its effect."""
        self._thrift.attend()
        moment = self._clock() + self._pause()
        if self._timer is not None and moment < self._turn_at:
            self._timer.stop()
            self._come_at(moment)

    def turn(self, *, everything: bool = False) -> None:
        """Update the parts of the screen that are due, or all of them if `everything` is set."""
        for _ in self._turn_parts(everything=everything):
            pass

    def _turn_parts(self, *, everything: bool) -> Iterator[None]:
        """Take a turn in parts. Only the first one looks at the engine, so that all panels show the
        same moment."""
        self._thrift.measure(computing=self._engine.on_cpu and self._engine.is_computing)
        self._began, cadence, current = self._clock(), self.cadence, self._sessions.current
        news = self._sessions.poll()
        self._notify_ends()
        polled = self._is_due("engine", cadence.engine, everything)
        records, turned = self._poll_engine() if polled else ([], False)
        if current.key in news or polled:
            self._chat.update()
        elif news:
            self._chat.update_bar()
        self._update_layout()
        if not polled:
            return
        yield
        self._panels.show_steps(self._engine, records)
        if self._is_due("table", cadence.table, everything or turned):
            yield
            self._mqtt.poll()
            self._http.poll()
            self._notify_broker()
            self._notify_http()
            self._warn()
            failures = self._sessions.failures(self._engine.views)
            self._panels.show_figures(self._engine, self._mqtt, self._http, failures)
        if self._is_due("devices", cadence.devices, everything):
            yield
            self._read_devices()
            self._read_others_changes()

    def _come_again(self) -> None:
        try:
            next(self._parts)
            pause = 0.0
        except StopIteration:
            self._parts = self._turn_parts(everything=False)
            pause = self._pause()
        self._come_at(max(self._began + pause, self._clock() + BREATH_SECONDS))

    def _come_at(self, moment: float) -> None:
        self._turn_at = moment
        self._timer = self._screen.set_timer(moment - self._clock(), self._come_again)

    def _pause(self) -> float:
        chat, cadence = self._sessions.current.chat, self.cadence
        if chat.is_busy and not (chat.messages[-1].content or chat.messages[-1].thinking):
            return cadence.awaited
        return cadence.stream if self._sessions.num_busy else cadence.idle

    def _is_due(self, what: str, interval: float, everything: bool) -> bool:
        if self._began < self._done[what] + interval and not everything:
            return False
        self._done[what] = self._began
        return True

    def _poll_engine(self) -> tuple[list[StepRecord], bool]:
        """Poll the engine; returns its new steps, and whether the panels of figures must be updated
        at once. They must after a change of model, phase or knob, and when a request arrived, ended
        or resumed: the map shows that immediately, and the other panels must not contradict it."""
        engine, phase = self._engine, self._status.phase
        records = engine.poll()
        if engine.status != self._status:
            self._notify_model(self._status, engine.status)
            self._status = engine.status
        self._sessions.meet(engine.views.values())
        requests = engine.snapshot.requests if engine.snapshot else ()
        sessions, numbering = self._sessions.sessions, self._sessions.numbering
        numbering.update(requests, (session.chat.conversation for session in sessions))
        lines: list[LogLine] = self._log.drain(numbering.subject)
        for record in records:
            lines += engine_events(record, engine.epoch, numbering.subject)
        changes = engine.new_knob_changes()
        lines += [knob_event(change, engine.epoch) for change in changes]
        for change in changes:
            if is_fallback(change):
                sentence = f"{change_text(change)}, for it failed: {change.who}"
                self._screen.notify(sentence, severity="error", timeout=30)
        if lines:
            self._panels.log.add(sorted(lines, key=lambda line: line.time))
        before, self._standing = self._standing, _standing(engine.snapshot)
        is_other = self._status.phase is not phase or self._standing != before
        return records, is_other or bool(changes)

    def _read_others_changes(self) -> None:
        """Show messages that another program on the same store has added to the chat on view."""
        chat = self._sessions.current.chat
        before = chat.messages, chat.places
        if word := chat.read_changes():
            self._screen.notify(word)
        if (chat.messages, chat.places) != before:
            self._chat.update()

    def _read_devices(self) -> None:
        panel = self._panels.devices
        if not panel.is_on_screen:
            return
        frames, then = self._frames_before
        now = self._clock()
        self._frames_before = self.frames, now
        rate = (self.frames - frames) / max(now - then, 1e-3)
        model = self._engine.snapshot.model if self._engine.snapshot else None

        async def read() -> None:
            # This runs on a thread, because a driver may be slow.
            readings = await asyncio.to_thread(
                self._devices.read,
                gpu_uuid=model.gpu_uuid if model else "",
                loop_lag=self._lag.p99(),
                frames=rate,
            )
            panel.show(readings, model)
            self._screen.set_class(bool(readings.gpus), "-gpu")

        self._screen.run_worker(read(), group="devices", exclusive=True)

    def _warn(self) -> None:
        """Warn of exceeded limits, and log when they are exceeded and when they are met again."""
        for alert in self.alerts.check(self._engine.snapshot, self._mqtt.readings):
            if alert.is_over:
                log.info("alert is over: %s", alert.text)
                continue
            log.warning("alert: %s", alert.text)
            self._screen.notify(alert.text, severity="warning", timeout=15)
            if self.alerts.rules.bell:
                self._screen.app.bell()

    def _notify_ends(self) -> None:
        """Notify the user of replies that ended in chats that are not on view."""
        notices, ended = self._sessions.notices, self._sessions.ended
        while notices:
            log.error("%s", notices[0])
            self._screen.notify(notices.pop(0), severity="error")
        while ended:
            find = key_of(action_of("chat.find"), self._screen, self._screen.app)
            self._screen.notify(f"The reply in “{ended.pop(0)}” is there; {find} finds the chat.")

    def _notify_broker(self) -> None:
        """Notify the user of a change of the connection to the broker."""
        state, readings = self._mqtt.new_state(), self._mqtt.readings
        if readings is None:
            return
        match state:
            case BrokerState.ONLINE:
                self._screen.notify(f"MQTT: connected to {readings.address}.")
            case BrokerState.OFFLINE:
                why = f" ({readings.detail})" if readings.detail else ""
                text = f"MQTT: {readings.address} is unreachable{why}; connecting again."
                self._screen.notify(text, severity="warning", timeout=15)
            case BrokerState.TAKEN_OVER:
                again = key_of("reconnect", self._panels.mqtt, self._screen.app)
                text = (
                    f"MQTT: another program has taken over node {readings.node!r};"
                    f" {again} in the MQTT panel connects again."
                )
                self._screen.notify(text, severity="error", timeout=30)
            case BrokerState.STOPPED:
                text = "MQTT: the gateway has stopped; the log says why."
                self._screen.notify(text, severity="error", timeout=30)

    def _notify_http(self) -> None:
        """Notify the user if the HTTP gateway has ended."""
        if self._http.has_stopped():
            text = "HTTP: the gateway has stopped; the log says why."
            self._screen.notify(text, severity="error", timeout=30)

    def _notify_model(self, before: EngineStatus, after: EngineStatus) -> None:
        """Notify the user that a model is ready, or has failed to load."""
        if (after.phase, after.model) == (before.phase, before.model):
            return
        if after.phase is EnginePhase.READY:
            if after.detail:
                self._screen.notify(after.detail, severity="error", timeout=15)
            else:
                self._screen.notify(_ready(after.model, self._engine.card))
            if (card := self._engine.card) is not None and (off := off_in_full(card)):
                text = f"{after.model} is not wholly on the fast path: {off}."
                self._screen.notify(text, severity="warning", timeout=15)
        elif after.phase is EnginePhase.FAILED:
            self._screen.notify(after.detail, severity="error", timeout=30)


def _ready(model: str, card: ModelCard | None) -> str:
    # The message has one line of 80 columns, because it covers the prompt.
    quantized = shortly(card) if card is not None else ""
    text = f"{model} is ready: {quantized}." if quantized else f"{model} is ready."
    if card is not None and not card.has_chat_template:
        text += (
            " It has no chat template, so chats with it are completions: a reply ends where it"
            " writes the name of a role."
        )
    return text


def _standing(snapshot: Snapshot | None) -> tuple[object, ...]:
    """The facts of a snapshot that several panels show: the states of its requests, and how full
    its pool is. While replies merely grow, they rarely change."""
    if snapshot is None:
        return ()
    blocks = snapshot.blocks
    states = [(view.ordinal, view.state, view.finish_reason) for view in snapshot.requests]
    return states, snapshot.num_waiting, percent(blocks.used / blocks.num_blocks)
