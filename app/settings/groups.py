"""Groups: dataclasses whose fields are options of the command line, each declared once.

A field is annotated like a parameter of a typer command, and has the option's default. A field that
is a group itself stands for the options of that group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command in the form that typer expects, with each group replaced by its options.

    The command itself is called with groups. In these, options that were not stated have their
    defaults.
    """
    kinds = get_type_hints(command, include_extras=True)
    del kinds["return"]
    defaults = {n: p.default for n, p in inspect.signature(command).parameters.items()}
    options = [
        option for name, kind in kinds.items() for option in _options(name, kind, defaults[name])
    ]

    @wraps(command)
    def spread_out(**values: object) -> None:
        command(**{name: _gather(name, kind, values) for name, kind in kinds.items()})

    spread_out.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    spread_out.__annotations__ = {option.name: option.annotation for option in options}
    return spread_out


def stated(*groups: object) -> dict[str, object]:
    """The options of the groups by name, including those of nested groups."""
    values: dict[str, object] = {}
    for group in groups:
        assert is_dataclass(group)
        for field in fields(group):
            value = getattr(group, field.name)
            values |= stated(value) if is_dataclass(value) else {field.name: value}
    return values


def _options(name: str, kind: Any, default: object) -> Iterator[inspect.Parameter]:
    if not is_dataclass(kind):
        how = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, how, default=default, annotation=kind)
        return
    kinds = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        # A field without a plain default is a list: the option accepts several values, and by
        # default has none.
        its = None if field.default is MISSING else field.default
        yield from _options(field.name, kinds[field.name], its)


def _gather(name: str, kind: Any, values: Mapping[str, object]) -> object:
    if not isinstance(kind, type) or not is_dataclass(kind):
        return values[name]
    kinds = get_type_hints(kind)
    found = {field.name: _gather(field.name, kinds[field.name], values) for field in fields(kind)}
    return kind(**{name: value for name, value in found.items() if value not in (None, [])})
