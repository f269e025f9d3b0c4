"""Grouping: finds the stored tensors of a weight by their names."""

from __future__ import annotations

from collections.abc import Mapping

from engine.api.errors import ModelError
from engine.model.files.checkpoint import Checkpoint, StoredTensor

Group = dict[str, StoredTensor]


def by_module(checkpoint: Checkpoint) -> dict[str, Group]:
    """The tensors of each module, by the module's name and then by their own.

    bitsandbytes stores `weight.absmax` and the like for a weight; they count as its module's.
    """
    groups: dict[str, Group] = {}
    for tensor in checkpoint.tensors:
        module, nested, name = tensor.name.partition(".weight.")
        if nested:
            name = f"weight.{name}"
        else:
            module, _, name = tensor.name.rpartition(".")
        groups.setdefault(module, {})[name] = tensor
    return groups


def pick(module: str, group: Mapping[str, StoredTensor], *names: str) -> Group:
    """Select the tensors with these names.

    Raises:
        ModelError: the module lacks one.
    """
    for name in names:
        if name not in group:
            some = next(iter(group.values()))
            raise ModelError(f"{some.file.parent} has {some.name} and lacks {module}.{name}")
    return {name: group[name] for name in names}
