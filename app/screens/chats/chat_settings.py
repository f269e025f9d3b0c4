"""ChatSettings: system prompt and sampling of a chat, where they come from, and as one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.api.errors import InvalidRequestError
from engine.api.sampling import SAMPLING_SPECS, SamplingParams
from engine.api.status import ModelCard
from engine.api.structure import Structure
from widgets.line import shorten

THINKING = "enable_thinking"
ARGUMENTS = "chat_template_kwargs"
NAMES = tuple(SAMPLING_SPECS)
STARTED = "command line or config"
OURS = "batchdeck's, for chats"
ENGINE = "the engine's"
# The same in a word, beside a value in the line of settings.
_BRIEFLY = {STARTED: "config", OURS: "batchdeck", ENGINE: "engine"}
_OWN = "this chat"

_SYSTEM_WIDTH = 512  # no terminal shows more; the line cuts it where it has no room
_VALUE_WIDTH = 16
_PLAIN = SamplingParams()
_FIRST = ("temperature", ARGUMENTS)
_IN_LINE = (*_FIRST, *(name for name in NAMES if name not in _FIRST))


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings that a chat states for itself.

    Attributes:
        sampling: replaces defaults by name (`engine.api.sampling.SamplingParams`).
    """

    system: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The settings that apply where a chat states none.

    Attributes:
        card: card of the loaded model; None while no model is loaded.
        started: the settings that the program was started with, which replace the model's.
    """

    card: ModelCard | None
    started: Mapping[str, object]

    def value(self, name: str) -> object:
        return getattr(_params(self.card).override(self.started), name)

    def source(self, name: str) -> str:
        """The source of the value, in words; empty if it is the model's and no model is loaded
        yet."""
        if name in self.started:
            return STARTED
        if self.card is None:
            return ""
        if name in self.card.sampling_sources:
            return self.card.sampling_sources[name]
        is_ours = getattr(self.card.chat_sampling, name) != getattr(self.card.sampling, name)
        return OURS if is_ours else ENGINE

    def check(self, settings: ChatSettings) -> None:
        """Raises InvalidRequestError if values are wrong, or do not go together."""
        _params(self.card).override({**self.started, **settings.sampling})

    def line(self, model: str, settings: ChatSettings) -> str:
        """The settings in one line: the temperature, and all others that are stated or differ from
        plain sampling, ordered by their sources, the chat's own first. The system prompt comes
        last, because it takes the rest of the line, and its end may be cut off."""
        stated = {**self.started, **settings.sampling}
        holds = _params(self.card).override(stated)
        shown: dict[str, list[str]] = {_OWN: [], _BRIEFLY[STARTED]: []}
        for name in _IN_LINE:
            value = getattr(holds, name)
            is_temperature = name == "temperature" and self.card is not None
            if name in stated or is_temperature or value != getattr(_PLAIN, name):
                source = _OWN if name in settings.sampling else self.source(name)
                shown.setdefault(_BRIEFLY.get(source, source), []).extend(_in_words(name, value))
        values = [f"{', '.join(group)} ({source})" for source, group in shown.items() if group]
        parts = [model, *values]
        if settings.system:
            parts.append(shorten(f"system: {' '.join(settings.system.split())}", _SYSTEM_WIDTH))
        return " · ".join(part for part in parts if part)


def _in_words(name: str, value: Any) -> list[str]:
    """A value as the line has it."""
    if name == "temperature":
        return [f"temp {value:g}"]
    shown = []
    if name == ARGUMENTS:
        if isinstance(thinks := value.get(THINKING), bool):
            shown.append(f"thinking {'on' if thinks else 'off'}")
        value = {key: one for key, one in value.items() if key != THINKING}
        if not value:
            return shown
    return [*shown, f"{name} {shorten(as_text(name, value), _VALUE_WIDTH)}"]


def as_text(name: str, value: object) -> str:
    """A value as `read` takes it, in one line."""
    if name == "stop" and isinstance(value, (tuple, list)) and len(value) == 1:
        only = str(value[0])
        # A text is quoted if it could be read as JSON, begins or ends with white space, or cannot
        # be shown in a line.
        if only == only.strip() and only.isprintable() and read("stop", only) == [only]:
            return only
    if name == "logit_bias" and isinstance(value, tuple):
        value = dict(value)
    if isinstance(value, Structure):
        value = value.stated
    if isinstance(value, float) and float(short := f"{value:g}") == value:
        return short
    return json.dumps(value, ensure_ascii=False)


def read(name: str, text: str) -> object:
    """The value that a text states: parsed as JSON if possible, else the text itself."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if name == "stop" and not isinstance(value, list):
        return [value if isinstance(value, str) else text]
    return value


def check_one(name: str, value: object) -> None:
    """Check one value, without the other settings; raises InvalidRequestError if it is wrong."""
    # The smallest output is checked against the largest one, which another field states.
    SamplingParams().override({name: value})


def read_thinking(text: str) -> bool:
    """Raises InvalidRequestError if it is neither on nor off."""
    if text.lower() not in ("on", "off"):
        raise InvalidRequestError(f"thinking is {text!r}; it must be on or off", THINKING)
    return text.lower() == "on"


def _params(card: ModelCard | None) -> SamplingParams:
    return _PLAIN if card is None else card.chat_sampling
