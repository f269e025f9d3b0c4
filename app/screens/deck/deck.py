"""Deck: the one screen, chat and engine side by side or in turn."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.timer import Timer, TimerCallback

from app.screens.bound import key_of
from app.screens.chats.sessions import SessionList
from app.screens.deck.speaking import Speaking
from app.screens.keys.key_bar import KeyBar
from app.screens.keys.key_groups import PROMPT, SCREEN, Place
from app.screens.panel_bar import PanelBar
from app.screens.pump import Pump
from widgets.glyphs import Glyphs
from widgets.panels.log_panel import LogPanel
from widgets.panels.session_table import SessionTable


class Deck(Speaking):
    """Lays out the panes by the size of the terminal, and turns what the user does with them into
    calls of the session list. What is done to the engine is `Steering`'s, and what is done with
    chats that of the classes from `Conversing` to `Speaking`; `deck.tcss` says what is shown where.

    Its classes: `-engine` while the engine and not the chat is on view where both do not fit;
    `-gateway` where there is one, or its panel was asked for, and `-mqtt` or `-http` as its panel
    is on view; `-spare` while the panel asked for is one of those that low screens leave out;
    `-pair` while latencies or devices are asked for, which share a page; and one of each
    breakpoint.
    """

    AUTO_FOCUS = "PromptArea"
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012  # as Textual has it
        *((0, "-tiny"), (60, "-narrow"), (110, "-rail"), (150, "-split")),
    ]
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012
        *((0, "-flat"), (16, "-short"), (36, "-tall")),
    ]

    # A pane that is zoomed leaves room for the figures and the keys, of which one leads back.
    ALLOW_IN_MAXIMIZED_VIEW = "#kpi, KeyBar"

    BINDINGS: ClassVar[list[BindingType]] = [
        # It acts before what is typed after it, which is meant for the pane that it brings.
        Binding(
            "f2",
            "mode",
            "Engine",
            tooltip="Between chat and engine",
            id="view.mode",
            priority=True,
        ),
        # The key bar says that Esc does it too.
        Binding("f2", "to_chat", "Chat", show=False, id="view.mode", priority=True),
        Binding("p", "policy", "Policy", tooltip="Choose the policy", id="knobs.policy"),
        Binding(
            "u",
            "undo",
            "Undo",
            tooltip="Undo the last knob change, whoever made it",
            id="knobs.undo",
        ),
        Binding("ctrl+n", "new", "New", tooltip="Open an empty chat", id="chat.new"),
        Binding(
            "f3",
            "find",
            "Find",
            tooltip="Find any chat and open it",
            id="chat.find",
            priority=True,
        ),
        # The focused panel comes first: the digits may belong to a number that is being typed.
        *(
            Binding(
                f"{n}",
                f"panel({n})",
                "Panel by its number",
                tooltip=f"Panel number {n}",
                show=False,
                id=f"panel.{n}",
            )
            for n in range(1, 10)
        ),
        Binding("tab", "panel_step(1)", "Next panel", show=False, id="panel.next"),
        Binding("shift+tab", "panel_step(-1)", "Previous panel", show=False, id="panel.previous"),
        Binding("x", "stop_request", "Stop", tooltip="Stop the request", id="table.stop"),
        Binding(
            "plus",
            "prioritize(1)",
            "Priority",
            tooltip="Raise the request's priority",
            id="table.raise",
        ),
        Binding(
            "minus", "prioritize(-1)", "Lower the request's priority", show=False, id="table.lower"
        ),
        Binding(
            "z",
            "zoom",
            "Zoom panel",
            tooltip="One panel on the whole screen",
            show=False,
            id="view.zoom",
        ),
    ]

    def __init__(self, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__(sessions, glyphs)
        panels = self.panels
        names = [name for name, _ in panels.numbered]
        self.panel_bar = PanelBar(names, glyphs, id="panels")
        self.key_bar = KeyBar(glyphs)
        watches = self.engine, self.mqtt, self.http
        self.pump = Pump(self, sessions, *watches, self.chat, self.panels, self.heed)
        self._panel = 0
        self._gateway = panels.http if self.mqtt.gateway is None else panels.mqtt

    @property
    def places(self) -> tuple[Place, ...]:
        """Where keys act that are not everywhere's."""
        return (
            (SCREEN, self),
            (PROMPT, self.chat.prompt.area),
            ("Messages", self.chat.transcript),
            ("Chats at the side", self.chat.list),
            *self.panels.numbered,
            ("Strip", self.panels.kpi),
        )

    def compose(self) -> ComposeResult:
        panels = self.panels
        yield panels.kpi
        yield self.panel_bar
        # In the order in which the grids of deck.tcss are filled.
        yield Container(
            self.chat.list,
            *(panels.table, panels.batch, self.chat, panels.latency, panels.knobs),
            *(panels.devices, panels.kv, panels.mqtt, panels.http, panels.log),
            id="body",
        )
        yield self.key_bar

    def set_timer(
        self,
        delay: float,
        callback: TimerCallback | None = None,
        *,
        name: str | None = None,
        pause: bool = False,
    ) -> Timer:
        """As Textual's, but it rings in any case.

        Textual 8.2 leaves out what is overdue when its task first looks at the clock, for timers
        that ring once too: with a negative delay it then looks for ever, with 0 it divides by it,
        and a short one never rings where another thread held the interpreter meanwhile. The first
        froze the interface under load, the last would end the pump.
        """
        timer = super().set_timer(delay, callback, name=name, pause=True)
        timer._skip = False
        if not pause:
            timer.resume()
        return timer

    def on_mount(self) -> None:
        self._show_panel(0)
        self.tell_keys()
        self.pump.start()

    def tell_keys(self) -> None:
        """Show keys as they are bound now."""
        self.chat.hint(
            self.key_of("send"),
            key_of("newline", self.chat.prompt.area, self.app),
            self.key_of("new"),
            edit=f"{self.key_of('read')} {self.key_of('edit_last')}",
            resume=self.key_of("resume"),
            copy=key_of("copy_code", self.chat.transcript, self.app),
        )
        for _, panel in self.panels.numbered:
            own = {action: key_of(action, panel, self.app) for action in panel.keys}
            panel.hint({action: key or self.key_of(action) for action, key in own.items()})
        self.refresh_bindings()

    def on_resize(self) -> None:
        self.call_after_refresh(self._keep_focus)

    def on_unmount(self) -> None:
        self.pump.stop()

    def on_screen_suspend(self) -> None:
        """A dialog or the palette has come: other keys act."""
        self.refresh_bindings()

    # What the dashboard asks for.

    @on(SessionTable.Selected)
    def go_to_request(self, event: SessionTable.Selected) -> None:
        view = event.row.view
        belongs = view is None or view.origin.conversation
        self._go_to(view.request_id if view else "", event.row.key if belongs else "")

    @on(LogPanel.Chosen)
    def go_to_line(self, event: LogPanel.Chosen) -> None:
        self._go_to(event.line.request_id, event.line.chat)

    def _go_to(self, request_id: str, chat: str) -> None:
        """Go to the chat of a request, which may be one over MQTT."""
        if request_id and self.sessions.watch(request_id):
            self.switched()
        elif not chat:
            self.notify("This belongs to no chat on the screen.")
            return
        elif self.open(chat):
            self.action_leave()
        else:
            return
        self.come()

    @on(SessionTable.Highlighted)
    def show_blocks(self, event: SessionTable.Highlighted) -> None:
        self.panels.kv.select(event.row.name.number)

    # What is on view.

    def action_mode(self) -> None:
        """Between chat and engine; where both are on view, the focus goes."""
        if self._is_at_engine:
            self.action_to_chat()
        else:
            self.set_class(not self.has_class("-split"), "-engine")
            self._focus_panel()

    def action_to_chat(self) -> None:
        self.remove_class("-engine")
        self.to_prompt()

    @property
    def _is_at_engine(self) -> bool:
        if self.has_class("-split"):
            return not self.chat.prompt.area.has_focus
        return self.has_class("-engine")

    def action_back(self) -> None:
        """Go back to the panel from which the chat was gone to."""
        self.leave_something()
        self.action_panel(self._panel + 1)

    def action_panel_step(self, places: int) -> None:
        """The next panel where one is on view at a time, else the next pane."""
        if self.has_class("-engine") and self.panel_bar.display:
            self.action_panel((self._panel + places) % len(self.panels.numbered) + 1)
        elif places > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def action_panel(self, number: int) -> None:
        if not self.has_class("-split"):
            self.add_class("-engine")
        self._show_panel(number - 1)
        self._focus_panel()

    @on(PanelBar.Picked)
    def pick_panel(self, event: PanelBar.Picked) -> None:
        self.action_panel(event.place + 1)

    def action_zoom(self) -> None:
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None:
            self.maximize(self.focused)

    def on_descendant_focus(self) -> None:
        """Have the pane on view that keys go to: one that is zoomed covers all others."""
        focused, zoomed = self.focused, self.maximized
        if focused is None or zoomed is None or zoomed in focused.ancestors_with_self:
            return
        if focused in [panel for _, panel in self.panels.numbered]:
            self.maximize(focused)
        else:
            self.minimize()

    def action_knob_history(self) -> None:
        """Go to the knobs, with their history on view."""
        names = [name for name, _ in self.panels.numbered]
        self.action_panel(names.index("Knobs") + 1)
        self.panels.knobs.show_history(True)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        in_prompt = self.chat.prompt.area.has_focus
        if action == "send":
            return in_prompt
        if action in ("mode", "to_chat"):
            return self._is_at_engine == (action == "to_chat")
        if action in ("stop_request", "prioritize"):
            return self.panels.table.has_focus
        return super().check_action(action, parameters)

    def _show_panel(self, place: int) -> None:
        self._panel = place
        self.panel_bar.show(place)
        shown = self.panels.numbered[place][1]
        panels = self.panels
        gateways = panels.mqtt, panels.http
        if shown in gateways:
            self._gateway = shown
        exist = self.mqtt.gateway is not None or self.http.gateway is not None
        has_place = exist or shown in gateways
        self.set_class(has_place, "-gateway")
        # They share a place, which has the one that was asked for last.
        self.set_class(has_place and self._gateway is panels.mqtt, "-mqtt")
        self.set_class(has_place and self._gateway is panels.http, "-http")
        self.set_class(shown in (panels.devices, *gateways, panels.log), "-spare")
        pair = (panels.latency, panels.devices)  # neither fills a page of its own
        self.set_class(shown in pair, "-pair")
        for _, panel in panels.numbered:
            panel.set_class(panel is shown or (shown in pair and panel in pair), "-shown")

    def _focus_panel(self) -> None:
        panel = self.panels.numbered[self._panel][1]
        self.set_focus(panel if panel.can_focus else None)

    def _keep_focus(self) -> None:
        """Bring the focus back from a pane that there is no room for any more."""
        if self.focused is None or not self.focused.region:
            if self.chat.region:
                self.chat.prompt.area.focus()
            else:
                self._focus_panel()
