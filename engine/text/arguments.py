"""Arguments: chat template arguments of a request beside messages, such as `enable_thinking`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

NO_ARGUMENTS: Mapping[str, object] = MappingProxyType({})


def context_key(model_key: str, arguments: Mapping[str, object]) -> str:
    """The `Context.model_key` of replies to requests with these arguments.

    A template may render the whole chat differently for other arguments, so a context is continued
    only with the same ones.
    """
    if not arguments:
        return model_key
    # Tools may be long, and the store keeps the key with each reply.
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
    return f"{model_key} {digest}"


def map_texts(value: object, change: Callable[[str], str]) -> object:
    """Apply `change` to all texts in a JSON value, including the keys of maps. Keys that become
    equal are numbered, so that none is lost.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        renamed: dict[str, object] = {}
        for number, (key, entry) in enumerate(value.items()):
            name = change(str(key))
            renamed[name if name not in renamed else f"{name}{number}"] = map_texts(entry, change)
        return renamed
    if isinstance(value, (list, tuple)):
        return [map_texts(entry, change) for entry in value]
    return value
