"""Preset: named settings of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Preset:
    """Settings applied to a chat.

    Attributes:
        system: the system prompt; empty for none.
        sampling: overrides of the defaults by name (`engine.api.sampling.SamplingParams`).
    """

    name: str
    system: str = ""
    sampling: Mapping[str, object] = field(default_factory=dict, hash=False)
