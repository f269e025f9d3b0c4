"""UploadForm and FileQuery: requests to /v1/files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from app.gateway.http.protocol.payload import Payload, T, read
from app.gateway.stated import Name

HOUR = 3600
DAY = 24 * HOUR
# The default.
KEPT_SECONDS = 30 * DAY
MAX_FILES = 10_000
_ANCHOR = "created_at"
_EXPIRY = {
    "anchor": _ANCHOR,
    "seconds": f"an integer from {HOUR} to {KEPT_SECONDS}",
}
_NUMBERS = frozenset(("limit", "seconds"))


class Expiry(Payload):
    """How long a file is kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=HOUR, le=KEPT_SECONDS)]


def expiry_allowed(name: str) -> dict[str, str]:
    """The allowed values of an `Expiry` field, and of its members."""
    return {
        name: "an object with anchor and seconds",
        **{f"{name}.{part}": allowed for part, allowed in _EXPIRY.items()},
    }


class UploadForm(Payload):
    """A form with a file.

    Attributes:
        file: the name under which it is sent, once it has been read.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        "file": "a file with a request in each line",
        "purpose": "batch",
        **expiry_allowed("expires_after"),
    }

    file: Annotated[
        str, WithJsonSchema({"type": "string", "format": "binary", "maxLength": 1 << 40})
    ]
    purpose: Literal["batch"]
    expires_after: Expiry | None = None

    @property
    def retention_seconds(self) -> int:
        return KEPT_SECONDS if self.expires_after is None else self.expires_after.seconds


class FileQuery(Payload):
    """The files to list.

    Attributes:
        after: the id of the file before the first one.
    """

    ALLOWED: ClassVar[dict[str, str]] = {
        "after": "text, the id of a file",
        "limit": f"an integer from 1 to {MAX_FILES}",
        "order": "asc or desc",
        "purpose": "text",
    }

    after: Name | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_FILES)] = MAX_FILES
    order: Literal["asc", "desc"] = "desc"
    purpose: Name | None = None


def read_texts(kind: type[T], texts: Mapping[str, str]) -> T:
    """Parse the texts of a query or a form. A name such as `a[b]` is member b of a.

    Raises:
        Fault: 400, with one sentence about the first error.
    """
    payload: dict[str, object] = {}
    for name, text in texts.items():
        outer, bracket, inner = name.partition("[")
        value = _value(inner.rstrip("]") if bracket else name, text)
        if bracket:
            held = payload.setdefault(outer, {})
            if isinstance(held, dict):
                held[inner.rstrip("]")] = value
        else:
            payload[name] = value
    return read(kind, json.dumps(payload).encode())


def _value(name: str, text: str) -> object:
    is_number = name in _NUMBERS and text.isascii() and text.removeprefix("-").isdecimal()
    return int(text) if is_number and len(text) < 16 else text
