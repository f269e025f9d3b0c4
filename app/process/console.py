"""Console: common output of the measuring commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.process.process import StreamError, is_dumb, is_terminal
from app.settings.settings import SettingsError
from engine.serving.loading import Progress as Loading


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes to a path.

    Raises:
        StreamError: the block cannot write.
    """
    try:
        yield
    except OSError as error:
        raise StreamError(f"{path} cannot be written: {error.strerror}") from error


def write_json(data: Mapping[str, object], path: Path) -> None:
    """Write data to a file as JSON.

    Raises:
        StreamError: the file cannot be written.
    """
    with writing(path):
        text = json.dumps(data, indent=2, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")


def check_folder(flag: str, path: Path) -> None:
    """Check, before anything is measured, that the folder of a file exists.

    Raises:
        SettingsError: it does not; the message begins with the flag that states the file.
    """
    if not os.path.isdir(path.parent):
        raise SettingsError(f"{flag}: there is no folder {path.parent}")


def progress_bar() -> Progress:
    """A bar with the remaining time. It shows only if standard error is a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not is_terminal(sys.stderr) or is_dumb(),
    )


@contextmanager
def loading_bar(progress: Progress, model: str) -> Iterator[Loading]:
    """A bar with the progress of loading a model, in MiB."""
    bar = progress.add_task(model, total=None)

    def tell(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        progress.update(
            bar,
            description=f"{model}: {detail}" + (", MiB" if total_bytes else ""),
            completed=loaded_bytes >> 20,
            total=total_bytes >> 20 or None,
        )

    try:
        yield tell
    finally:
        progress.remove_task(bar)
