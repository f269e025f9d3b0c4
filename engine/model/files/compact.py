"""Compact weights: parameters that stay in their stored form, and are floats only during use.

A GGUF model as floats takes two to eight times the file's size, but is needed only for a few passes
during loading: to trace its computation, and to compare. So a parameter is a window of address
space, which has memory, and numbers, only while a module computes with it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from engine.native import kernels

# Windows of at least a huge page use huge pages, because a window is filled anew for each pass.
_HUGE = 2 << 20


class Compact:
    """A parameter and its stored form.

    Args:
        blocks: the stored form, or a function that reads it at first use. Blocks of codes: uint8
            [rows, bytes of a row]; or numbers: [n, k].

    Attributes:
        kind: GGUF's name of the blocks' type; empty for numbers.
        window: [..., n, k], the parameter's memory. Its numbers are undefined outside of
            `CompactWeights.unpacked`.
    """

    def __init__(
        self,
        blocks: Tensor | Callable[[], Tensor],
        kind: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ) -> None:
        self._blocks = blocks
        self.kind = kind
        size = torch.Size(shape).numel() * dtype.itemsize
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.window = torch.frombuffer(self._memory, dtype=dtype).view(shape)
        self._uses = 0
        self._is_whole = False

    @property
    def blocks(self) -> Tensor:
        """The stored form: blocks of codes, uint8 [rows, bytes of a row]; or numbers, [n, k]."""
        if not isinstance(self._blocks, Tensor):
            self._blocks = self._blocks()
        return self._blocks

    @property
    def width(self) -> int:
        """Input features."""
        return self.window.shape[-1]

    def dense(self, dtype: torch.dtype) -> Tensor:
        """A copy of the parameter in another type: [..., n, k]."""
        out = torch.empty(self.window.shape, dtype=dtype)
        self._fill(out.view(-1, self.width))
        return out

    def enter(self, rows: Tensor | None = None) -> None:
        """Fill the window with numbers, until as many calls of `leave`.

        Args:
            rows: the rows needed, [count] int64; None for all.
        """
        self._uses += 1
        if self._is_whole:
            return
        flat = self.window.view(-1, self.width)
        if rows is None:
            self._fill(flat)
            self._is_whole = True
            return
        few = torch.empty(len(rows), self.width, dtype=flat.dtype)
        self._unpack(self.blocks[rows], few)
        flat[rows] = few

    def leave(self) -> None:
        """End a use. After the last one the window has no memory."""
        self._uses -= 1
        if not self._uses:
            self._is_whole = False
            self._memory.madvise(mmap.MADV_DONTNEED)

    def _fill(self, out: Tensor) -> None:
        """Write all numbers: [n, k]."""
        self._unpack(self.blocks, out)

    def _unpack(self, blocks: Tensor, out: Tensor) -> None:
        if not self.kind:
            out.copy_(blocks)
            return
        native = kernels()
        assert native is not None
        native.unpack_blocks(blocks, self.kind, out)


def block_types(native: ModuleType) -> dict[str, tuple[int, int, Any]]:
    """Features and bytes of a block, and the `_native.Quantization` of its codes, by GGUF's names
    of the types that kernels can multiply as stored.
    """
    types: dict[str, tuple[int, int, Any]] = native.block_types()
    return types


def packed_saving(stored: Iterable[tuple[str, tuple[int, ...]]], itemsize: int) -> int:
    """Bytes saved by weights that kernels multiply as stored.

    Args:
        stored: kind and shape of each weight; those without a kind save nothing.
        itemsize: bytes of a number in the type of the computation.
    """
    native = kernels()
    if native is None:
        return 0
    types, saved = block_types(native), 0
    for kind, shape in stored:
        if kind:
            *batch, n, k = shape
            coded = math.prod(batch) * native.coded_size(n, k, types[kind][2])
            saved += math.prod(shape) * itemsize - coded
    return saved


class CompactWeights:
    """The compact parameters of a model during loading.

    Args:
        dtype: the type in which the loaded model computes. Numbers stay in this type if the model
            is loaded in another one.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self._by_address: dict[int, Compact] = {}
        self._names: dict[int, tuple[str, int, Any]] = {}
        self._hooks: dict[nn.Module, list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_address)

    def __iter__(self) -> Iterator[Compact]:
        return iter(self._by_address.values())

    def add(self, name: str, one: Compact) -> Tensor:
        """Add a parameter; returns its memory.

        Args:
            name: name of the stored weight.
        """
        self._by_address[_address(one.window)] = one
        self.name(name, one.window)
        return one.window

    def name(self, name: str, tensor: Tensor) -> None:
        """Record which stored weight a tensor is, without keeping the tensor."""
        kept: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._names[_address(tensor)] = name, int(tensor.storage_offset()), kept

    def named(self, tensor: Tensor) -> tuple[str, int] | None:
        """The stored weight of which a tensor is a view, and the view's offset in it; None if there
        is none. Freed memory belongs to no weight.
        """
        name, begin, kept = self._names.get(_address(tensor), ("", 0, None))
        if kept is None or kept.expired():
            return None
        return name, int(tensor.storage_offset()) - begin

    def of(self, tensor: Tensor) -> Compact | None:
        """The compact parameter whose window contains a tensor; None if there is none."""
        return self._by_address.get(_address(tensor))

    def forget(self, parameter: Tensor) -> None:
        """Drop a parameter that is no longer used, if it is a compact one."""
        self._by_address.pop(_address(parameter), None)

    def settle(self, model: nn.Module) -> bool:
        """Hook a model's modules, so that each has numbers in its own parameters while it computes.

        Returns:
            whether all windows are parameters of the model. If not, transformers has copied them,
            and the copies are empty.
        """
        held = {_address(one) for one in model.parameters()} & self._by_address.keys()
        if held != self._by_address.keys():
            return False
        for module in model.modules():
            if any(self.of(one) is not None for one in module.parameters(recurse=False)):
                self._hooks[module] = [
                    module.register_forward_pre_hook(self._enter, with_kwargs=True),
                    module.register_forward_hook(self._leave, always_call=True),
                ]
        return True

    def unpack_module(self, module: nn.Module) -> None:
        """Make the parameters of a module and its submodules ordinary ones from now on."""
        for one in module.modules():
            for hook in self._hooks.pop(one, ()):
                hook.remove()
            for parameter in one.parameters(recurse=False):
                found = self.of(parameter)
                if found is not None:
                    parameter.data = found.dense(parameter.dtype)

    @contextmanager
    def unpacked(self, tensors: Iterable[Tensor], rows: Tensor | None = None) -> Iterator[None]:
        """Fill the windows of those tensors that are compact parameters while the context lasts."""
        with ExitStack() as stack:
            for found in {
                id(one): one for one in map(self.of, tensors) if one is not None
            }.values():
                found.enter(rows)
                stack.callback(found.leave)
            yield

    @contextmanager
    def computing(
        self, targets: tuple[Any, ...], args: tuple[Any, ...], given: list[Tensor]
    ) -> Iterator[None]:
        """As `unpacked`, for all tensors that a recorded call needs.

        Args:
            targets: the called module or function, and other modules that it needs.
            args: arguments of the call.
            given: the tensors among them.
        """
        if not self:
            yield
            return
        needed = [*given]
        for target in targets:
            if isinstance(target, nn.Module):
                needed += target.parameters()
        with self.unpacked(needed, _rows_looked_up(targets[0], args)):
            yield

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        rows = _rows_looked_up(module, args)
        for parameter in module.parameters(recurse=False):
            found = self.of(parameter)
            if found is not None:
                found.enter(rows)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        for parameter in module.parameters(recurse=False):
            found = self.of(parameter)
            if found is not None:
                found.leave()


def _rows_looked_up(target: Any, args: tuple[Any, ...]) -> Tensor | None:
    """The rows that an embedding looks up; None for any other target."""
    if not isinstance(target, nn.Embedding) or not args or not isinstance(args[0], Tensor):
        return None
    rows: Tensor = torch.unique(args[0].detach())
    return rows


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
