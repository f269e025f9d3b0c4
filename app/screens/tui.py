"""Tui: the Textual application. It opens the screen, starts the engine behind it, and ends both."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

import psutil
from textual import events, on
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.notifications import SeverityLevel
from textual.screen import Screen

from app.process.exits import ExitCode
from app.process.watchdog import last_call
from app.screens.bound import by_action, key_of
from app.screens.chats.sessions import SessionList
from app.screens.deck.commands import choices, entry, palette
from app.screens.deck.deck import Deck
from app.screens.dialogs.load_model import LoadModel
from app.screens.ending import Ending
from app.screens.keys.help import HelpScreen
from app.screens.keys.key_groups import help_notes, help_sections
from app.screens.keys.legacy_keys import read_alt_keys
from app.screens.model_switch import ModelSwitch, ModelWish
from app.screens.settings.change_settings import ChangeSettings, PressKey
from app.screens.settings.preferences import Preferences
from app.screens.settings.themes import CONTRAST, EightBitColors, find_theme, readable
from app.settings.own_file import OwnFile, OwnSettings
from app.settings.settings import Settings
from app.store.store import Store
from app.system.engine_crash import EngineCrashError, check_engine
from engine.api.client import EngineClient, LoadRequest
from engine.api.config import QUANTIZATIONS
from engine.api.errors import EngineError
from widgets.chat.transcript import Transcript
from widgets.glyphs import ASCII, UNICODE, AsciiOnly
from widgets.quantization import in_full

if TYPE_CHECKING:
    from app.gateway.http.view import HttpSide
    from app.gateway.mqtt.view import MqttSide

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
_RELOADS = "Loads the model again, after running requests"


class Tui(App[int]):
    """One `Deck` over an engine and, if there are any, gateways.

    Attributes:
        crash: the exception that ended the application; None if nothing crashed.
        ending: stops the replies and the engine.
        models: which one is wanted, and which was there before.
    """

    TITLE = "batchdeck"
    # Absolute, because a subclass may be in another package.
    CSS_PATH: ClassVar[str] = str(Path(__file__).with_name("deck.tcss"))
    BINDINGS: ClassVar[list[BindingType]] = [
        # These keys act in dialogs too, because the application's bindings precede theirs.
        Binding(
            "f1",
            "help",
            "Help",
            tooltip="All keys, those of the present place first",
            id="app.help",
            priority=True,
        ),
        Binding(
            "f9",
            "settings",
            "Settings",
            tooltip="Change how the interface looks and works",
            show=False,
            id="app.settings",
            priority=True,
        ),
        Binding(
            "ctrl+p",
            "command_palette",
            "palette",
            tooltip="Find any command by its name",
            show=False,
            id="app.palette",
            priority=True,
        ),
        Binding(
            "ctrl+q",
            "quit",
            "Quit",
            tooltip="Stop all replies and leave",
            id="app.quit",
            priority=True,
        ),
        Binding(
            "ctrl+z",
            "suspend_process",
            "Suspend",
            show=False,
            tooltip="Go to the shell; fg returns",
            id="app.suspend",
            priority=True,
        ),
    ]

    def __init__(
        self,
        client: EngineClient,
        store: Store,
        settings: Settings,
        load: LoadRequest,
        gateway: MqttSide | None = None,
        own: OwnSettings | None = None,
        http: HttpSide | None = None,
    ) -> None:
        # Without colours the background is the terminal's own, as with the theme "ansi".
        super().__init__(ansi_color="NO_COLOR" in os.environ or None)
        self.register_theme(CONTRAST)
        self.theme = find_theme(settings.theme)
        self.crash: BaseException | None = None
        self._asked: ExitCode | None = None
        self._leaving: Callable[[], None] | None = None
        self._client = client
        self.models = ModelSwitch(client, load)
        self._pinned = settings.pinned
        self._sessions = SessionList(
            client,
            store,
            system=settings.system,
            sampling=settings.sampling,
            gateway=gateway,
            http=http,
        )
        self.ending = Ending(client, self._sessions)
        is_ascii = os.environ.get("TERM") == "linux" if settings.ascii is None else settings.ascii
        glyphs = ASCII if is_ascii else UNICODE
        self.deck = Deck(self._sessions, glyphs)
        self.set_class(is_ascii, "-ascii")
        # Textual 8.2 has filters for drawing, and no public way to add one.
        if is_ascii:
            self._filters.append(AsciiOnly())
        if self.console.color_system == "256":
            self._filters.append(EightBitColors(lambda: self.theme_variables))
        own = own or OwnSettings(OwnFile(settings.data_dir), settings)
        self._preferences = Preferences(self, self.deck, client, settings, own)

    def get_driver_class(self) -> type[Driver]:
        driver = super().get_driver_class()
        if driver.__name__ == "LinuxDriver":
            from app.screens.terminal import TerminalDriver

            return TerminalDriver
        return driver

    def get_css_variables(self) -> dict[str, str]:
        self.theme_variables = readable(super().get_css_variables())
        return self.theme_variables

    def get_default_screen(self) -> Screen[None]:
        return self.deck

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Inside the context, a signal ends the interface as the user would. It begins before the
        terminal is touched, because a terminal that is gone sends a SIGHUP at once."""
        # No key sends SIGINT here, but another program may. If it were left to asyncio, the program
        # would end with code 0. Windows has no SIGHUP.
        names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        before = {name: signal.signal(getattr(signal, name), self._hear) for name in names}
        try:
            yield
        finally:
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._asked = self._asked or ExitCode(128 + number)
        if self._leaving is not None:
            self._leaving()

    def on_load(self) -> None:
        loop = asyncio.get_running_loop()

        def leave() -> None:
            with suppress(RuntimeError):  # it is over
                loop.call_soon_threadsafe(self._leave_as_asked)

        self._leaving = leave
        self._leave_as_asked()

    def _leave_as_asked(self) -> None:
        if self._asked is not None:
            self._leave(self._asked)

    def on_mount(self) -> None:
        self.app_suspend_signal.subscribe(self, lambda _: self.on_app_blur())
        self.app_resume_signal.subscribe(self, lambda _: self._resume())

    def _resume(self) -> None:
        self.on_app_focus()
        self.refresh(layout=True)  # the shell has drawn over the screen

    def on_ready(self) -> None:
        if self._pinned:
            self._client.pin("system", self._pinned)
        # The screen is painted; from here on the engine's thread may import torch.
        self.models.start()
        self._watch()
        self.set_interval(LOOK_SECONDS, self._watch)

    def _watch(self) -> None:
        """End the application if the engine has crashed; `run` raises the reason."""
        try:
            check_engine(self._client)
        except EngineCrashError as error:
            log.critical("the engine crashed: %s", error)
            self.crash = self.crash or error
            self.exit(return_code=ExitCode.CRASHED)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, (events.Key, events.MouseDown, events.Paste)):
            self.deck.pump.attend()
        await super().on_event(event)

    def post_display_hook(self) -> None:
        self.deck.pump.frames += 1

    def on_app_blur(self) -> None:
        self.deck.pump.seen = False

    def on_app_focus(self) -> None:
        self.deck.pump.seen = True

    def get_key_display(self, binding: Binding) -> str:
        # Textual shows Enter as a sign that few people know and fewer fonts have.
        return "enter" if binding.key == "enter" else super().get_key_display(binding)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        if screen is self.deck:
            yield from self._commands()

    def _commands(self) -> Iterator[SystemCommand]:
        # Actions first: choices, such as policies and panels, are found by their names.
        if self.models.is_loading:
            back = "The previous model is loaded again"
            yield SystemCommand("Stop loading", back, self.action_stop_loading)
        yield from palette(self.deck)
        named = "A name, a folder, a file or a hub id"
        yield SystemCommand("Load model…", named, self.action_load_model)
        keys = by_action(self, self)
        yield entry("Settings…", self.action_settings, self, key=keys.get("settings"))
        yield SystemCommand("Theme…", "The colours", partial(self.action_settings, "theme"))
        yield entry("Help", self.action_help, self, key=keys.get("help"))
        yield entry("Quit", self.action_quit, self, key=keys.get("quit"))
        yield from self._quantizing()
        yield from choices(self.deck)

    @on(Deck.ModelWanted)
    def load_named(self, event: Deck.ModelWanted) -> None:
        """Load a named model, unless it is known that it cannot be loaded."""
        self._load(event.wish)

    def _load(self, wish: ModelWish) -> None:
        if refusal := self.models.refusal(wish):
            self.notify(refusal, severity="warning", timeout=10)
        else:
            self.models.to(wish)

    def action_load_model(self) -> None:
        """Choose another model to load."""
        try:
            entries = self.models.entries()
        except EngineError as error:
            self.notify(error.message, severity="error")
            entries = []

        def switch(wish: ModelWish | None) -> None:
            if wish is not None:
                self.models.to(wish)

        self.push_screen(LoadModel(entries, self.models.refusal), switch)

    def _quantizing(self) -> Iterator[SystemCommand]:
        """A command for each width to which the loaded model's weights can be quantized."""
        card = None if self.models.is_loading else self.models.card
        for width in QUANTIZATIONS:
            wish = ModelWish("", width)
            if card is not None and card.quantize == width:
                now = in_full(card) or "weights as they are stored"
                does, run = f"Now: {now}", partial(self.notify, f"So it is: {now}.")
            else:
                refusal = self.models.refusal(wish)
                does = f"Not here: {refusal}" if refusal else _RELOADS
                run = partial(self._load, wish)
            title = f"Quantize weights: {width}" + (" (as stored)" if width == "none" else "")
            yield SystemCommand(title, does, run)

    def action_stop_loading(self) -> None:
        """Cancel the load of a model; the one before comes back."""
        if back := self.models.stop():
            self.notify(f"Loading is cancelled; {back} comes back.")
        else:
            self.notify("No model is being loaded.", severity="warning")

    def action_help(self) -> None:
        """Open help about where the focus is; where it is open, close it."""
        if isinstance(self.screen, HelpScreen):
            self.screen.dismiss()
        else:
            places = self.deck.places
            self.push_screen(HelpScreen(help_sections(self, places), help_notes(self, places)))

    def action_settings(self, words: str = "") -> None:
        """Open the settings, with `words` as the search."""
        if not isinstance(self.screen, (ChangeSettings, PressKey)):
            self.push_screen(ChangeSettings(self._preferences, words))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if not self._screen_stack:
            return True
        if action == "command_palette":
            return self.screen is self.deck  # dialogs have no use for it
        # While a dialog asks for a key, global keys do not act, so that they can be chosen.
        return not isinstance(self.screen, PressKey)

    def action_suspend_process(self) -> None:
        """Suspend to the shell. The engine stops with the interface until `fg`."""
        if self._driver is None or not self._driver.can_suspend or not can_suspend():
            self.notify("There is no shell that could continue the program.", severity="warning")
            return
        log.info("suspended")
        self._suspend_signal()
        suspend()

    def action_help_quit(self) -> None:
        """Show which key ends the program. Ctrl+C does this where nothing is selected."""
        key, copy = key_of("quit", self, self), self.deck.user.key_of("chat.copy_selection")
        self.notify(f"{key} ends the program; {copy} copies where text is selected.")

    @on(Transcript.CopyWanted)
    def copy(self, event: Transcript.CopyWanted) -> None:
        self.copy_to_clipboard(event.text)
        self.notify(f"Copied the {event.what}, {len(event.text):,} characters.")

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,
    ) -> None:
        """Show a message for a moment. Nothing in it is markup, for titles and file names may have
        brackets."""
        message = "\n".join(map(UNICODE.fit, message.split("\n")))
        super().notify(message, title=title, severity=severity, timeout=timeout, markup=False)

    async def action_quit(self) -> None:
        """Stop the replies, end the engine and leave."""
        self._leave(ExitCode.OK)

    def _leave(self, code: ExitCode) -> None:
        self.run_worker(self._quit(code))

    async def _quit(self, code: ExitCode) -> None:
        if not self.ending.has_begun:
            self.notify(self.ending.news)
            await self.ending.run()
            self.exit(return_code=code)

    def store_replies(self) -> None:
        """Store the replies so far, while the loop hangs."""
        self._sessions.close_all()

    def restore_terminal(self) -> None:
        """Restore the terminal for the shell while the loop hangs."""
        restore = getattr(self._driver, "restore", None)
        if restore is not None:
            restore()

    def _handle_exception(self, error: Exception) -> None:
        """Keep the exception that crashed the application, for `run` to raise.

        Textual 8.2 has no hook for a crash, so this uses two of its private names. Textual itself
        would print the traceback, with the values of all variables.
        """
        self.crash = self.crash or error
        super()._handle_exception(error)
        self._exit_renderables.clear()


def run(
    client: EngineClient,
    store: Store,
    settings: Settings,
    load: LoadRequest,
    gateway: MqttSide | None = None,
    own: OwnSettings | None = None,
    http: HttpSide | None = None,
    kind: type[Tui] = Tui,
) -> int:
    """Run the interface until the user leaves; returns the exit code.

    The screen is painted first. Then the engine loads the model; at the end it is shut down.
    Gateways are only shown: the caller starts and closes them.

    Args:
        kind: of application.

    Raises:
        SettingsError: the theme is unknown, or the name of a key is.
        BaseException: the application crashed. The terminal is restored by then.
    """
    read_alt_keys()
    try:
        app = kind(client, store, settings, load, gateway, own, http)
    except BaseException:
        client.shutdown()
        raise
    with app.hearing(), last_call(app.store_replies), last_call(app.restore_terminal):
        try:
            app.run()
        finally:
            app.ending.complete()
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0


def can_suspend() -> bool:
    """Whether a shell would notice that the program has stopped, and could continue it.

    It would not if the terminal runs nothing but the program, as a window of tmux may.
    """
    if sys.platform == "win32":
        return False
    group, session = os.getpgrp(), os.getsid(0)
    try:
        above = psutil.Process().parent()
        while above is not None and os.getpgid(above.pid) == group:
            above = above.parent()  # make and scripts stop with the program
        return above is not None and os.getsid(above.pid) == session
    except (psutil.Error, OSError):
        return False


def suspend() -> None:
    """Stop the program and its process group, such as make, until the shell continues them."""
    os.killpg(0, signal.SIGTSTP)
