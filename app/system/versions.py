"""Versions of batchdeck and of what it stands on, without importing any of it."""

from __future__ import annotations

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


def version(package: str) -> str:
    """The installed version; empty if there is none."""
    # Not at the top: it takes a quarter of the time in which `tui --help` answers.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
