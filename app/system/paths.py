"""Paths as settings state them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

CRASHES = "crashes"
"""The folder of crash reports, beside the store."""


def _expand(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) else value


Location = Annotated[Path, BeforeValidator(_expand)]
"""A path; ~ in it is the person's home folder."""
