"""CopiedTokenizer: a pickled tokenizer, for other processes that encode and for later loads."""

from __future__ import annotations

import io
import pickle
from typing import Any

# A kept copy that someone else has written can make objects of these, and nothing else.
_LIBRARIES = frozenset(("tokenizers", "transformers"))
_PLAIN = frozenset(
    (
        *(("builtins", name) for name in ("set", "frozenset", "bytearray", "slice")),
        *(("collections", name) for name in ("OrderedDict", "defaultdict", "deque")),
    )
)


class CopiedTokenizer:
    """Becomes the tokenizer when an encoding process unpickles it.

    Args:
        pickled: the result of `pickle_tokenizer`.
    """

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle_tokenizer, (self._pickled,)


def pickle_tokenizer(tokenizer: Any) -> bytes:
    """Pickle a tokenizer of transformers for other processes.

    Raises:
        pickle.PicklingError: it has objects that `unpickle_tokenizer` would refuse.
        Exception: its own code fails.
    """
    written = io.BytesIO()
    _Pickler(written, pickle.HIGHEST_PROTOCOL).dump(tokenizer)
    return written.getvalue()


def unpickle_tokenizer(pickled: bytes) -> Any:
    """Unpickle a tokenizer.

    Raises:
        pickle.UnpicklingError: it names objects of other libraries than transformers' tokenizers.
    """
    return _Unpickler(io.BytesIO(pickled)).load()


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        kind = obj if isinstance(obj, type) else type(obj)
        if not _is_allowed(kind):
            raise pickle.PicklingError(f"a tokenizer has an object of {kind.__module__}")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if _may_import(module, name):
            found = super().find_class(module, name)
            # A module of the libraries has other things that it imports, by the same form of name.
            if isinstance(found, type) and _is_allowed(found):
                return found
        raise pickle.UnpicklingError(f"a tokenizer names {module}.{name}")


def _is_allowed(kind: type) -> bool:
    return _may_import(kind.__module__, kind.__qualname__)


def _may_import(module: str, name: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES or (module, name) in _PLAIN
