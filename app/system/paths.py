"""Paths in settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

CRASHES = "crashes"
"""The folder of crash reports, beside the store."""


def _expand(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError("the home folder of this user is not known; write the path out") from None


Location = Annotated[Path, BeforeValidator(_expand)]
"""A path; ~ in it is the user's home folder."""
