"""ServerMessage: the base of all messages of the server."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """Plain data inside a message of the server.

    Fields that are not known are ignored, so that a client can read messages of a later server.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        strict=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,
    )


class ServerMessage(Part):
    """A message of the server, in version 1 of the protocol."""

    v: Literal[1] = 1

    def encode(self) -> bytes:
        """Compact JSON in UTF-8, with every field."""
        return self.model_dump_json().encode()
