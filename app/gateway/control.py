"""Control: changes the knobs by plain messages, for any front end that carries JSON."""

from __future__ import annotations

import json
import reprlib
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from engine.api.client import EngineClient
from engine.api.errors import EngineError, ErrorInfo, InvalidRequestError, UnavailableError
from engine.api.knob_spec import KnobRange
from engine.api.knobs import KnobChange, KnobState
from engine.api.snapshot import Snapshot

VERBS = ("set", "undo", "show")
PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.005
# An answer must not be larger than brokers forward, however long the texts and however many the
# changes are: some brokers forward at most 128 KiB.
MAX_TEXT = 4_096
MAX_CHANGES = 256
MAX_HISTORY_TEXT = 100
MAX_HISTORY = 20
MAX_HISTORY_BYTES = 16_384

Answer = dict[str, object]


_PARTS = {
    "set": "it must be an object of knobs and their values",
    "undo": "it must be true",
    "show": "it must be true",
    "who": "it must be text of 1 to 100 printable characters",
}
_VALUE = f"it must be a number, true, false or text of printable characters, at most {MAX_TEXT}"


def _check_value(value: Any) -> Any:
    # History and panels show texts: they must not contain terminal controls, and must be valid
    # Unicode.
    if not isinstance(value, (bool, int, float, str)) or (
        isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_TEXT)
    ):
        raise ValueError(_VALUE)
    return value


class ControlMessage(BaseModel):
    """A message that changes knobs. It has exactly one of `set`, `undo` and `show`.

    Attributes:
        set: new values by knob. The engine checks their types and ranges.
        undo: undoes the last change.
        show: changes nothing, and requests the state of the knobs.
        who: the author of the change in the history; by default the front end's name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    set: (
        Annotated[
            dict[str, Annotated[Any, AfterValidator(_check_value)]],
            Field(max_length=MAX_CHANGES),
        ]
        | None
    ) = None
    undo: Literal[True] | None = None
    show: Literal[True] | None = None
    who: Annotated[str | None, Field(min_length=1, max_length=100)] = None

    @model_validator(mode="after")
    def _one(self) -> ControlMessage:
        if sum(getattr(self, verb) is not None for verb in VERBS) != 1:
            raise ValueError
        return self

    @field_validator("who")
    @classmethod
    def _check_who(cls, who: str | None) -> str | None:
        return who if who is None else _check_value(who)


def read_control(line: bytes) -> dict[str, object] | None:
    """The control message in a line, or None if the line has none.

    A line is a control message if it is a JSON object whose keys are one verb and, optionally,
    `who`. Any other line is text for the model, even if it is JSON.
    """
    try:
        message = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    is_one = isinstance(message, dict) and len(message) == 1 + ("who" in message)
    return message if is_one and any(verb in message for verb in VERBS) else None


class Control:
    """Answers control messages over an engine.

    Args:
        name: the front end's name, which the history records for changes without `who`.
        clock, sleep: the time in seconds, and a pause of so many, for waiting until the engine has
            applied a change.
    """

    def __init__(
        self,
        client: EngineClient,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._name = name
        self._clock = clock
        self._sleep = sleep

    def answer(self, message: object) -> Answer:
        """Execute a message, and answer with the resulting state of the knobs, as plain data for
        JSON.

        An invalid message changes nothing, and the answer has the reason. This never raises. It
        waits until the engine has applied a change, which happens between two steps.
        """
        try:
            return knob_state(self._obey(_parse(message)))
        except EngineError as error:
            return refusal(error.info())

    def _obey(self, message: ControlMessage) -> Snapshot:
        who = message.who or self._name
        before = self._client.snapshot()
        if message.undo:
            self._client.undo_knobs(who)
        # An empty change makes even an idle engine publish the state of its knobs.
        knobs = self._client.set_knobs(message.set or {}, who)
        deadline = self._clock() + PATIENCE_SECONDS
        # The change shows within two steps, unless others change the same knobs meanwhile; then the
        # newest snapshot at the deadline will do.
        while (snapshot := self._client.snapshot()) is before or not (
            snapshot and all(s.requested == getattr(knobs, s.name) for s in snapshot.knobs)
        ):
            if self._clock() >= deadline:
                break
            self._sleep(_POLL_SECONDS)
        if snapshot is None:
            raise UnavailableError("no model is loaded")
        return snapshot


def _parse(message: object) -> ControlMessage:
    """Check a message.

    Raises:
        InvalidRequestError: it is invalid; the error says how in one sentence.
    """
    try:
        return ControlMessage.model_validate(message)
    except ValidationError as error:
        raise InvalidRequestError(*_fault(error.errors()[0])) from None


def _fault(detail: ErrorDetails) -> tuple[str, str | None]:
    """Pydantic's error as a sentence and the name of the part at fault."""
    place, value = detail["loc"], detail["input"]
    if not place:
        return f"a message must be an object with exactly one of {', '.join(VERBS)}", None
    name = str(place[0])
    if name not in _PARTS:
        return f"{name} is not part of a message; allowed are {', '.join(_PARTS)}", name
    shown = str(value).lower() if isinstance(value, bool) else reprlib.repr(value)
    if len(place) > 1:
        knob = str(place[1])
        return f"{knob} is {shown}; {_VALUE}", knob
    return f"{name} is {shown}; {_PARTS[name]}", name


def refusal(error: ErrorInfo) -> Answer:
    """An answer that says that nothing was changed, and why."""
    info = {"type": error.type, "message": error.message, "param": error.param}
    return {"ok": False, "error": info}


def knob_state(snapshot: Snapshot) -> Answer:
    """An answer with the state of the knobs, and who made the last changes. Long texts in those
    changes are shortened."""
    return {
        "ok": True,
        "knobs": {state.name: _knob(state) for state in snapshot.knobs},
        "history": _history(snapshot),
    }


def _history(snapshot: Snapshot) -> list[dict[str, object]]:
    """As many of the last changes as fit, the newest last."""
    shown: list[dict[str, object]] = []
    room = MAX_HISTORY_BYTES
    for change in reversed(snapshot.knob_history[-MAX_HISTORY:]):
        entry = _change(change, snapshot.time)
        room -= len(json.dumps(entry))
        if room < 0:
            break
        shown.append(entry)
    return shown[::-1]


def _short(value: object, most: int) -> object:
    """The value; a text longer than `most` characters loses its middle."""
    if not isinstance(value, str) or len(value) <= most:
        return value
    half = most // 2
    return f"{value[: half - 1]}…{value[-half:]}"


def _knob(state: KnobState) -> dict[str, object]:
    return {
        "requested": state.requested,
        "effective": state.effective,
        "note": state.note,
        "allowed": _allowed(state.allowed),
        "unit": state.spec.unit,
    }


def _allowed(allowed: KnobRange) -> dict[str, object]:
    if allowed.choices:
        return {"choices": list(allowed.choices)}
    return {"form": allowed.form} if allowed.form else {"low": allowed.low, "high": allowed.high}


def _change(change: KnobChange, now: float) -> dict[str, object]:
    changed = {
        name: {
            "before": _short(before, MAX_HISTORY_TEXT),
            "after": _short(after, MAX_HISTORY_TEXT),
        }
        for name, (before, after) in change.changed.items()
    }
    return {
        "ago_s": round(now - change.time, 3),
        "step": change.step,
        "who": change.who,
        "undoes": change.undoes,
        "changed": changed,
    }
