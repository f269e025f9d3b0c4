"""Preferences: the settings of the interface that a user changes. They apply at once, and are
stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from textual.app import App

from app.screens.bound import sign_of
from app.screens.deck.deck import Deck
from app.screens.feeds.alerts import with_unit
from app.screens.keys.key_groups import bindings_by_name, clash
from app.screens.settings.themes import NAMES, find_theme
from app.settings.alerts import KINDS, AlertRules
from app.settings.own_file import OwnSettings
from app.settings.settings import Settings, SettingsError
from engine.api.client import EngineClient
from engine.api.errors import EngineError
from engine.api.knobs import Knobs
from widgets.figures import duration
from widgets.panels.chat_row import YOU

OFF = "off"
CADENCES = {"usual": "as often as is useful", "frugal": "half as often, for a slow line or machine"}
TARGETS = {"ttft_target_ms": "Time to first token", "tpot_target_ms": "Time per output token"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """One setting of the interface.

    Attributes:
        table, name: the setting, as the configuration file has it.
        section: its group.
        label: its name, for people.
        meaning: an explanation; empty if the label suffices.
        value: as text.
        shown: the value for people, if it is another text.
        allowed: the range of values, if the value does not show it.
        choices: its values, if they are a few texts.
    """

    table: str
    name: str
    section: str
    label: str
    meaning: str
    value: str
    shown: str = ""
    allowed: str = ""
    choices: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """The question by which the user is asked for it."""
        return "; ".join(filter(None, (f"{self.label}: {self.meaning}", self.allowed)))

    @property
    def description(self) -> str:
        """Label, meaning and name, in one line."""
        return " · ".join((": ".join(filter(None, (self.label, self.meaning))), self.id))

    @property
    def id(self) -> str:
        """Its name in files and refusals."""
        return ".".join(filter(None, (self.table, self.name)))


class Preferences:
    """Applies and keeps the preferences of the user.

    Args:
        settings: those in force.
        own: keeps changes, and has the values without them.
    """

    def __init__(
        self, app: App[int], deck: Deck, client: EngineClient, settings: Settings, own: OwnSettings
    ) -> None:
        self._app = app
        self._deck = deck
        self._client = client
        self._own = own
        self._theme = settings.theme or NAMES[0]
        self._keys = dict(settings.keys)
        self._targets = dict(settings.knobs)
        names = bindings_by_name(app, deck.places)
        for name in self._keys:
            if name not in names:
                raise SettingsError(
                    f"keys.{name} is not a key; allowed are {', '.join(sorted(names))}"
                )
        app.set_keymap(self._keys)
        deck.pump.frugal = settings.cadence == "frugal"
        deck.pump.alerts.rules = settings.alerts

    def all(self) -> list[Preference]:
        """All preferences, as they are now."""
        pump = self._deck.pump
        cadence = "frugal" if pump.frugal else "usual"
        found = [
            Preference(
                table="",
                name="theme",
                section="Look",
                label="Theme",
                meaning="colours of the interface",
                value=self._theme,
                choices=NAMES,
            ),
            Preference(
                table="",
                name="cadence",
                section="Look",
                label="Screen updates",
                meaning=CADENCES[cadence],
                value=cadence,
                choices=tuple(CADENCES),
            ),
            *self._target_rows(),
            *self._alert_rows(pump.alerts.rules),
            *self._key_rows(),
        ]
        return found

    def change(self, table: str, name: str, text: str) -> str:
        """Change a preference to the value of a text; returns why that is refused, or an empty
        text."""
        try:
            value = self._apply(table, name, text)
            self._own.file.state(table, name, value)
        except (SettingsError, EngineError) as error:
            return str(error)
        return ""

    def reset(self, table: str, name: str) -> str:
        """Remove the change of a preference made here; returns why that is refused, or an empty
        text."""
        base = self._own.base
        plain: Mapping[str, object] = {
            "theme": base.theme or NAMES[0],
            "cadence": base.cadence,
            **{target: base.knobs.get(target, getattr(Knobs(), target)) for target in TARGETS},
        }
        try:
            if table == "keys":
                self._set_key(name, base.keys.get(name))
            elif table == "alerts":
                self._set_alert(name, getattr(base.alerts, name))
            else:
                self._apply(table, name, str(plain[name]))
            self._own.file.state(table, name, None)
        except (SettingsError, EngineError) as error:
            return str(error)
        return ""

    def stated_elsewhere(self, table: str, name: str) -> str:
        """The flag or variable that overrides the kept value; empty if there is none."""
        return self._own.fixed.get((table, name), "")

    def _apply(self, table: str, name: str, text: str) -> str | float:
        """Apply a change; returns the kept value."""
        if table == "keys":
            key = text.strip()
            if why := clash(self._app, self._deck.places, name, key):
                raise SettingsError(why)
            self._set_key(name, key)
            return key
        if table == "alerts":
            return self._set_alert(name, _limit_of(name, text))
        if table == "knobs":
            number = _number(TARGETS[name], text)
            self._client.set_knobs({name: number}, who=YOU)
            self._targets[name] = number
            return number
        if name == "theme":
            self._app.theme = find_theme(text)
            self._theme = text
        elif text in CADENCES:
            self._deck.pump.frugal = text == "frugal"
        else:
            raise SettingsError(f"cadence is {text!r}; allowed are {', '.join(CADENCES)}")
        return text

    def _set_key(self, name: str, key: str | None) -> None:
        if key is None:
            self._keys.pop(name, None)
        else:
            self._keys[name] = key
        self._app.set_keymap(self._keys)
        self._deck.update_key_hints()

    def _set_alert(self, name: str, limit: object) -> float | bool:
        rules = self._deck.pump.alerts.rules
        try:
            rules = AlertRules.model_validate(rules.model_dump() | {name: limit})
        except ValidationError as error:
            detail = error.errors()[0]
            reason = detail["msg"].replace("Input should", "it should")
            raise SettingsError(f"alerts.{name} is {detail['input']!r}; {reason}") from None
        self._deck.pump.alerts.rules = rules
        kept = getattr(rules, name)
        return False if kept is None else kept

    def _target_rows(self) -> list[Preference]:
        rows = []
        for name, label in TARGETS.items():
            knob = self._deck.engine.knob(name)
            value = knob.requested if knob else self._targets.get(name, getattr(Knobs(), name))
            rows.append(
                Preference(
                    table="knobs",
                    name=name,
                    section="Targets",
                    label=label,
                    meaning="replies with less are good",
                    value=f"{float(value):g}",
                    shown=duration(float(value) / 1000),
                    allowed="a number of ms",
                )
            )
        return rows

    def _alert_rows(self, rules: AlertRules) -> list[Preference]:
        rows = [
            Preference(
                table="alerts",
                name=kind.name,
                section="Alerts",
                label=kind.title,
                meaning=f"warns when {kind.meaning}; usual is {with_unit(kind, kind.default, 'g')}",
                value=OFF if (limit := getattr(rules, kind.name)) is None else f"{limit:g}",
                shown="" if limit is None else with_unit(kind, limit, "g"),
                allowed=f"a number ({kind.unit}), on or off",
            )
            for kind in KINDS
        ]
        bell = Preference(
            table="alerts",
            name="bell",
            section="Alerts",
            label="Bell",
            meaning="the terminal's bell rings with each alert",
            value="on" if rules.bell else OFF,
            choices=("on", OFF),
        )
        return [*rows, bell]

    def _key_rows(self) -> list[Preference]:
        return [
            Preference(
                table="keys",
                name=name,
                section=f"Keys · {bound.place}",
                label=bound.meaning,
                meaning="",
                value=(keys := self._keys.get(name, bound.keys)),
                shown=", ".join(sign_of(key.strip(), self._app) for key in keys.split(",")),
            )
            for name, bound in bindings_by_name(self._app, self._deck.places).items()
        ]


def _limit_of(name: str, text: str) -> float | bool:
    """The limit of an alert that a text states."""
    if text in ("on", OFF):
        return text == "on"
    if name == "bell":
        raise SettingsError(f"bell is {text!r}; it must be on or off")
    return _number(f"alerts.{name}", text, "a number, on or off")


def _number(name: str, text: str, wanted: str = "a number") -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise SettingsError(f"{name} is {text!r}; it must be {wanted}")
    return number
