"""CudaStream's calls to CUDA. There is no GPU here, so that only the calls are checked."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator

import pytest
import torch

from engine.model.gpu import stream as streams
from engine.model.gpu.stream import CudaStream


class Cuda:
    """A stream and its events, which note what is asked of them."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.memory: list[int] = []

    def record(self, stream: Cuda) -> None:
        assert stream is self
        self.said.append("record")

    def synchronize(self) -> None:
        self.said.append("synchronize")

    @contextlib.contextmanager
    def capturing(self, _graph: Graph, memory: int, *_: Cuda, **__: str) -> Iterator[None]:
        self.memory.append(memory)
        self.said.append("begin")
        yield
        self.said.append("end")


class Graph:
    def replay(self) -> None: ...


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    cuda = Cuda()
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: cuda)
    handles = itertools.count()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: contextlib.nullcontext())
    monkeypatch.setattr(streams, "_event", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", cuda.said.append)
    monkeypatch.setattr(torch.cuda, "graph", cuda.capturing)
    return cuda


def test_work_lies_between_two_events(cuda: Cuda) -> None:
    CudaStream(torch.device("cuda")).enqueue(lambda: cuda.said.append("work"))
    assert cuda.said == ["record", "work", "record"]


def test_what_work_had_started_is_over_when_it_raises(cuda: Cuda) -> None:
    def work() -> None:
        cuda.said.append("work")
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        CudaStream(torch.device("cuda")).enqueue(work)
    assert cuda.said == ["record", "work", "synchronize"]


def test_work_that_waits_for_the_device_is_found_before_it_is_captured(cuda: Cuda) -> None:
    def work() -> None:
        cuda.said.append("work")
        if waits and "error" in cuda.said:
            raise RuntimeError("called a synchronizing CUDA operation")

    waits = False
    CudaStream(torch.device("cuda")).capture(work)
    before = ["work", "synchronize", "error", "work", "default"]
    assert cuda.said == [*before, "begin", "work", "end"]
    cuda.said.clear()
    waits = True
    with pytest.raises(RuntimeError, match="synchronizing"):
        CudaStream(torch.device("cuda")).capture(work)
    assert cuda.said == before


@pytest.mark.parametrize("is_open", [True, False])
def test_a_capture_that_fails_leaves_the_allocator_as_it_was(
    is_open: bool, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In some versions of torch it still allocates for the graph then, in others it does not."""
    done: list[tuple[str, int, int]] = []

    def end(device: int, memory: int) -> None:
        if not is_open:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        done.append(("end", device, memory))

    def release(device: int, memory: int) -> None:
        done.append(("release", device, memory))

    @contextlib.contextmanager
    def failing(*_: object, **__: str) -> Iterator[None]:
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    capturing = torch.cuda.graph
    monkeypatch.setattr(torch.cuda, "graph", failing)
    stream = CudaStream(torch.device("cuda:1"))
    with pytest.raises(RuntimeError, match="not permitted"):
        stream.capture(lambda: None)
    memory = stream._memory
    assert done == ([("end", 1, memory), ("release", 1, memory)] if is_open else [])
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    stream.capture(lambda: None)
    assert cuda.said[-2:] == ["begin", "end"]


def test_graphs_share_memory_with_those_that_are_there_still(cuda: Cuda) -> None:
    stream = CudaStream(torch.device("cuda"))
    graphs = [stream.capture(lambda: None) for _ in range(3)]
    assert len(set(cuda.memory)) == 1
    graphs.clear()
    gc.collect()
    graphs.append(stream.capture(lambda: None))
    assert cuda.memory[3] != cuda.memory[2]
