"""Valueless: passes a model's modules that look at values, where tensors have none."""

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
    """Let modules that choose their way by values, as many mixtures of experts do, give on the meta
    device what looks like their input.

    It is the smallest module that is passed so, and no more is known of it than that. If what it
    gives is of no use to the module around it, that one is passed. What attends is never passed:
    it would be missed.

    Args:
        has_attended: how many times attention was called so far.
        passed: is told of each module whose forward pass was not followed.
    """
    forwards = {}
    # What a module was passed within; what goes wrong around it may have come of that.
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
    """Whether an error is what torch raises where a value is asked for and there is none."""
    return isinstance(error, NotImplementedError) or "on meta tensors" in str(error)
