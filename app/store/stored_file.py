"""StoredFile: a file of lines that somebody has put into the store, or got from a batch."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum, auto


class FileState(StrEnum):
    """Where a file stands. Only a `WHOLE` one is anybody's to see."""

    FILLING = auto()
    WHOLE = auto()
    DELETED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """What is known of a file beside its lines.

    Attributes:
        number: by which the store has its lines.
        name: under which it was uploaded.
        created, expires: seconds since the epoch; None never expires.
    """

    number: int
    id: str
    user: str
    name: str
    purpose: str
    num_bytes: int
    created: float
    expires: float | None


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"
