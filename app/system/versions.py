"""Versions of batchdeck and of its main dependencies, found without importing them."""

from __future__ import annotations

from functools import cache

PACKAGES = (
    "batchdeck",
    "torch",
    "transformers",
    "safetensors",
    "textual",
    "pydantic",
    "typer",
    "aiomqtt",
)


@cache  # Reading it takes 0.3 ms of the files of the package, and `/version` is anybody's to ask.
def version(package: str) -> str:
    """The installed version; empty if there is none."""
    # This is not imported at the top, for it takes a quarter of the time of `tui --help`.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
