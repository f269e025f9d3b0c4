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


@cache  # A read of the package's files takes 0.3 ms, and anybody may request `/version`.
def version(package: str) -> str:
    """The installed version; empty if there is none."""
    # This is not imported at the top, because it takes a quarter of the time of `tui --help`.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
