"""Downloads: fetches models to this machine, lists the local ones, and removes them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from datetime import datetime

import typer

from app.process.columns import align
from app.process.console import loading_bar, progress_bar
from app.process.exits import ExitCode
from app.process.process import complain, is_terminal, print_text
from app.process.serving import ModelLoadError
from app.settings.settings import Settings, SettingsError
from engine.api.errors import EngineError, ModelError
from engine.model.catalog import downloads
from engine.model.catalog.downloads import Download
from engine.model.catalog.registry import ModelEntry, Registry
from engine.model.files.size_text import format_bytes


def run_get(settings: Settings, name: str) -> int:
    """Fetch a model, unless it is here, and print where it is; returns the exit code.

    Raises:
        SettingsError: the registry is missing or broken, or there is no such model.
        ModelLoadError: it cannot be fetched.
    """
    entry = _find(settings, name)
    try:
        if entry.local_folder() is None:
            with progress_bar() as progress, loading_bar(progress, entry.name) as tell:
                downloads.fetch(entry, tell)
            downloads.mark_used(entry)
        found = downloads.find_download(entry)
    except ModelError as error:
        raise ModelLoadError(error.message) from None
    except KeyboardInterrupt:
        complain(
            f"interrupted; the downloaded part is kept, and `tui models get {name}` resumes it"
        )
        return ExitCode.INTERRUPTED
    place = entry.local_folder()
    if place is None:
        raise ModelLoadError(f"{entry.source} does not hold a model with its weights")
    size = f", {format_bytes(found.num_bytes)}" if found is not None else ""
    print_text(f"{entry.name} is here: {place}{size}")
    return ExitCode.OK


def run_list(settings: Settings, *, as_json: bool) -> int:
    """Print the models that were downloaded; returns the exit code.

    Raises:
        SettingsError: the registry is missing or broken.
        ModelLoadError: a folder cannot be read.
    """
    try:
        found = downloads.list_downloads(_registry(settings))
    except ModelError as error:
        raise ModelLoadError(error.message) from None
    if as_json:
        listed = [asdict(one) | {"folder": str(one.folder)} for one in found]
        print_text(json.dumps(listed, ensure_ascii=False, indent=2))
    else:
        print_text(to_table(found))
    return ExitCode.OK


def run_remove(settings: Settings, name: str, *, is_sure: bool) -> int:
    """Remove a model that was downloaded; returns the exit code.

    Args:
        is_sure: whether to skip the confirmation.

    Raises:
        SettingsError: the registry is missing or broken, there is no such model, or there is no
            terminal to confirm on.
    """
    entry = _find(settings, name)
    try:
        found = downloads.find_download(entry)
        if found is not None and not is_sure:
            if not is_terminal(sys.stdin):
                raise SettingsError(
                    "without a terminal nobody can confirm; --yes removes it unasked"
                )
            question = f"Remove {found.folder} ({format_bytes(found.num_bytes)})?"
            if not typer.confirm(question, err=True):
                return ExitCode.FAILED
        found = downloads.remove(entry)
    except ModelError as error:
        complain(error.message)
        return ExitCode.FAILED
    print_text(f"{entry.name} is removed, {format_bytes(found.num_bytes)} are free again")
    return ExitCode.OK


def to_table(found: list[Download]) -> str:
    """The downloads, and below them the incomplete ones."""
    if not found:
        return "No model has been downloaded; `tui models get NAME` fetches one of `tui models`."
    rows = [("name", "size", "last used", "folder")]
    rows += [
        (one.name, format_bytes(one.num_bytes), _time(one.used), str(one.folder)) for one in found
    ]
    lines = align(rows, (1,))
    partial = [one.name for one in found if not one.is_complete]
    lines += [""] * bool(partial)
    lines += [f"{name} is not complete; `tui models get {name}` resumes it" for name in partial]
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _registry(settings: Settings) -> Registry:
    try:
        return Registry.read(settings.models)
    except EngineError as error:
        raise SettingsError(error.message) from None


def _find(settings: Settings, name: str) -> ModelEntry:
    try:
        return _registry(settings).find(os.path.expanduser(name))
    except EngineError as error:
        raise SettingsError(error.message) from None
