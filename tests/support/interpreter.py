"""Triton's interpreter, made quicker: it looks for what it replaces in Triton's language once, and
not at each launch and each call within a kernel, which takes a third of its time."""

from __future__ import annotations

import inspect
from functools import cache

from triton.runtime import interpreter


def look_once() -> None:
    interpreter._patch_builtin = _patch_builtin


def _patch_builtin(package: object, builder: object, scope: interpreter._LangPatchScope) -> None:
    for name in _names_of_builtins(package):
        member = getattr(package, name)
        if interpreter.tl.core.is_builtin(member):  # else it is replaced already
            interpreter._patch_attr(package, name, member, builder, scope)


@cache
def _names_of_builtins(package: object) -> list[str]:
    """Asked first before any is replaced."""
    is_builtin = interpreter.tl.core.is_builtin
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]
