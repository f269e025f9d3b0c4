"""What the measuring commands have in common: a progress bar, and files that may not be written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.plain import is_terminal
from app.process import StreamError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A block that writes there.

    Raises:
        StreamError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise StreamError(f"{path} cannot be written: {error.strerror}") from error


def progress_bar() -> Progress:
    """A bar with the time that is left, where a person looks at standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not is_terminal(sys.stderr),
    )
