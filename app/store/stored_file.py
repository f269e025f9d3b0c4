"""StoredFile: a file of lines that a user has uploaded, or a batch has written."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from enum import StrEnum, auto


class FileState(StrEnum):
    """The state of a file. Only a `WHOLE` one is visible."""

    FILLING = auto()
    WHOLE = auto()
    DELETED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """The properties of a file, without its lines.

    Attributes:
        number: identifies its lines in the store.
        name: its name at upload.
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
