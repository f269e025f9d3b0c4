"""Origin: the user, conversation and source of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The user, conversation and source of a request."""

    user: str = "local"
    conversation: str = ""
    source: str = "screen"
    title: str = ""
