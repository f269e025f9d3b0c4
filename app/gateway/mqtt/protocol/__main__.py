"""`python -m app.gateway.mqtt.protocol` prints the JSON Schema of all messages."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from app.gateway.control import ControlMessage
from app.gateway.mqtt.protocol.cards import Metrics, NodeCard
from app.gateway.mqtt.protocol.replies import Accepted, DeltaReply, ErrorReply, Final
from app.gateway.mqtt.protocol.requests import ChatRequest


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of all messages, by their names in `$defs`."""
    taken = ((model, "validation") for model in (ChatRequest, ControlMessage))
    sent = (
        (model, "serialization")
        for model in (Accepted, DeltaReply, Final, ErrorReply, NodeCard, Metrics)
    )
    _, schema = models_json_schema(
        [*taken, *sent],  # type: ignore[list-item]
        title="batchdeck over MQTT, version 1",
    )
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
