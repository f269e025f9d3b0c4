"""Text part: the modules of a model that text needs, and its class without the others.

Towers for images and sound, and their projections, are never computed here. They are found by what
a pass over text reads, not by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from engine.model.program.capture import tensors_in


def language_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the model that reads and writes text: all of it, unless the folder has
    several models, of which that is one (the thinker of Qwen Omni, beside the model that speaks).
    """
    text = config.get_text_config()
    for name in config.sub_configs:
        inner = getattr(config, name, None)
        if not isinstance(inner, PreTrainedConfig) or inner is text:
            continue
        if inner.sub_configs and inner.get_text_config() is text:
            inner.architectures = None  # the names for single models are not class names
            return inner
    return config


def text_config(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration for a class: a text class uses the text part."""
    text: PreTrainedConfig = config.get_text_config()
    return text if model_class.config_class is type(text) else config


class Reads(TorchFunctionMode):
    """Records the parameters that torch's functions receive, and the modules that are called, while
    it is entered.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._seen: set[int] = set()
        for module in model.modules():
            module.register_forward_pre_hook(lambda called, _: self._seen.add(id(called)))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if tensors_in(output):  # a model may ask a parameter only for its type or device
            given = tensors_in((args, kwargs))
            self._seen.update(id(one) for one in given if isinstance(one, nn.Parameter))
        return output

    def all_of(self, module: nn.Module) -> None:
        """Record a module as read, with all that it contains."""
        self._seen.update(id(one) for one in (*module.modules(), *module.parameters()))

    def unread(self) -> tuple[str, ...]:
        """Names of the largest modules that were not called and of which nothing was read."""
        return tuple(self._unread(self._model, ""))

    def _unread(self, module: nn.Module, prefix: str) -> Iterator[str]:
        for name, child in module.named_children():
            held = {id(parameter) for parameter in child.parameters()}
            if not held:
                continue
            if (held | {id(one) for one in child.modules()}) & self._seen:
                yield from self._unread(child, f"{prefix}{name}.")
            else:
                yield prefix + name


def without(model_class: type[PreTrainedModel], names: tuple[str, ...]) -> type[PreTrainedModel]:
    """A class whose models lack some modules, and are otherwise those of the class.

    It has the name of the class, by which transformers chooses how to convert stored weights.
    """
    if not names:
        return model_class

    def init(self: PreTrainedModel, config: Any, *args: Any, **kwargs: Any) -> None:
        model_class.__init__(self, config, *args, **kwargs)
        drop(self, names)

    def get_submodule(self: PreTrainedModel, target: str) -> nn.Module:
        if any(target == name or target.startswith(f"{name}.") for name in names):
            return _Dropped()
        return model_class.get_submodule(self, target)

    known = {
        "__init__": init,
        "get_submodule": get_submodule,
        "__module__": model_class.__module__,
        "__doc__": model_class.__doc__,
    }
    return type(model_class.__name__, (model_class,), known)


class _Dropped(nn.Module):
    """Stands for a dropped module while transformers assigns weights.

    A stored tensor may hold weights of several modules. Those of a missing module have no place,
    and are left out like unknown ones.
    """

    def __getattr__(self, name: str) -> Any:
        return None


def drop(model: nn.Module, names: tuple[str, ...]) -> None:
    """Drop modules; reading one then returns None. A model of fewer layers lacks some."""
    for name in names:
        parent, _, last = name.rpartition(".")
        try:
            holder = model.get_submodule(parent)
        except AttributeError:
            continue
        if hasattr(holder, last):
            setattr(holder, last, None)
