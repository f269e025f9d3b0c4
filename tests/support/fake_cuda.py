"""fake_cuda: a GPU that is made up, on which torch and Triton's interpreter compute in main memory.

A tensor is on it if its storage was put there, and then says so. What CUDA refuses is refused: an
operator that is given tensors of the host and of the device, numpy over memory of the device, and
a kernel that is given memory of the host. So a tensor that was left on the host, and that works
where host and device are one, is found without a GPU. Who waits for the device is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from triton.runtime.interpreter import GridExecutor

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")

# They go between host and device.
_COPIES = ("aten.copy_",)
# They take indices of either.
_INDEXING = ("aten.index.Tensor", "aten.index_put_", "aten.index_put", "aten._index_put_impl_")
# They bring numbers to the host, which waits for all that was launched.
_WAITING = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.unique")


class MixedDevicesError(RuntimeError):
    """An operation mixed tensors of the host and of the device."""


class FakeCuda:
    """The device: what lies on it, and how often it was waited for.

    Attributes:
        waits: for each operator, how often it made the host wait.
        launches: kernels, by name.
    """

    def __init__(self) -> None:
        self._held: dict[int, StorageWeakRef] = {}
        self.waits: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        ref = self._held.get(tensor.untyped_storage()._cdata)
        # Whose storage is gone leaves its address to nobody as long as the reference is kept.
        return ref is not None and not ref.expired()

    def put(self, tensor: Tensor) -> Tensor:
        """Have a tensor's storage on the device."""
        storage = tensor.untyped_storage()
        self._held[storage._cdata] = StorageWeakRef(storage)
        return tensor

    @property
    def num_held(self) -> int:
        """How many storages are on the device still."""
        self._held = {key: ref for key, ref in self._held.items() if not ref.expired()}
        return len(self._held)


class _Operators(TorchDispatchMode):
    """Refuses operators that mix, and puts their results where their operands are."""

    def __init__(self, device: FakeCuda) -> None:
        super().__init__()
        self._device = device
        # Whether what is made of nothing is made there.
        self.makes_there = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func)
        given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
        there = [one for one in given if self._device.has(one)]
        if there and name.startswith(_WAITING):
            self._device.waits[name] += 1
        # A number on the host is an argument like any other.
        here = [one for one in given if one.ndim and not self._device.has(one)]
        is_allowed = name.startswith(_COPIES) or (
            name.startswith(_INDEXING) and self._device.has(given[0])
        )
        if there and here and not is_allowed:
            shapes = [tuple(one.shape) for one in here]
            raise MixedDevicesError(f"{name}: {shapes} on the host, others on the device")
        if name == "aten.histc.default" and there and not args[0].is_floating_point():
            # CUDA counts whole numbers, too, and a processor does not.
            found = func(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
        else:
            found = func(*args, **kwargs)
        if name.startswith(_COPIES):
            return found
        if there or (self.makes_there and not given):
            tree_map_only(Tensor, self._device.put, found)
        return found


class _Functions(TorchFunctionMode):
    """Stands for torch's functions that name a device, or that tell of one."""

    def __init__(self, device: FakeCuda, operators: _Operators) -> None:
        super().__init__()
        self._device = device
        self._operators = operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = resolve_name(func) or getattr(func, "__name__", "")
        short = name.removeprefix("torch.").removeprefix("Tensor.").removeprefix("_C.")
        if answer := _ANSWERS.get(name):
            return answer(self._device, *args)
        if short == "numpy" and self._device.has(args[0]):
            raise MixedDevicesError("numpy over memory of the device")
        if short in ("tolist", "item") and self._device.has(args[0]):
            self._device.waits[short] += 1
        if short in ("to", "cpu", "cuda", "pin_memory"):
            return self._moved(short, func, args, kwargs)
        if short == "__deepcopy__":
            found = func(*args, **kwargs)
            return self._device.put(found) if self._device.has(args[0]) else found
        kwargs.pop("pin_memory", None)
        wanted = kwargs.get("device")
        if wanted is None:
            return func(*args, **kwargs)
        is_there = torch.device(wanted).type == "cuda"
        kwargs["device"] = HOST
        before, self._operators.makes_there = self._operators.makes_there, is_there
        try:
            found = func(*args, **kwargs)
        finally:
            self._operators.makes_there = before
        if isinstance(found, Tensor) and is_there != self._device.has(found):
            # `new_empty` and the like, which may name another device than that of their tensor.
            found = self._device.put(found) if is_there else _copy(found)
        return found

    def _moved(self, short: str, func: Any, args: Any, kwargs: dict[str, Any]) -> Tensor:
        tensor, *rest = args
        if short == "pin_memory":
            return _copy(tensor)
        if short != "to":
            return self._at(tensor, short == "cuda")
        wanted, dtype = kwargs.get("device"), kwargs.get("dtype")
        switches = []
        for one in rest:
            if isinstance(one, Tensor):
                wanted, dtype = (DEVICE if self._device.has(one) else HOST), one.dtype
            elif isinstance(one, torch.dtype):
                dtype = one
            elif isinstance(one, bool):
                switches.append(one)
            elif one is not None:
                wanted = one
        copies = kwargs.get("copy", False) or switches[1:] == [True]
        # What changes the type alone stays where it is.
        typed: Tensor = func(tensor, tensor.dtype if dtype is None else dtype, copy=copies)
        return typed if wanted is None else self._at(typed, torch.device(wanted).type == "cuda")

    def _at(self, tensor: Tensor, there: bool) -> Tensor:
        if self._device.has(tensor) == there:
            return tensor
        copy = _copy(tensor)
        return self._device.put(copy) if there else copy


def _copy(tensor: Tensor) -> Tensor:
    """A copy on the host, past the modes."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().clone()


_ANSWERS: dict[str, Any] = {
    "torch.Tensor.device.__get__": lambda fake, one: DEVICE if fake.has(one) else HOST,
    "torch.Tensor.is_cuda.__get__": lambda fake, one: fake.has(one),
    "torch.Tensor.is_pinned": lambda fake, one: not fake.has(one),
}


class _Stream:
    """A stream of a device that does everything at once."""

    def __init__(self, _device: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Event:
    """An event of such a stream."""

    def __init__(self, **_: object) -> None:
        self.time = 0.0

    def record(self, _stream: object = None) -> None:
        self.time = perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: _Event) -> float:
        return 1000 * (later.time - self.time)


@contextmanager
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Let torch have one GPU, in this thread."""
    device = FakeCuda()
    cuda: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "set_device": lambda _device: None,
        "current_device": lambda: 0,
        "get_device_name": lambda _device=None: "made-up GPU",
        "get_device_capability": lambda _device=None: (8, 0),
        "get_device_properties": lambda _device=None: SimpleNamespace(
            name="made-up GPU", uuid="0", multi_processor_count=2, total_memory=8 << 30
        ),
        "get_arch_list": lambda: ["sm_80"],
        "mem_get_info": lambda _device=None: (8 << 30, 8 << 30),
        "memory_reserved": lambda _device=None: 0,
        "memory_allocated": lambda _device=None: 0,
        "max_memory_allocated": lambda _device=None: 0,
        "reset_peak_memory_stats": lambda _device=None: None,
        "empty_cache": lambda: None,
        "synchronize": lambda _device=None: None,
        "device_of": lambda _tensor: nullcontext(),
        "device": lambda _device: nullcontext(),
        "stream": lambda _stream: nullcontext(),
        "Stream": _Stream,
        "Event": _Event,
        "graph_pool_handle": object,
        "set_sync_debug_mode": lambda _mode: None,
    }
    for name, value in cuda.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda _device=None: None)
    monkeypatch.setattr(torch.accelerator.memory, "empty_host_cache", lambda: None, raising=False)
    # Threads of transformers, which are in no mode, would bring weights to the device.
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")
    launch = GridExecutor.__call__

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        if here := [tuple(one.shape) for one in given if not device.has(one)]:
            raise MixedDevicesError(f"a kernel is given memory of the host: {here}")
        device.launches[self.fn.__name__] += 1
        # Past the modes: the interpreter copies tensors to the host and back.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            launch(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", launched)
    operators = _Operators(device)
    with operators, _Functions(device, operators):
        yield device
