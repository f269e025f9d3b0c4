"""SettingsActions: changes the settings of a chat, and keeps them as presets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from app.screens.chats.chat import ChatPane
from app.screens.chats.chat_settings import (
    ARGUMENTS,
    THINKING,
    ChatSettings,
    as_text,
    check_one,
    read,
    read_thinking,
)
from app.screens.chats.sessions import SessionList
from app.screens.deck.dialogue import Dialogue
from app.screens.dialogs.dialog import Named, PickPreset
from app.screens.dialogs.edit_settings import EditSettings
from app.screens.feeds.engine_watch import EngineWatch
from app.store.database import StoreError
from engine.api.errors import InvalidRequestError
from engine.api.preset import Preset


@dataclass(eq=False)
class SettingsActions:
    """Acts on the settings of the chat on view. A preset of the user replaces one of models.toml
    with the same name.

    A method that returns False has refused, with a message to the user.
    """

    _user: Dialogue
    _sessions: SessionList
    _engine: EngineWatch
    _pane: ChatPane

    def ask(self) -> None:
        """Open the dialog for the settings."""
        session = self._sessions.current
        if session.refusal:
            self._user.refuse(session.refusal)
            return
        defaults = self._sessions.defaults(self._engine.card)
        dialog = EditSettings(session.settings, defaults, self._sessions.system)
        self._user.ask(dialog, self.configure)

    def configure(self, settings: ChatSettings) -> bool:
        """Change the settings, from the next turn on; False if they could not be stored."""
        is_kept = False
        with self._user.errors_shown():
            self._sessions.configure(self._sessions.current, settings)
            is_kept = True
        self._pane.update()
        return is_kept

    # One setting, by a line.

    def set_system(self, text: str) -> bool:
        return self._change(ChatSettings(text, self._sessions.current.settings.sampling))

    def set_thinking(self, text: str) -> bool:
        with self._user.errors_shown():
            value = read_thinking(text) if text else None
            card = self._engine.card
            if value is not None and card is not None and not card.switches_thinking:
                raise InvalidRequestError("This model's chat template has no such switch.")
            held = self._sessions.defaults(card).value(ARGUMENTS)
            settings = self._sessions.current.settings
            stated = settings.sampling.get(ARGUMENTS, held)
            assert isinstance(stated, dict)
            arguments = {k: v for k, v in stated.items() if k != THINKING}
            if value is not None:
                arguments[THINKING] = value
            sampling = {**settings.sampling, ARGUMENTS: arguments}
            return self._change(ChatSettings(settings.system, sampling))
        return False

    def set_sampling(self, name: str, text: str) -> bool:
        """Set a sampling parameter; an empty text restores its default."""
        settings = self._sessions.current.settings
        sampling = {key: value for key, value in settings.sampling.items() if key != name}
        with self._user.errors_shown():
            if text:
                sampling[name] = read(name, text)
                check_one(name, sampling[name])
            return self._change(ChatSettings(settings.system, sampling))
        return False

    def _change(self, settings: ChatSettings) -> bool:
        if refusal := self._sessions.current.refusal:
            self._user.refuse(refusal)
            return False
        with self._user.errors_shown():
            self._sessions.defaults(self._engine.card).check(settings)
            self.configure(settings)
            return True
        return False

    # Presets.

    def ask_preset_name(self) -> None:
        """Ask under which name to keep the settings."""
        self._user.ask_text("Name of the preset", "", self._save_preset)

    def _save_preset(self, name: str) -> None:
        """Keep the settings under a name; asks before a preset is replaced."""
        settings = self._sessions.current.settings
        preset = Preset(name, settings.system, settings.sampling)
        before = next((one for one in self._own if one.name == name), preset)
        if before == preset:
            self._store_preset(preset)
        else:
            self._user.confirm(
                f"Replace the preset {name}?", "replace", partial(self._store_preset, preset)
            )

    def pick_preset(self) -> None:
        """Show the presets, to apply one, rename it, delete it, or make it the preset of new
        chats."""
        own, default = self._own, self._default
        presets = own + [one for one in self._models if one.name not in {p.name for p in own}]
        if not presets:
            way = "“Save settings as preset…” in the palette keeps these settings."
            self._user.notify(f"There is no preset yet; {way}")
            return
        items = []
        for preset in presets:
            title = preset.name if preset in own else f"{preset.name} · models.toml"
            title += " · new chats begin with it" if preset.name == default else ""
            items.append(Named(preset.name, title, _described(preset)))

        def act(chosen: tuple[str, str]) -> None:
            verb, name = chosen
            if verb == "take":
                self.apply_preset(name)
            elif name not in {preset.name for preset in own}:
                self._user.refuse(
                    f"{name} is one of models.toml; apply it and save the settings under a name."
                )
            elif verb == "rename":
                self._ask_new_name(name)
            elif verb == "delete":
                also = " New chats begin with it." if name == default else ""
                question = f"Delete the preset {name} for good?{also}"
                self._user.confirm(question, "delete", partial(self._delete, name))
            else:
                self._set_default_preset("" if name == default else name)

        self._user.ask(PickPreset(items), act)

    def apply_preset(self, name: str) -> bool:
        """Set the chat to a preset."""
        named = {preset.name: preset for preset in (*self._models, *self._own)}
        if refusal := self._sessions.current.refusal:
            self._user.refuse(refusal)
            return False
        if name not in named:
            known = f"; there are {', '.join(sorted(named))}" if named else ""
            self._user.refuse(f"There is no preset {name!r}{known}.")
            return False
        preset = named[name]
        if self.configure(ChatSettings(preset.system, preset.sampling)):
            self._user.notify(f"The preset {name} holds from the next turn.")
        return True

    @property
    def _models(self) -> list[Preset]:
        return list(self._engine.card.presets) if self._engine.card is not None else []

    @property
    def _own(self) -> list[Preset]:
        with self._user.errors_shown():
            return self._sessions.store.presets.all()
        return []

    @property
    def _default(self) -> str:
        try:
            return self._sessions.store.presets.default()
        except StoreError:
            return ""  # `_own` has shown the error.

    def _ask_new_name(self, old: str) -> None:
        taken = {preset.name for preset in self._own} - {old}

        def rename(new: str) -> None:
            then = partial(self._rename, old, new)
            if new in taken:
                self._user.confirm(f"Replace the preset {new}?", "replace", then)
            else:
                then()

        self._user.ask_text(f"New name of the preset {old}", old, rename)

    def _rename(self, old: str, new: str) -> None:
        with self._user.errors_shown():
            self._sessions.store.presets.rename(old, new)

    def _store_preset(self, preset: Preset) -> None:
        with self._user.errors_shown():
            self._sessions.store.presets.save(preset)
            self._user.notify(f"Kept as the preset {preset.name}.")

    def _delete(self, name: str) -> None:
        with self._user.errors_shown():
            self._sessions.store.presets.delete(name)

    def _set_default_preset(self, name: str) -> None:
        with self._user.errors_shown():
            self._sessions.store.presets.set_default(name)
            preset = f"the preset {name}" if name else "no preset"
            self._user.notify(f"New chats begin with {preset}.")


def _described(preset: Preset) -> str:
    parts = [f"{name} {as_text(name, value)}" for name, value in preset.sampling.items()]
    if preset.system:
        parts.append(f"system: {preset.system}")
    return " · ".join(parts) or "the defaults"
