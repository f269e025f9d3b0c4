"""Setting: the knobs that a run changes, and how to parse them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.settings.knobs import parse_knob
from engine.api.knob_spec import KnobValue
from engine.api.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the compared settings.

    Attributes:
        label: its name in reports.
        changes: values by knob; other knobs keep the testbed's values.
    """

    label: str
    changes: Mapping[str, KnobValue]


def parse_settings(compared: Sequence[str], common: Sequence[str]) -> list[Setting]:
    """The settings to run. Without comparisons it is one setting, labelled by its policy.

    Args:
        compared: for each setting, its knobs as `name=value`, separated by commas.
        common: knobs as `name=value` that apply to all settings, unless a setting overrides them.

    Raises:
        InvalidConfigError: a text has another form, or a value has another type than its knob.
            Ranges are checked by `Testbed.with_knobs`.
    """
    base = dict(map(parse_knob, common))
    if not compared:
        return [Setting(str(base.get("policy", Knobs().policy)), base)]
    return [
        Setting(text, base | dict(parse_knob(part) for part in text.split(",")))
        for text in compared
    ]


def of_policies(policies: str, common: Sequence[str]) -> list[Setting]:
    """A setting for each named policy (separated by commas), labelled by the policy.

    Raises:
        InvalidConfigError: as in `parse_settings`.
    """
    named = [name.strip() for name in policies.split(",")]
    settings = parse_settings([f"policy={name}" for name in named], common)
    return [replace(setting, label=name) for setting, name in zip(settings, named, strict=True)]
