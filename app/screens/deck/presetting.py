"""Presetting: settings that the user keeps under a name, and those of the model."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual.binding import Binding, BindingType

from app.screens.chats.chat_settings import ChatSettings, as_text
from app.screens.deck.tuning import Tuning
from app.screens.dialogs.ask_text import AskText
from app.screens.dialogs.confirm import Confirm
from app.screens.dialogs.pick_named import Named
from app.screens.dialogs.pick_preset import PickPreset
from app.store.database import StoreError
from engine.api.preset import Preset


class Presetting(Tuning):
    """The part of the deck that deals with presets. A preset of the user goes before one of
    models.toml that has its name."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Before the prompt, which would take it for the letter.
        Binding(
            "alt+s",
            "presets",
            "Presets",
            tooltip="Settings kept under a name",
            show=False,
            id="chat.presets",
            priority=True,
        ),
    ]

    def action_save_preset(self) -> None:
        """Ask under which name to keep the settings of the chat on view."""

        def save(name: str | None) -> None:
            if name is not None:
                self.save_preset(name)

        self.app.push_screen(AskText("Name of the preset", ""), save)

    def save_preset(self, name: str) -> None:
        """Keep the settings of the chat on view under a name; asks before one is replaced."""
        settings = self.sessions.current.settings
        preset = Preset(name, settings.system, settings.sampling)
        before = next((one for one in self._own() if one.name == name), preset)
        if before == preset:
            self._keep_preset(preset, True)
        else:
            question = f"Replace the preset {name}?"
            self.app.push_screen(Confirm(question, "replace"), partial(self._keep_preset, preset))

    def action_presets(self) -> None:
        """Show the presets: one is applied, renamed, deleted, or made that of new chats."""
        own, default = self._own(), self._default()
        presets = own + [one for one in self._models() if one.name not in {p.name for p in own}]
        if not presets:
            way = "“Save settings as preset…” in the palette keeps these settings."
            self.notify(f"There is no preset yet; {way}")
            return
        items = []
        for preset in presets:
            title = preset.name if preset in own else f"{preset.name} · models.toml"
            title += " · new chats begin with it" if preset.name == default else ""
            items.append(Named(preset.name, title, _words(preset)))

        def act(chosen: tuple[str, str] | None) -> None:
            if chosen is None:
                return
            verb, name = chosen
            if verb == "take":
                self.apply_preset(name)
            elif name not in {preset.name for preset in own}:
                self.refuse(
                    f"{name} is one of models.toml; apply it and save the settings under a name."
                )
            elif verb == "rename":
                self._rename_preset(name)
            elif verb == "delete":
                also = " New chats begin with it." if name == default else ""
                question = f"Delete the preset {name} for good?{also}"
                self.app.push_screen(
                    Confirm(question, "delete"), partial(self._forget_preset, name)
                )
            else:
                self._begin_with("" if name == default else name)

        self.app.push_screen(PickPreset(items), act)

    def apply_preset(self, name: str) -> bool:
        """Set the chat on view to a preset; False if there is none, and the user has been told."""
        named = {preset.name: preset for preset in (*self._models(), *self._own())}
        if refusal := self.sessions.current.refusal:
            self.refuse(refusal)
            return False
        if name not in named:
            known = f"; there are {', '.join(sorted(named))}" if named else ""
            self.refuse(f"There is no preset {name!r}{known}.")
            return False
        preset = named[name]
        if self.configure(ChatSettings(preset.system, preset.sampling)):
            self.notify(f"The preset {name} holds from the next turn.")
        return True

    def _models(self) -> list[Preset]:
        return list(self.engine.card.presets) if self.engine.card is not None else []

    def _own(self) -> list[Preset]:
        try:
            return self.store.presets.all()
        except StoreError as error:
            self.notify(str(error), severity="error")
            return []

    def _default(self) -> str:
        try:
            return self.store.presets.default()
        except StoreError:
            return ""  # `_own` has told it.

    def _rename_preset(self, old: str) -> None:
        taken = {preset.name for preset in self._own()} - {old}

        def rename(new: str | None) -> None:
            if new in taken:
                question = f"Replace the preset {new}?"
                self.app.push_screen(Confirm(question, "replace"), partial(self._move, old, new))
            elif new is not None:
                self._move(old, new, True)

        self.app.push_screen(AskText(f"New name of the preset {old}", old), rename)

    def _move(self, old: str, new: str, sure: bool | None) -> None:
        if sure:
            try:
                self.store.presets.rename(old, new)
            except StoreError as error:
                self.notify(str(error), severity="error")

    def _keep_preset(self, preset: Preset, sure: bool | None) -> None:
        if not sure:
            return
        try:
            self.store.presets.save(preset)
        except StoreError as error:
            self.notify(str(error), severity="error")
        else:
            self.notify(f"Kept as the preset {preset.name}.")

    def _forget_preset(self, name: str, sure: bool | None) -> None:
        if sure:
            try:
                self.store.presets.delete(name)
            except StoreError as error:
                self.notify(str(error), severity="error")

    def _begin_with(self, name: str) -> None:
        try:
            self.store.presets.begin_with(name)
        except StoreError as error:
            self.notify(str(error), severity="error")
            return
        what = f"the preset {name}" if name else "no preset"
        self.notify(f"New chats begin with {what}.")


def _words(preset: Preset) -> str:
    parts = [f"{name} {as_text(name, value)}" for name, value in preset.sampling.items()]
    if preset.system:
        parts.append(f"system: {preset.system}")
    return " · ".join(parts) or "the defaults"
