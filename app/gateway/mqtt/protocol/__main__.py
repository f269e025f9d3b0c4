"""`python -m app.gateway.mqtt.protocol` prints the schema of all messages."""

import json

from app.gateway.mqtt.protocol.schema import json_schema

print(json.dumps(json_schema(), indent=2))
