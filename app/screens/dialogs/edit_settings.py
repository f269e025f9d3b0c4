"""EditSettings: a dialog for the settings of a chat."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Label

from app.screens.chats.chat_settings import (
    ARGUMENTS,
    NAMES,
    THINKING,
    ChatSettings,
    Defaults,
    as_text,
    check_one,
    read,
    read_thinking,
)
from app.screens.dialogs.dialog import Dialog, Entry
from engine.api.errors import InvalidRequestError
from engine.api.sampling import SAMPLING_SPECS
from widgets.line_input import LinesInput

FIELDS = (THINKING, *NAMES)
_LABELS = {THINKING: "thinking"}
_UNKNOWN = "the chat template has no such switch"


class SystemPrompt(LinesInput):
    """The text that a chat begins with. Down leaves it at its end."""

    def action_cursor_down(self, select: bool = False) -> None:
        before = self.cursor_location
        super().action_cursor_down(select)
        if self.cursor_location == before and not select:
            self.screen.focus_next(Entry)


class EditSettings(Dialog[ChatSettings]):
    """Asks for the settings of a chat. The result is None if they stay as they are.

    Args:
        settings: as they are now.
        defaults: the values where a field is empty.
        system: the system prompt of new chats.
    """

    DEFAULT_CSS = """
    EditSettings {
        & .row { height: 1; }
        & .row > Label { width: 21; }
        & .row > Input { width: 14; }
        & .row > .hint { width: 1fr; padding: 0 0 0 1; }
        & .fault { display: none; color: $text-error; padding: 0 0 0 21; width: 1fr; }
        & .fault.-shown { display: block; }
        & TextArea {
            height: 4;
            padding: 0 1;
            background: $foreground 8%;
            &, &:focus { border: none; }
        }
        & #meaning { dock: bottom; width: 100%; height: 1; color: $foreground; }
    }
    """
    AUTO_FOCUS = "#temperature"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+s",
            "apply",
            "Apply",
            tooltip="Apply the settings of the chat",
            id="settings.apply",
            priority=True,
        ),
        Binding(
            "ctrl+r",
            "reset",
            "Reset all",
            tooltip="Reset changed settings",
            id="settings.reset",
            priority=True,
        ),
        # The list of fields, which has them too, would scroll.
        Binding("up", "step(-1)", "Field before", id="settings.before", priority=True),
        Binding("down", "step(1)", "Next field", id="settings.next", priority=True),
    ]
    GLOSS: ClassVar[dict[str, str]] = {
        "system prompt": "what the model reads before all messages",
        "thinking": "whether the model thinks before it answers",
        **{name: spec.meaning for name, spec in SAMPLING_SPECS.items()},
    }

    def __init__(self, settings: ChatSettings, defaults: Defaults, system: str) -> None:
        super().__init__()
        self._settings = settings
        self._defaults = defaults
        self._default_system = system
        self.system = SystemPrompt(settings.system, tab_behavior="focus", soft_wrap=True)
        self.system.cursor_blink = False
        self.fields = {name: Entry(id=name, compact=True) for name in FIELDS}
        self.faults = {name: Label(classes="fault", markup=False) for name in FIELDS}
        self.meaning = Label(id="meaning", markup=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False) as frame:
            frame.border_title = "Settings of this chat · they apply from the next turn"
            apply, reset, leave = map(self.key_of, ("apply", "reset", "dismiss(None)"))
            frame.border_subtitle = (
                f"Enter or {apply} applies · {reset} resets all · {leave} changes nothing"
            )
            yield Label("system prompt · empty for none")
            yield self.system
            for name in FIELDS:
                with Horizontal(classes="row"):
                    yield Label(_LABELS.get(name, name))
                    yield self.fields[name]
                    yield Label(self._hint(name), classes="hint", markup=False)
                yield self.faults[name]
            yield self.meaning

    def on_mount(self) -> None:
        card = self._defaults.card
        self.fields[THINKING].disabled = card is not None and not card.switches_thinking
        self._fill(self._settings)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Show the meaning of the field."""
        name = event.widget.id or ""
        label = "system prompt" if event.widget is self.system else _LABELS.get(name, name)
        self.meaning.update(self.GLOSS.get(label, ""))

    def action_step(self, places: int) -> None:
        """Go to another field."""
        if places > 0:
            self.focus_next(Entry)
        elif self.focused is next(field for field in self.fields.values() if not field.disabled):
            self.system.focus()
        else:
            self.focus_previous(Entry)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "step":
            # In the system prompt the arrow keys go from line to line.
            return isinstance(self.focused, Entry)
        return super().check_action(action, parameters)

    def action_reset(self) -> None:
        """Empty all fields, so that the defaults hold and nothing is wrong."""
        self._clear_faults()
        self._fill(ChatSettings(self._default_system))

    def on_input_submitted(self) -> None:
        self.action_apply()

    def action_apply(self) -> None:
        """Apply the settings if all of them are right; else show the error beside each."""
        self._clear_faults()
        sampling: dict[str, object] = {}
        wrong: list[str] = []
        for name in FIELDS:
            text = self.fields[name].value.strip()
            try:
                if text:
                    self._store_value(name, text, sampling)
            except InvalidRequestError as error:
                wrong.append(self._say(name, error))
        settings = ChatSettings(self.system.text.strip("\n"), sampling)
        if not wrong:
            try:
                self._defaults.check(settings)
            except InvalidRequestError as error:
                wrong.append(self._say(error.param or NAMES[0], error))
        if wrong:
            self.fields[wrong[0]].focus()
        else:
            self.dismiss(settings)

    def _store_value(self, name: str, text: str, sampling: dict[str, object]) -> None:
        if name == THINKING:
            base = self._defaults.value(ARGUMENTS)
            assert isinstance(base, dict)
            sampling[ARGUMENTS] = {**base, THINKING: read_thinking(text)}
            return
        value = read(name, text)
        check_one(name, value)
        if name == ARGUMENTS and isinstance(value, dict) and ARGUMENTS in sampling:
            switch = sampling[ARGUMENTS]
            assert isinstance(switch, dict)
            value = {**value, THINKING: switch[THINKING]}
        sampling[name] = value

    def _say(self, name: str, error: InvalidRequestError) -> str:
        fault = self.faults[name]
        fault.update(f"! {error.message}")
        fault.add_class("-shown")
        return name

    def _clear_faults(self) -> None:
        for fault in self.faults.values():
            fault.remove_class("-shown")

    def _fill(self, settings: ChatSettings) -> None:
        self.system.load_text(settings.system)
        stated = dict(settings.sampling)
        arguments = stated.get(ARGUMENTS)
        thinks = arguments.get(THINKING) if isinstance(arguments, dict) else None
        if isinstance(arguments, dict) and isinstance(thinks, bool):
            del stated[ARGUMENTS]
            if others := {key: one for key, one in arguments.items() if key != THINKING}:
                stated[ARGUMENTS] = others
        for name, field in self.fields.items():
            if name == THINKING:
                field.value = "" if not isinstance(thinks, bool) else "on" if thinks else "off"
            else:
                field.value = as_text(name, stated[name]) if name in stated else ""

    def _hint(self, name: str) -> str:
        defaults = self._defaults
        if name != THINKING:
            if not defaults.source(name):
                return "default as the model has it"
            value = defaults.value(name)
            shown = "none" if value in (None, (), {}) else as_text(name, value)
            return f"default {shown} · {defaults.source(name)}"
        if defaults.card is not None and not defaults.card.switches_thinking:
            return _UNKNOWN
        arguments = defaults.value(ARGUMENTS)
        thinks = arguments.get(THINKING) if isinstance(arguments, dict) else None
        if thinks is None:
            return "on or off · default as the chat template has it"
        return f"on or off · default {'on' if thinks else 'off'} · {defaults.source(ARGUMENTS)}"
