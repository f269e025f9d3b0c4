"""Sources: what requests and conversations over each gateway say that they came from."""

from __future__ import annotations

import json

MQTT = "mqtt"
HTTP = "http"
# They are somebody else's than the screen's.
THEIRS = frozenset({MQTT, HTTP})


def salt_of(source: str, user: str, stated: str | None, *, separate: bool) -> str:
    """The salt of a request's prefixes in the cache; empty if all find them who state none.

    Args:
        stated: by the request; None if it states none.
        separate: whether those of a user are no one else's in any case.
    """
    if stated is None and not separate:
        return ""
    # Where users are kept apart, a salt must not spell another one's name.
    return json.dumps([source, user, stated] if separate else stated)
