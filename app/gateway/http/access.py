"""Access: identifies callers by the key in a request."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from app.gateway.faults import Fault

# Every caller, if no keys are set.
ANYBODY = "anybody"
# Callers without a known key, if keys are set: refusals are counted under this name.
STRANGER = "stranger"


class Access:
    """Stores keys by their digests, so that the time of a lookup does not depend on how much of a
    key is right.

    Args:
        keys: by the names of their owners; without keys, all callers are admitted.
        operators: those of them who may see other users' requests, and change the knobs.

    Attributes:
        is_open: whether there are no keys.
    """

    def __init__(self, keys: Mapping[str, str], operators: Collection[str] = ()) -> None:
        self._names = {_digest(key): name for name, key in keys.items()}
        self.operators = frozenset(operators)
        self.is_open = not keys

    def caller(self, headers: Mapping[str, str]) -> str:
        """The name of the caller.

        Args:
            headers: by lower-case names.

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
        """The name of the caller, or `STRANGER`; headers are as for `caller`."""
        try:
            return self.caller(headers)
        except Fault:
            return STRANGER


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
