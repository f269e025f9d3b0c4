"""Valueless: bypasses a model's modules that read values, where tensors have none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from engine.api.errors import ModelError


@contextmanager
def passing_values(
    model: nn.Module, has_attended: Callable[[], int], passed: Callable[[nn.Module], None]
) -> Iterator[None]:
    """On the meta device, make modules that branch on values, as many mixtures of experts do,
    return a tensor like their input.

    The smallest such module is bypassed. If the module around it cannot use the result, that one is
    bypassed instead. Modules that attend are never bypassed, because their attention would be
    missed.

    Args:
        has_attended: returns the number of attention calls so far.
        passed: called with each bypassed module.
    """
    forwards = {}
    # By running module, whether one inside was bypassed, which may cause later errors.
    inside: list[bool] = [False]

    def guarded(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = has_attended()
            inside.append(False)
            try:
                return forward(*args, **kwargs)
            except ModelError:
                raise
            except Exception as error:
                given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
                known = inside[-1] or _looks_at_values(error)
                if not known or given is None or has_attended() > before:
                    raise
                passed(module)
                inside[-1] = True
                return torch.empty_like(given)
            finally:
                within = inside.pop()
                inside[-1] |= within

        return call

    for module in model.modules():
        if module is not model:
            forwards[module] = module.forward
            module.forward = guarded(module, module.forward)
    try:
        yield
    finally:
        for module, forward in forwards.items():
            module.forward = forward


def _looks_at_values(error: Exception) -> bool:
    """Whether torch raises this error when code reads a value that does not exist."""
    return isinstance(error, NotImplementedError) or "on meta tensors" in str(error)
