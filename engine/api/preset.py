"""Preset: settings of a chat under a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Preset:
    """What a chat is set to when the preset is applied.

    Attributes:
        system: the system prompt; empty for none.
        sampling: replaces defaults by name (`engine.api.sampling.SamplingParams`).
    """

    name: str
    system: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict, hash=False)
