"""Policies: what each of them does, in a sentence, for those who choose one."""

from __future__ import annotations

import inspect


def policy_meanings() -> dict[str, str]:
    """The first line of each policy's description, by its name."""
    from engine.scheduling.policies import POLICIES

    described = {name: inspect.getdoc(policy) or "" for name, policy in POLICIES.items()}
    return {name: text.partition("\n")[0] for name, text in described.items()}
