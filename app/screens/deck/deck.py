"""Deck: the one screen, chat and engine side by side or in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer, TimerCallback
from textual.widgets import TextArea

from app.screens.bound import key_of
from app.screens.chats.chat import ChatPane
from app.screens.chats.keeper import ChatKeeper
from app.screens.chats.numbering import session_of
from app.screens.chats.sessions import SessionList
from app.screens.deck.chats import ChatActions
from app.screens.deck.commands import BY_NAME, bindings, typed
from app.screens.deck.control import EngineControl
from app.screens.deck.dialogue import Dialogue
from app.screens.deck.drafts import DraftActions
from app.screens.deck.files import ChatFiles
from app.screens.deck.messages import MessageActions
from app.screens.deck.settings import SettingsActions
from app.screens.deck.slash import SavedPrompts, SlashCommands
from app.screens.feeds.engine_watch import EngineWatch
from app.screens.feeds.gateway_watch import HttpWatch, MqttWatch
from app.screens.keys.key_bar import KeyBar
from app.screens.keys.key_groups import PROMPT, SCREEN, Place
from app.screens.model_switch import ModelWish
from app.screens.panel_bar import PanelBar
from app.screens.panels import Panels
from app.screens.pump import Pump
from widgets.chat.chat_list import ChatList
from widgets.chat.chat_tabs import ChatTabs
from widgets.chat.chips import Chips
from widgets.chat.completions import Completions
from widgets.chat.prompt import PromptArea
from widgets.chat.prompt_head import PromptHead
from widgets.chat.transcript import Transcript
from widgets.glyphs import Glyphs
from widgets.panels.gateway_panel import MqttPanel
from widgets.panels.knob_panel import KnobPanel
from widgets.panels.log_panel import LogPanel
from widgets.panels.session_table import SessionTable

WIDE = 170  # columns from which the chats are listed at the side, unless the user chose otherwise
LEAST = 150  # columns below which there is no room for them, and a table above the chat has them
TABLE_HEIGHT = 24  # lines from which that table leaves the chat enough of them
CROWD = 8  # with more chats than these, their table has the lines of an empty chat

# An Escape this soon after leaving something is probably one press too many, and must not stop the
# reply.
STRAY_SECONDS = 1.0

# Messages of widgets that ask for a command.
_WANTED: dict[type[Message], str] = {
    ChatTabs.NewWanted: "chat.new",
    ChatTabs.MoreWanted: "chat.find",
    PromptHead.SettingsWanted: "chat.settings",
    MqttPanel.ReconnectWanted: "reconnect-mqtt",
}


class Deck(Screen[None]):
    """Lays out the panes by the size of the terminal, and decides which of them has the focus and
    what Escape does. `commands.py` has the table of its commands; the objects that are attributes
    here carry them out.

    `deck.tcss` lays the panes out by these classes: `-engine` if only one of chat and engine fits
    and the engine is on view; `-chats` while all chats are listed at the side, in place of tabs;
    `-table` while their table stands above the chat, where they do not fit at the side; `-blank`
    while that table has the lines of an empty chat too, because there are many chats;
    `-gateway` if a gateway runs or its panel was selected, and `-mqtt` or `-http` for the panel of
    the two that is on view; `-spare` while the selected panel is one that low terminals leave out;
    `-pair` while latencies or devices are selected, which share a page; and one of each breakpoint.

    Args:
        sessions: over the engine, and over the gateways if there are any.

    Attributes:
        clock: monotonic seconds, for `STRAY_SECONDS`.
    """

    AUTO_FOCUS = "PromptArea"
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012  # as Textual has it
        *((0, "-tiny"), (60, "-narrow"), (110, "-rail"), (150, "-split")),
    ]
    VERTICAL_BREAKPOINTS: list[tuple[int, str]] | None = [  # noqa: RUF012
        *((0, "-flat"), (16, "-short"), (36, "-tall")),
    ]

    # A zoomed pane leaves space for the figures and the key bar, which shows how to leave it.
    ALLOW_IN_MAXIMIZED_VIEW = "#kpi, KeyBar"

    BINDINGS: ClassVar[list[BindingType]] = [*bindings()]

    class ModelWanted(Message):
        """A model is to be loaded."""

        def __init__(self, wish: ModelWish) -> None:
            super().__init__()
            self.wish = wish

    def __init__(self, sessions: SessionList, glyphs: Glyphs) -> None:
        super().__init__()
        self.sessions = sessions
        self.engine = EngineWatch(sessions.client)
        self.mqtt = MqttWatch(sessions.gateway)
        self.http = HttpWatch(sessions.http)
        self.panels = panels = Panels(glyphs, sessions.numbering)
        self.chat = chat = ChatPane(sessions, self.engine, glyphs, id="chat")
        self.user = user = Dialogue(self)
        self.control = EngineControl(user, sessions, self.engine, self.mqtt, panels)
        self.drafts = DraftActions(user, sessions, chat)
        keeper = ChatKeeper(sessions, sessions.store)
        self.chats = ChatActions(user, sessions, keeper, chat, self.drafts, self.switched)
        self.files = ChatFiles(user, sessions, self.chats)
        self.settings = SettingsActions(user, sessions, self.engine, chat)
        self.messages = MessageActions(user, sessions, chat, self.chats, self.control, self.leave)
        self.prompts = SavedPrompts(user, sessions, chat, self.leave, lambda: self.slash.names())
        self.slash = SlashCommands(
            user,
            chat,
            self.settings,
            self.drafts,
            self.prompts,
            lambda: typed(self),
            lambda: self.app.get_system_commands(self),
        )
        self.panel_bar = PanelBar([name for name, _ in panels.numbered], glyphs, id="panels")
        self.key_bar = KeyBar(glyphs)
        watches = self.engine, self.mqtt, self.http
        self.pump = Pump(self, sessions, *watches, chat, panels, self.update_layout)
        self.clock: Callable[[], float] = time.monotonic
        self._panel = 0
        self._gateway = panels.http if self.mqtt.gateway is None else panels.mqtt
        self._chats_wanted: bool | None = None  # None is by the width
        self._left_at = -math.inf
        self._came_to: str | None = None  # text of the prompt when a panel opened the chat
        self._enabled = ("", False, False)  # Escape's command, can continue, can regenerate

    @property
    def places(self) -> tuple[Place, ...]:
        """The nodes with keys of their own, under their headings in the help."""
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
        """Textual's `set_timer`, but the callback is always called.

        Textual 8.2 skips a tick that is overdue when the timer's task first reads the clock, also
        of a timer that ticks once: with a negative delay it then loops for ever, it divides by a
        delay of 0, and a short delay never ends in a call if another thread held the interpreter
        meanwhile. The first froze the interface under load, the last would stop the pump.
        """
        timer = super().set_timer(delay, callback, name=name, pause=True)
        timer._skip = False
        if not pause:
            timer.resume()
        return timer

    def on_mount(self) -> None:
        self._select_panel(0)
        self.update_key_hints()
        self.pump.start()
        self.chat.prompt.area.offers = self.slash.completions
        self.chat.prompt.area.attach = self.drafts.attach

    def on_unmount(self) -> None:
        self.pump.stop()
        self.drafts.store()

    # Commands and their keys.

    def action_run(self, name: str) -> None:
        """Run a command of the table."""
        command = BY_NAME[name]
        assert command.run is not None
        command.run(self)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "run":
            return BY_NAME[str(parameters[0])].when(self)
        return super().check_action(action, parameters)

    def update_key_hints(self) -> None:
        """Show the keys in prompt, transcript and panels as they are bound now."""
        key, area, transcript = self.user.key_of, self.chat.prompt.area, self.chat.transcript
        self.chat.hint(
            key("prompt.send"),
            key_of("newline", area, self.app),
            key("chat.new"),
            edit=f"{key('chat.read')} {key('chat.edit')}",
            resume=key("chat.resume"),
            copy=key_of("copy_code", transcript, self.app),
        )
        for _, panel in self.panels.numbered:
            own = {action: key_of(action, panel, self.app) for action in panel.keys}
            panel.hint(
                {action: sign or key(f"{panel.id}.{action}") for action, sign in own.items()}
            )
        self.refresh_bindings()

    def update_layout(self) -> None:
        """Update the key bar and the layout to the present chats. The pump calls this each turn."""
        self.refresh_keys()
        self.place_chats()

    def refresh_keys(self) -> None:
        """Update the key bar if Escape has another command now, or if a reply can be continued or
        regenerated and could not before, or the reverse."""
        session = self.sessions.current
        enabled = self.escape, session.chat.can_resume, session.can_regenerate
        if enabled != self._enabled:
            self._enabled = enabled
            self.refresh_bindings()

    def on_screen_suspend(self) -> None:
        """A dialog or the palette was opened: it has other keys."""
        self.refresh_bindings()

    # The chat on view.

    def switched(self) -> None:
        """Show the current session of the list, after another one has become that."""
        self.drafts.store()  # of the chat before, which is shown until `update`
        session = self.sessions.current
        self.panels.kv.select(self.sessions.number_of(session))
        self.chat.update()
        self.place_chats()
        if self.has_class("-table"):
            self.panels.table.point_at(session.key)
        self.refresh_bindings()
        self.leave()

    def read(self) -> None:
        """Give the messages the focus; the newest one in view becomes the current one."""
        self.remove_class("-engine")
        self.place_chats()
        self.set_focus(self.chat.transcript)

    @property
    def has_selection(self) -> bool:
        """Whether the mouse has selected text."""
        return bool(self.selections)

    def copy_selection(self) -> None:
        selected = self.get_selected_text() or ""
        self.action_copy_text()
        self.notify(f"Copied the selection, {len(selected):,} characters.")

    def load_model(self, wish: str) -> bool:
        """Make the application load a model; False if none is named."""
        if not wish:
            self.user.refuse("/model needs a name, a folder, a file or a hub id.")
            return False
        self.post_message(self.ModelWanted(ModelWish.read(wish)))
        return True

    @on(ChatTabs.NewWanted)
    @on(ChatTabs.MoreWanted)
    @on(PromptHead.SettingsWanted)
    @on(MqttPanel.ReconnectWanted)
    def run_wanted(self, event: Message) -> None:
        self.action_run(_WANTED[type(event)])

    @on(ChatTabs.Picked)
    @on(ChatList.Picked)
    def open_chat(self, event: ChatTabs.Picked | ChatList.Picked) -> None:
        self.chats.open(event.key)

    @on(ChatPane.Counted)
    def send_held(self) -> None:
        """Send the message that was held until its tokens were counted, unless it was changed."""
        if self.drafts.is_held:
            self.slash.enter()

    @on(TextArea.Changed)
    def follow_draft(self, event: TextArea.Changed) -> None:
        """Offer completions of the text, and have the draft kept."""
        area = self.chat.prompt.area
        if event.text_area is not area:
            return
        area.offer()
        # Once the user writes here, Escape is meant for this chat and does not go back.
        if self._came_to not in (None, area.text):
            self._came_to = None
            self.refresh_keys()
        self.drafts.changed()
        self.place_chats()

    @on(TextArea.SelectionChanged)
    def follow_cursor(self, event: TextArea.SelectionChanged) -> None:
        """Offer the completions at the cursor."""
        if event.text_area is self.chat.prompt.area:
            self.chat.prompt.area.offer()

    @on(Completions.Clicked)
    def complete(self) -> None:
        self.chat.prompt.area.complete()

    @on(PromptArea.LargePaste)
    def attach_paste(self, event: PromptArea.LargePaste) -> None:
        self.drafts.attach_paste(event.text)

    @on(Chips.Dropped)
    @on(PromptArea.DropWanted)
    def detach(self, event: Chips.Dropped | PromptArea.DropWanted) -> None:
        self.drafts.detach(event.place)

    @on(Transcript.Typed)
    def write(self, event: Transcript.Typed) -> None:
        """Give the prompt the text that was typed while the transcript had the focus."""
        self.leave()
        self.chat.prompt.area.post_message(events.Paste(event.text))

    # Messages of the panels.

    @on(KnobPanel.Turned)
    def turn_knob(self, event: KnobPanel.Turned) -> None:
        self.control.turn_knob(event)

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
        elif self.chats.open(chat):
            self.leave()
        else:
            return
        # Escape goes back to the panel, until something is written here.
        self._came_to = self.chat.prompt.text
        self.refresh_keys()

    @on(SessionTable.Highlighted)
    def select_blocks(self, event: SessionTable.Highlighted) -> None:
        self.panels.kv.select(event.row.name.number)

    # Leaving. Escape leaves a panel, a dialog, an edit, or a chat that was opened from a panel. It
    # stops a reply only from the prompt below it, and not just after it has left something.

    @property
    def escape(self) -> str:
        """The command that Escape runs now; empty if there is none."""
        session = self.sessions.current
        # Escape comes back from the engine first, also where the chat is beside it.
        if self.has_class("-engine") or not self.chat.prompt.area.has_focus:
            return "view.leave"
        if self.chat.composer.editing is not None:
            return "chat.keep"
        if self._came_to is not None:
            return "view.back"
        if not session.chat.is_busy or self.clock() - self._left_at < STRAY_SECONDS:
            return ""
        return "chat.stop" if session.is_own else "chat.stop_theirs"

    def leave(self) -> None:
        """Go back to the prompt."""
        self.chat.transcript.rest()
        self.to_chat()
        self._record_left()

    def leave_edit(self) -> None:
        """Stop editing a message, which stays as it was."""
        self.chat.composer.go_back()
        self.user.forget()
        self._record_left()

    def go_back(self) -> None:
        """Go back to the panel from which this chat was opened."""
        self._record_left()
        self.go_to_panel(self._panel + 1)

    def _record_left(self) -> None:
        """Record the time, so that another Escape right after this does not stop a reply."""
        self._left_at = self.clock()
        self._came_to = None
        self.refresh_keys()

    def on_screen_resume(self) -> None:
        """A dialog or the palette was left."""
        self._record_left()

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        if event.widget is self.chat.prompt.area:
            self._came_to = None

    # Panes and focus.

    @property
    def is_at_engine(self) -> bool:
        if self.has_class("-split"):
            return not self.chat.prompt.area.has_focus
        return self.has_class("-engine")

    def to_chat(self) -> None:
        """Give the prompt the focus. A zoomed panel is left first: hidden behind it, the prompt
        would lose the focus at once."""
        self.remove_class("-engine")
        self.place_chats()
        area = self.chat.prompt.area
        if self.maximized not in (None, *area.ancestors_with_self):
            self.minimize()
        area.focus()

    def toggle_engine(self) -> None:
        """Switch between chat and engine; where both are on view, move the focus."""
        if self.is_at_engine:
            self.to_chat()
        else:
            self.set_class(not self.has_class("-split"), "-engine")
            self.place_chats()
            self._focus_panel()

    def toggle_chats(self) -> None:
        """Show the chats, at the side or above the chat, and go to them; if the focus is there
        already, hide them."""
        is_beside = self.app.size.width >= LEAST
        shown, chats = ("-chats", self.chat.list) if is_beside else ("-table", self.panels.table)
        if not is_beside and not self._has_table_room:
            find = self.user.key_of("chat.find")
            self.notify(f"There is no room to list the chats; {find} finds them.")
            return
        self._chats_wanted = not self.has_class(shown) or not chats.has_focus
        self.place_chats()
        self.chat.update_bar()
        if self._chats_wanted:
            chats.focus()
        else:
            self.chat.prompt.area.focus()

    def place_chats(self) -> None:
        """Show the chats at the side where they fit, else in a table above the chat if there are
        several. If there are many, the table has the lines of an empty chat too."""
        width, wanted = self.app.size.width, self._chats_wanted
        beside = width >= (WIDE if wanted is None else LEAST) and wanted is not False
        session = self.sessions.current
        is_unused = session.is_empty and not self.chat.prompt.text
        blank = is_unused and self._num_chats > CROWD
        asked = bool(wanted) or blank or (self.has_class("-narrow") and self._num_chats > 1)
        table = self._has_table_room and wanted is not False and asked
        blank = blank and (table or self.has_class("-split"))
        if blank is not self.has_class("-blank"):
            # The grid is filled in the order of the children.
            behind = self.panels.devices if blank else self.panels.latency
            self.query_one("#body").move_child(self.chat, before=behind)
        if table and not self.has_class("-table"):
            self.panels.table.point_at(session.key)
        self.set_class(beside, "-chats")
        self.set_class(table, "-table")
        self.set_class(blank, "-blank")

    @property
    def _num_chats(self) -> int:
        """The number of rows in the table of chats."""
        snapshot = self.engine.snapshot
        chats = {session_of(view) for view in snapshot.requests} if snapshot else set()
        return len(chats.union(one.key for one in self.sessions.sessions))

    @property
    def _has_table_room(self) -> bool:
        """Whether there is room for a table of chats above the chat, and the chat is on view."""
        narrow = self.has_class("-narrow") or self.has_class("-rail")
        return narrow and self.app.size.height >= TABLE_HEIGHT and not self.has_class("-engine")

    def go_to_panel(self, number: int) -> None:
        """Go to a panel."""
        if not self.has_class("-split"):
            self.add_class("-engine")
        self.place_chats()
        self._select_panel(number - 1)
        self._focus_panel()

    @on(PanelBar.Picked)
    def go_to_picked(self, event: PanelBar.Picked) -> None:
        self.go_to_panel(event.place + 1)

    def step_panel(self, places: int) -> None:
        """Go to the next panel where one is on view at a time, else to the next pane."""
        if self.has_class("-engine") and self.panel_bar.display:
            self.go_to_panel((self._panel + places) % len(self.panels.numbered) + 1)
        elif places > 0:
            self.focus_next()
        else:
            self.focus_previous()

    def go_to_knob_history(self) -> None:
        """Go to the knobs, with their history on view."""
        names = [name for name, _ in self.panels.numbered]
        self.go_to_panel(names.index("Knobs") + 1)
        self.panels.knobs.show_history(True)

    @property
    def is_zoomed(self) -> bool:
        """Whether one pane has the whole screen."""
        return self.maximized is not None

    def zoom(self) -> None:
        if self.is_zoomed:
            self.minimize()
        elif self.focused is not None:
            self.maximize(self.focused)
        self.refresh_bindings()

    def on_descendant_focus(self) -> None:
        """Show the focused pane, which a zoomed one would cover."""
        focused, zoomed = self.focused, self.maximized
        if focused is None or zoomed is None or zoomed in focused.ancestors_with_self:
            return
        if focused in [panel for _, panel in self.panels.numbered]:
            self.maximize(focused)
        else:
            self.minimize()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._leave_hidden_pane)
        self.call_after_refresh(self.place_chats)

    def _select_panel(self, place: int) -> None:
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
        # The two share a place, which shows the one that was selected last.
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

    def _leave_hidden_pane(self) -> None:
        """Move the focus away from a pane that is no longer shown."""
        if self.focused is None or not self.focused.region:
            if self.chat.region:
                self.chat.prompt.area.focus()
            else:
                self._focus_panel()
