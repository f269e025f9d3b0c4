"""Access: who asks, by the key that a request has."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from app.gateway.faults import Fault

# Whoever asks where no keys are set.
ANYBODY = "anybody"
# Whoever asks without a key that is known, where keys are set: by this name refusals are counted.
STRANGER = "stranger"


class Access:
    """Knows keys by their digests, so that the time of a look does not depend on how much of a key
    is right.

    Args:
        keys: by the names of those who have them; without any, everybody is let in.
        operators: those of them who may see what others ask, and turn the knobs.

    Attributes:
        is_open: whether there are no keys.
    """

    def __init__(self, keys: Mapping[str, str], operators: Collection[str] = ()) -> None:
        self._names = {_digest(key): name for name, key in keys.items()}
        self.operators = frozenset(operators)
        self.is_open = not keys

    def caller(self, headers: Mapping[str, str]) -> str:
        """The name of who asks.

        Args:
            headers: by their names in small letters.

        Raises:
            Fault: 401, there is no key or a wrong one.
        """
        if not self._names:
            return ANYBODY
        scheme, _, stated = headers.get("authorization", "").partition(" ")
        key = stated.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            text = "there is no API key; state it as Authorization: Bearer KEY or x-api-key: KEY"
            raise Fault(401, text, reason="no key")
        name = self._names.get(_digest(key))
        if name is None:
            raise Fault(401, "the API key is not known here", reason="unknown key")
        return name

    def asker(self, headers: Mapping[str, str]) -> str:
        """The name of who asks, or `STRANGER`; headers are as for `caller`."""
        try:
            return self.caller(headers)
        except Fault:
            return STRANGER


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
