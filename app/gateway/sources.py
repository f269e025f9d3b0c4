"""Sources: what requests and conversations over each gateway say that they came from."""

from __future__ import annotations

MQTT = "mqtt"
HTTP = "http"
# They are somebody else's than the screen's.
THEIRS = frozenset({MQTT, HTTP})
