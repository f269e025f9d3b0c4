"""ChatSettings: with what a chat is asked, where that comes from, and all of it in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.api.structure import Structure
from widgets.line import shorten

THINKING = "enable_thinking"
ARGUMENTS = "chat_template_kwargs"
NAMES = tuple(f.name for f in fields(SamplingParams))
STARTED = "command line or config"
ENGINE = "the engine's"

_SYSTEM_WIDTH = 512  # no terminal shows more; the line cuts it where it has no room
_VALUE_WIDTH = 16
_PLAIN = SamplingParams()


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a chat states for itself.

    Attributes:
        sampling: replaces defaults by name (`engine.api.sampling.SamplingParams`).
    """

    system: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a chat states nothing.

    Attributes:
        card: of the model; None while none is there.
        started: what the program was started with, which replaces the model's.
    """

    card: ModelCard | None
    started: Mapping[str, object]

    def value(self, name: str) -> object:
        return getattr(_params(self.card).override(self.started), name)

    def source(self, name: str) -> str:
        """Where the value comes from, in words; empty where the model, which is not there yet, has
        it."""
        if name in self.started:
            return STARTED
        if self.card is None:
            return ""
        if self.card.sampling_source and getattr(self.card.sampling, name) != getattr(_PLAIN, name):
            return self.card.sampling_source
        return ENGINE

    def check(self, settings: ChatSettings) -> None:
        """Raises InvalidRequestError if values are wrong, or do not go together."""
        _params(self.card).override({**self.started, **settings.sampling})

    def line(self, model: str, settings: ChatSettings) -> str:
        """The settings in one line: the temperature, what differs from the model's defaults, and
        the system prompt. That one comes last, for it takes what room there is, and the end may be
        cut off."""
        model_has = _params(self.card)
        holds = model_has.override({**self.started, **settings.sampling})
        parts = [model]
        if self.card is not None or "temperature" in {**self.started, **settings.sampling}:
            parts.append(f"temp {holds.temperature:g}")
        thinks = holds.chat_template_kwargs.get(THINKING)
        if isinstance(thinks, bool) and holds.chat_template_kwargs != (
            model_has.chat_template_kwargs
        ):
            parts.append(f"thinking {'on' if thinks else 'off'}")
        for name in NAMES:
            value = getattr(holds, name)
            if name == "temperature" or value == getattr(model_has, name):
                continue
            if name == ARGUMENTS:
                value = {key: one for key, one in value.items() if key != THINKING}
                if not value:
                    continue
            parts.append(f"{name} {shorten(as_text(name, value), _VALUE_WIDTH)}")
        if settings.system:
            parts.append(shorten(f"system: {' '.join(settings.system.split())}", _SYSTEM_WIDTH))
        return " · ".join(part for part in parts if part)


def as_text(name: str, value: object) -> str:
    """A value as `read` takes it, in one line."""
    if name == "stop" and isinstance(value, (tuple, list)) and len(value) == 1:
        only = str(value[0])
        # A text that reads as JSON, that white space begins or ends, or that a line cannot show,
        # is quoted.
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
    """The value that a text states: as JSON writes it, or the text itself."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if name == "stop" and not isinstance(value, list):
        return [value if isinstance(value, str) else text]
    return value


def check_one(name: str, value: object) -> None:
    """Raises InvalidRequestError if a value is wrong by itself."""
    # The smallest output is checked against the largest one, which another field states.
    SamplingParams().override({name: value})


def read_thinking(text: str) -> bool:
    """Raises InvalidRequestError if it is neither on nor off."""
    if text.lower() not in ("on", "off"):
        raise InvalidRequestError(f"thinking is {text!r}; it must be on or off", THINKING)
    return text.lower() == "on"


def _params(card: ModelCard | None) -> SamplingParams:
    return _PLAIN if card is None else card.sampling
