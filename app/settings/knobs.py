"""Knobs in user input: values as texts, and policies from the user's own files."""

from __future__ import annotations

import sys
from dataclasses import fields

from engine.api.errors import InvalidConfigError
from engine.api.knob_spec import KnobValue
from engine.api.knobs import Knobs

_DEFAULTS = Knobs()
_NAMES = {field.name for field in fields(Knobs)}


def parse_knob(text: str) -> tuple[str, KnobValue]:
    """Parse `name=value`.

    The value has the knob's type. A policy in the form `module:Class` is loaded.
    `engine.api.knobs.change_knobs` checks names and ranges.

    Raises:
        InvalidConfigError: the text has another form, the value has another type, or the policy
            cannot be loaded.
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise InvalidConfigError(f"{text!r} is not a knob; it must be name=value", "knob")
    if name == "policy":
        return name, find_policy(value)
    default = getattr(_DEFAULTS, name) if name in _NAMES else ""
    try:
        if isinstance(default, bool):
            return name, {"true": True, "false": False}[value.lower()]
        return name, type(default)(value)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "an integer", float: "a number"}[type(default)]
        raise InvalidConfigError(f"{name} is {value!r}; it must be {wanted}", name) from None


def find_policy(stated: str) -> str:
    """The name of a policy. One in the form `module:Class` is loaded and registered.

    Raises:
        InvalidConfigError: it cannot be loaded, or is no policy.
    """
    if ":" not in stated:
        return stated
    from engine.scheduling.policies import register

    # "" is the current folder, where an installed script does not look for modules. It comes last,
    # so that no file in it hides a module of the program.
    if "" not in sys.path:
        sys.path.append("")
    return register(stated)
