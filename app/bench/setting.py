"""Setting: knobs of one run, and the texts they are stated as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.settings.knobs import parse_knob
from engine.api.knob_spec import KnobValue
from engine.api.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the settings that are compared."""

    label: str
    changes: Mapping[str, KnobValue]


def parse_settings(compared: Sequence[str], common: Sequence[str]) -> list[Setting]:
    """The settings to run; one, labelled by its policy, if nothing is to be compared.

    Args:
        compared: of each, `name=value` separated by commas.
        common: `name=value` that holds for all, and gives way to what is compared.

    Raises:
        InvalidConfigError: another form, or a value of another type than the knob's. Ranges are
            left to `Testbed.with_knobs`.
    """
    base = dict(map(parse_knob, common))
    if not compared:
        return [Setting(str(base.get("policy", Knobs().policy)), base)]
    return [
        Setting(text, base | dict(parse_knob(part) for part in text.split(",")))
        for text in compared
    ]
