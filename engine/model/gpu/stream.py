"""Stream: work that a device does in order, beside the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor


class Mark(Protocol):
    """A piece of work on a stream."""

    def wait(self) -> float:
        """Wait for its end; the interpreter's lock is free meanwhile.

        Returns:
            the seconds that the device took for it.
        """
        ...

    def since(self, other: Any) -> float:
        """Seconds from the end of another piece to its beginning; both have been waited for.

        Args:
            other: a mark of the same stream, of work before this.
        """
        ...


class Stream(Protocol):
    """Runs its work in order."""

    def pinned(self, num_words: int) -> Tensor:
        """Memory of the host that copies on this stream reach while the host does other things:
        [num_words] int32.
        """
        ...

    def enqueue(self, work: Callable[[], object]) -> Mark:
        """Have launches and copies done after all that came before. `work` only starts them. If it
        raises, its started work is over by then.
        """
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that starts all launches of `work` at once, as `work` would one by one.

        Raises:
            RuntimeError: some launch cannot be captured.
        """
        ...


class HostStream:
    """Does everything at once, where there is no GPU and Triton's interpreter runs the kernels."""

    def pinned(self, num_words: int) -> Tensor:
        """See `Stream.pinned`."""
        return torch.empty(num_words, dtype=torch.int32)

    def enqueue(self, work: Callable[[], object]) -> Mark:
        """See `Stream.enqueue`."""
        started = perf_counter()
        with torch.inference_mode():
            work()
        return _Done(started, perf_counter())

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Stream.capture`. There is nothing to capture in."""
        return work


class _Done:
    def __init__(self, begun: float, ended: float) -> None:
        self._begun, self._ended = begun, ended

    def wait(self) -> float:
        return self._ended - self._begun

    def since(self, other: _Done) -> float:
        return self._begun - other._ended


class CudaStream:
    """A stream of a GPU, and the graphs that are captured on it, which share their memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._memory = torch.cuda.graph_pool_handle()
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def pinned(self, num_words: int) -> Tensor:
        """See `Stream.pinned`."""
        return torch.empty(num_words, dtype=torch.int32, pin_memory=True)

    def enqueue(self, work: Callable[[], object]) -> Mark:
        """See `Stream.enqueue`."""
        begin, end = _event(), _event()
        with self._current():
            begin.record(self._stream)
            try:
                work()
            except Exception:
                # The started work reads memory of the host that the next step will fill anew.
                self._stream.synchronize()
                raise
            end.record(self._stream)
        return _Recorded(begin, end)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Stream.capture`."""
        if not self._graphs:
            # torch does not allow memory of graphs that are gone to be shared again, while any of
            # it is in use.
            self._memory = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # What the launches refer to was made on other streams.
        torch.cuda.synchronize(self._device)
        with self._current():
            # Kernels are compiled at their first launch, and cuBLAS takes its workspace. Neither
            # is possible in a capture.
            work()
            self._stream.synchronize()
            # What waits for the device is found before, so that few captures fail.
            with _raising_where_it_waits():
                work()
            try:
                # The interface's threads may use the GPU meanwhile, to read meters.
                with torch.cuda.graph(
                    graph, self._memory, self._stream, capture_error_mode="thread_local"
                ):
                    work()
            except Exception:
                _end_allocation(self._device, self._memory)
                raise
        self._graphs.add(graph)
        return graph.replay

    @contextmanager
    def _current(self) -> Iterator[None]:
        with torch.cuda.stream(self._stream), torch.inference_mode():
            yield


class _Recorded:
    def __init__(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
        self._begin, self._end = begin, end

    def wait(self) -> float:
        self._end.synchronize()
        milliseconds: float = self._begin.elapsed_time(self._end)
        return milliseconds / 1000

    def since(self, other: _Recorded) -> float:
        milliseconds: float = other._end.elapsed_time(self._begin)
        return milliseconds / 1000


@contextmanager
def _raising_where_it_waits() -> Iterator[None]:
    """Raise RuntimeError where the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _end_allocation(device: torch.device, memory: tuple[int, int]) -> None:
    """End what a capture that failed has begun in the allocator, if torch has not.

    That of torch 2.11 would give no memory back any more, and keep what the graph had (pytorch pull
    request 180395).
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    try:
        torch._C._cuda_endAllocateToPool(index, memory)
    except RuntimeError:  # it was not under way
        return
    torch._C._cuda_releasePool(index, memory)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def stream_on(device: torch.device) -> Stream:
    """A stream of work on a device."""
    return CudaStream(device) if device.type == "cuda" else HostStream()
