"""The policies that exist, by name: ours, and those that were registered."""

from __future__ import annotations

import importlib
import inspect

from engine.api.errors import InvalidConfigError
from engine.scheduling.composer import Policy
from engine.scheduling.policies.dynamic import Dynamic
from engine.scheduling.policies.orca import Orca
from engine.scheduling.policies.prefill_first import PrefillFirst
from engine.scheduling.policies.slo import Slo
from engine.scheduling.policies.stall_free import StallFree
from engine.scheduling.policies.static import Static

DEFAULT = StallFree.name
POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (StallFree, PrefillFirst, Orca, Dynamic, Static, Slo)
}


def policy_names() -> tuple[str, ...]:
    return tuple(POLICIES)


def policy_meanings() -> dict[str, str]:
    """The first line of each policy's description, by its name."""
    described = {name: inspect.getdoc(policy) or "" for name, policy in POLICIES.items()}
    return {name: text.partition("\n")[0] for name, text in described.items()}


def register(path: str) -> str:
    """Register a user's own policy, given as `module:Class`; returns its name.

    Raises:
        InvalidConfigError: there is no such class, or it is not a policy.
    """
    module_name, _colon, class_name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # The module is the user's: importing it may raise anything.
        raise InvalidConfigError(
            f"policy is {path!r}; it could not be loaded: {type(error).__name__}: {error}", "policy"
        ) from error
    if not (inspect.isclass(found) and issubclass(found, Policy)) or inspect.isabstract(found):
        raise InvalidConfigError(
            f"policy is {path!r}; {class_name} must be a class that derives from "
            "engine.scheduling.composer.Policy and has a method compose",
            "policy",
        )
    name = getattr(found, "name", "")
    if not isinstance(name, str) or not name or POLICIES.get(name, found) is not found:
        raise InvalidConfigError(
            f"policy is {path!r}; its name is {name!r}, which must be a name of its own beside "
            f"{', '.join(POLICIES)}",
            "policy",
        )
    POLICIES[name] = found
    return name
