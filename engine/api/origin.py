"""Origin: who asked, and from where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who asked, and from where."""

    user: str = "local"
    conversation: str = ""
    source: str = "screen"
    title: str = ""
