"""Everything that is done on a GPU, on one that is made up and refuses what CUDA refuses.

The tensors of host and device are one kind where there is no GPU, so that one on the wrong side
works in all other tests.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from engine.api.client import Submission
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.api.structure import Structure
from engine.batch.plan import End
from engine.cache.storage import cache_shapes
from engine.core.core import EngineCore
from engine.model.attention.triton_backend import TritonAttention
from engine.model.gpu import runner as runners
from engine.model.gpu import start
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.runner import GpuRunner
from engine.model.gpu.start import runner_with_graphs
from engine.model.gpu.stream import HostStream, Stream
from engine.model.loading import loader, starting
from engine.model.running.forward import ModuleForward, make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.checkpoints import save_checkpoint
from tests.support.clock import VirtualClock
from tests.support.delaying_stream import DelayingStream
from tests.support.fake_cuda import DEVICE, FakeCuda, MixedDevicesError, fake_cuda
from tests.support.loading import load
from tests.support.structures import grammar
from tests.support.zoo import LATENT, MAX_LEN, MIXED, SERVED, STATEFUL, VOCAB_SIZE, tiny_model


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with fake_cuda(monkeypatch) as device:
        yield device


class TestDevice:
    def test_what_cuda_refuses_is_refused(self, cuda: FakeCuda) -> None:
        there, here = torch.zeros(3, device=DEVICE), torch.ones(3)
        for mixing in (
            lambda: there + here,
            lambda: torch.cat([here, there]),
            lambda: torch.mm(there[None], here[:, None]),
            lambda: there.index_copy_(0, torch.tensor([1]), there[:1]),
            lambda: here[there.long()],
            there.numpy,
        ):
            with pytest.raises(MixedDevicesError):
                mixing()

    def test_what_cuda_allows_is_allowed(self, cuda: FakeCuda) -> None:
        there, here = torch.zeros(3, device="cuda:0"), torch.ones(3)
        assert there.is_cuda
        found = [
            *(there + 1, there * torch.tensor(2.0), there[1:], there[torch.tensor([0])]),
            *(here.to(DEVICE), here.to(there), here.cuda(), there.half(), there.to(torch.half)),
            *(torch.empty_like(there), there.new_zeros(2), here.pin_memory().to(DEVICE)),
            *(torch.tensor([1], device=DEVICE), torch.arange(4, device=DEVICE)),
        ]
        assert {one.device for one in found} == {DEVICE}
        back = [there.cpu(), there.to("cpu"), there.new_zeros(2, device="cpu"), here.to(here)]
        assert {one.device.type for one in back} == {"cpu"}
        there.copy_(here)
        assert there.tolist() == [1, 1, 1]
        assert cuda.waits["tolist"] == 1
        module = torch.nn.Linear(3, 2).to(DEVICE)
        assert module(there).device == DEVICE


CONFIG = EngineConfig(
    num_blocks=6,
    num_host_blocks=6,
    max_model_len=MAX_LEN,
    max_num_seqs=4,
    max_num_batched_tokens=48,
    device=str(DEVICE),
)
CARD = ModelCard("tiny", "Tiny", 0, "float32", "cuda:0", "", MAX_LEN, 0, 0)
STRUCTURE = {"choice": ["yes", "true", "false"]}
SAMPLINGS = (
    SamplingParams(temperature=0, max_tokens=16, logprobs=2, prompt_logprobs=1, ignore_eos=True),
    SamplingParams(temperature=1.1, top_p=0.9, max_tokens=16, seed=3, ignore_eos=True),
    SamplingParams(temperature=0.8, top_k=20, frequency_penalty=0.7, max_tokens=6, seed=4),
    SamplingParams(temperature=1.0, min_p=0.02, logit_bias=((5, 4.0),), max_tokens=4, seed=5),
    SamplingParams(temperature=0, min_tokens=4, stop_token_ids=(1, 2, 3), max_tokens=6),
    SamplingParams(temperature=0, max_tokens=6, structure=Structure.of(STRUCTURE)),
)
PROMPTS = tuple(tuple(range(4 + n, 4 + 2 * n)) for n in (40, 33, 50, 5, 41, 12))


def serve(name: str, device: str, stream: Callable[[], Stream] = HostStream) -> dict[str, End]:
    """How requests of all kinds end on a device, some of them preempted and swapped."""
    layers = {"num_hidden_layers": 1} if name == "llama" else {}
    model = tiny_model(name, **layers).to(device)  # type: ignore[arg-type]
    shape = trace(type(model), model.config, torch.float32).shape
    config = replace(CONFIG, device=device, num_host_blocks=0 if shape.state_bytes else 6)
    is_ours = not any(map(TritonAttention.why_not, cache_shapes(config, shape)))
    forward = make_forward(model, config, shape, "triton" if is_ours else "torch")
    runner: GpuRunner | TorchRunner
    if isinstance(forward, GpuForward):
        runner = runner_with_graphs(forward, config, shape, stream())
    else:
        assert isinstance(forward, ModuleForward)
        runner = TorchRunner(forward, config, shape)
    core = EngineCore(
        config=config,
        runner=runner,
        shape=shape,
        card=CARD,
        key=name,
        eos_token_ids=frozenset({1}),
        knobs=Knobs(max_num_seqs=4, max_num_batched_tokens=24, watermark=0.0, preemption="swap"),
        clock=VirtualClock(),
    )
    if config.num_host_blocks:
        assert runner.swap_rate > 0
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
        tokens = [token % VOCAB_SIZE for token in prompt]
        made = grammar(STRUCTURE) if sampling.structure is not None else None
        core.add_request(Submission(request_id=str(number)), tokens, sampling, None, made)
    ends: dict[str, End] = {}
    for _ in range(200):
        for output in core.step():
            if output.end is not None:
                ends[output.request_id] = output.end
        core.check()
        assert not [record.error for record in core.records.since(0) if record.error]
        if not core.num_unfinished and core.idle:
            break
    assert len(ends) == len(PROMPTS)
    totals = core.snapshot().totals
    assert totals.preemptions
    assert bool(totals.swaps) is bool(config.num_host_blocks)
    runner.close()
    return ends


def test_all_that_is_served_is_on_its_side(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cuda(monkeypatch) as device:
        serve("llama", "cuda:0", DelayingStream)
        gc.collect()
        assert device.num_held == 0, "a closed runner holds nothing on its device"


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*SERVED, *STATEFUL, *LATENT, *MIXED}))
def test_it_is_what_a_host_gives(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected = serve(name, "cpu")
    with fake_cuda(monkeypatch):
        found = serve(name, "cuda:0", DelayingStream)
    assert {number: end.token_ids for number, end in found.items()} == {
        number: end.token_ids for number, end in expected.items()
    }


@pytest.mark.long
def test_what_is_left_on_the_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mutant: updates of block tables that nobody sends."""
    monkeypatch.setattr(runners, "send", lambda array, _device: torch.from_numpy(array))
    with fake_cuda(monkeypatch), pytest.raises((MixedDevicesError, AssertionError)) as caught:
        serve("llama", "cuda:0")
    assert "memory of the host" in str(caught.value)


@pytest.mark.long
@pytest.mark.usefixtures("encodes_here")
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "lfm2", "minicpm3"])
def test_models_are_loaded_closed_and_loaded_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    save_checkpoint(tmp_path, name)
    for module in (start, starting):
        monkeypatch.setattr(module, "stream_on", lambda _device: HostStream())
    monkeypatch.setattr(loader, "measured", partial(starting.measured, side=16, copied=64))
    options = {"device": "cuda:0", "num_blocks": 40, "max_num_batched_tokens": 64}
    with fake_cuda(monkeypatch) as device:
        for _ in range(2):
            loaded = load(tmp_path, max_num_seqs=4, **options)
            assert loaded.card.device == "cuda:0"
            assert loaded.knob_notes
            assert device.num_held
            loaded.close()
            del loaded
            gc.collect()
            assert device.num_held == 0
