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
        """Pinned host memory, which this stream can copy while the host does other work:
        [num_words] int32.
        """
        ...

    def enqueue(self, work: Callable[[], object]) -> Mark:
        """Run launches and copies after all earlier work. `work` only starts them. If it raises,
        the work that it started has ended by then.
        """
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that starts all launches of `work` at once, as `work` would one by one.

        Raises:
            RuntimeError: some launch cannot be captured.
        """
        ...


class HostStream:
    """Runs everything immediately, for Triton's interpreter without a GPU."""

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
        """See `Stream.capture`. Without a GPU there is no graph: the launches are repeated."""
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
                # The started work reads host memory that the next step will overwrite.
                self._stream.synchronize()
                raise
            end.record(self._stream)
        return _Recorded(begin, end)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Stream.capture`."""
        if not self._graphs:
            # torch does not allow the memory of deleted graphs to be shared again while any of it
            # is in use.
            self._memory = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # The launches use tensors that were made on other streams.
        torch.cuda.synchronize(self._device)
        with self._current():
            # Kernels are compiled at their first launch, and cuBLAS takes its workspace. Neither
            # is possible in a capture.
            work()
            self._stream.synchronize()
            # Launches that wait for the device are detected before, so that few captures fail.
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
    """End the allocator's capture mode after a failed capture, if torch has not. Otherwise torch
    2.11's allocator would free no memory from then on, and keep that of the graph (pytorch pull
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
