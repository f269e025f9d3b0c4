"""Sources: the source names of requests and conversations over each gateway."""

from __future__ import annotations

import json

MQTT = "mqtt"
HTTP = "http"
# Sources other than the screen.
THEIRS = frozenset({MQTT, HTTP})


def salt_of(source: str, user: str, stated: str | None, *, separate: bool) -> str:
    """The cache salt of a request's prefixes; empty if all requests without a salt share them.

    Args:
        stated: the request's salt; None if it states none.
        separate: whether users never share prefixes.
    """
    if stated is None and not separate:
        return ""
    # If users are separated, a salt must not equal another user's name.
    return json.dumps([source, user, stated] if separate else stated)
