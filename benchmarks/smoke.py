"""Tokens per second at 1, 8 and 32 sessions, beside transformers' `generate`, and a step's phases.

    python -m benchmarks.smoke [--rounds N] [--sessions 1,8,32] [--models builtin,387m]

For each model and number of sessions the engine and `generate` (one static batch of prompts of
equal length) take turns on the same prompts, greedily and with a fixed number of output tokens.
Figures are medians over the rounds. Rates count output tokens over the whole run, prefill included.
The second table splits the engine's decode-only steps into phases, and compares the bytes that a
step has to move with the read bandwidth that was measured in the same run. Where native kernels
compute the whole forward pass, the third table splits that by kinds of operations.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.process.columns import align
from benchmarks.heading import heading
from benchmarks.kinds import COLUMNS, HEADLINE, Profile, cells
from benchmarks.model_387m import make_model
from engine.api.client import Submission
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import Timings
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.api.telemetry import StepRecord
from engine.batch.shape import ModelShape
from engine.builtin import MODEL_DIR
from engine.core.core import EngineCore
from engine.model.loading.loader import ModelRunner
from engine.model.program.forward import ProgramForward
from engine.model.running.forward import Forward, ModuleForward, make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
BUDGET = 2048

RATE_HEADS: tuple[tuple[str, ...], ...] = (
    ("model", "sessions", "batchdeck", "generate", "ratio", "TTFT p50", "TPOT p50"),
    ("", "", "tok/s", "tok/s", "", "ms", "ms"),
)
PHASE_HEADLINE = (
    "median milliseconds of a decode step; floor: bytes it has to move at the bandwidth above"
)
PHASE_HEAD: tuple[str, ...] = (
    *("model", "sessions", "plan", "prepare", "forward", "sample", "commit", "step"),
    *("floor", "of floor"),
)
KIND_HEAD: tuple[str, ...] = ("model", "sessions", *COLUMNS)
MODELS = ("builtin", "387m")


@dataclass(frozen=True, slots=True)
class Run:
    """One round of the engine.

    Attributes:
        timings: the engine's times of each request.
        profiles: the profile of each step, which is empty where no program computes it.
    """

    seconds: float
    timings: list[Timings]
    steps: list[StepRecord]
    profiles: list[Profile]


def load(name: str, device: torch.device) -> PreTrainedModel:
    """The built-in model, or a random one of 387 M parameters, in bfloat16. Its attention is
    torch's `sdpa`, on which `generate` runs by default."""
    model: Any  # the classes differ in how `to` is typed
    if name == "builtin":
        model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
    else:
        model = make_model()
    return cast(PreTrainedModel, model.to(device, torch.bfloat16).eval())


def device_name(device: torch.device) -> str:
    """The name of the device on which models run."""
    return torch.cuda.get_device_name() if device.type == "cuda" else device.type


def make_prompts(vocab_size: int, sessions: int, round_: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1000 * sessions + round_)
    ids = torch.randint(4, vocab_size, (sessions, PROMPT_TOKENS), generator=generator)
    return [[int(i) for i in row] for row in ids]


class Engine:
    """Our side: a core over one model, warm between rounds."""

    def __init__(self, model: PreTrainedModel, sessions: int, device: torch.device) -> None:
        length = PROMPT_TOKENS + OUTPUT_TOKENS
        config = EngineConfig(
            num_blocks=sessions * -(-length // BLOCK_SIZE) + 64,
            max_model_len=length,
            max_num_seqs=sessions,
            max_num_batched_tokens=BUDGET,
            dtype="bfloat16",
            device=str(device),
        )
        self.shape: ModelShape = trace(type(model), model.config, torch.bfloat16).shape
        self._forward = make_forward(model, config, self.shape)
        self.runner = _runner(self._forward, config, self.shape)
        card = ModelCard("bench", "", 0, "bfloat16", str(device), "torch", length, 0, 0)
        self.core = EngineCore(
            config=config,
            runner=self.runner,
            shape=self.shape,
            card=card,
            key="bench",
            eos_token_ids=frozenset(),
            knobs=Knobs(max_num_seqs=sessions, max_num_batched_tokens=BUDGET),
            clock=time.perf_counter,
        )

    def run(self, prompts: list[list[int]]) -> Run:
        first = self.core.records.total
        sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS)
        start = time.perf_counter()
        for i, prompt in enumerate(prompts):
            self.core.add_request(Submission(request_id=str(i)), prompt, sampling)
        timings = []
        profiles: list[Profile] = []
        self._profile()
        while not self.core.idle:
            timings += [o.end.timings for o in self.core.step() if o.end is not None]
            # The last call finds nothing to do and leaves no record.
            if self.core.records.total > first + len(profiles):
                profiles.append(self._profile())
        seconds = time.perf_counter() - start
        steps = list(self.core.records.since(first))
        assert len(timings) == len(prompts)
        assert len(profiles) == len(steps)
        return Run(seconds, timings, steps, profiles)

    def _profile(self) -> Profile:
        """The time of each kind of operation since the last call."""
        return self._forward.profile() if isinstance(self._forward, ProgramForward) else {}


def _runner(forward: Forward, config: EngineConfig, shape: ModelShape) -> ModelRunner:
    """The runner that a model is loaded with."""
    if isinstance(forward, (ModuleForward, ProgramForward)):
        return TorchRunner(forward, config, shape)
    # The kernels can be imported only where triton is installed.
    from engine.model.gpu.forward import GpuForward
    from engine.model.gpu.start import runner_with_graphs

    assert isinstance(forward, GpuForward)
    return runner_with_graphs(forward, config, shape)


def run_generate(model: PreTrainedModel, prompts: list[list[int]], device: torch.device) -> float:
    """Seconds that `generate` takes for the same work."""
    ids = torch.tensor(prompts, device=device)
    start = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=OUTPUT_TOKENS,
            min_new_tokens=OUTPUT_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
    assert output.shape[1] == PROMPT_TOKENS + OUTPUT_TOKENS
    return time.perf_counter() - start


def read_bandwidth(device: torch.device) -> float:
    """Bytes a second that a sum over 1 GiB reads: the best of five."""
    data = torch.ones(2**28, dtype=torch.float32, device=device)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        float(data.sum())
        best = min(best, time.perf_counter() - start)
    return data.numel() * 4 / best


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def is_decode(step: StepRecord) -> bool:
    return step.decode_tokens > 0 and not step.prefill_tokens


def phases(steps: list[StepRecord], bandwidth: float) -> list[str]:
    """Median milliseconds of each phase of a decode-only step, and how far it is from the floor."""
    decodes = [step for step in steps if is_decode(step)]
    parts = [
        [step.plan for step in decodes],
        [step.times.prepare for step in decodes],
        [step.times.forward for step in decodes],
        [step.times.sample for step in decodes],
        [step.commit for step in decodes],
        [step.duration for step in decodes],
    ]
    floor = median([step.cost.bytes / bandwidth for step in decodes])
    medians = [*map(median, parts), floor]
    return [*(f"{1e3 * part:.2f}" for part in medians), f"{median(parts[-1]) / floor:.2f}x"]


def kinds(runs: list[Run], shape: ModelShape) -> list[str] | None:
    """Median milliseconds of each kind of operation in a decode-only step, if they are known."""
    decodes = [
        (step, profile)
        for run in runs
        for step, profile in zip(run.steps, run.profiles, strict=True)
        if is_decode(step) and profile
    ]
    return cells(decodes, shape) if decodes else None


def rates(runs: list[Run], peers: list[float], sessions: int) -> list[str]:
    """Tokens a second of both sides, and the engine's latencies, as medians.

    Args:
        peers: the seconds that each round of `generate` took.
    """
    tokens = sessions * OUTPUT_TOKENS
    ours = median([tokens / run.seconds for run in runs])
    theirs = median([tokens / seconds for seconds in peers])
    timings = [timing for run in runs for timing in run.timings]
    ttft = median([timing.ttft for timing in timings if timing.ttft is not None])
    tpot = median([timing.tpot for timing in timings if timing.tpot is not None])
    return [
        *(f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"),
        *(f"{1e3 * ttft:.1f}", f"{1e3 * tpot:.2f}"),
    ]


def take_turns(
    engine: Engine, peer: PreTrainedModel, sessions: int, rounds: int, device: torch.device
) -> tuple[list[Run], list[float]]:
    """The engine's rounds, and the seconds of those of `generate`, after one to warm up."""
    runs, peers = [], []
    for round_ in range(-1, rounds):
        prompts = make_prompts(engine.shape.vocab_size, sessions, round_)
        run, seconds = engine.run(prompts), run_generate(peer, prompts, device)
        if round_ >= 0:
            runs.append(run)
            peers.append(seconds)
    return runs, peers


def show(table: list[tuple[str, ...]], *headlines: str) -> None:
    """Print a table below its headlines. The model's name is flush left."""
    print("", *headlines, sep="\n")
    print("\n".join(align(table, numbers=range(1, len(table[0])))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", default="1,8,32")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    models = options.models.split(",")
    for name in models:
        if name not in MODELS:
            parser.error(f"--models: {name!r} is none; it must be of {', '.join(MODELS)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    bandwidth = read_bandwidth(device)
    print(
        heading(
            device_name(device),
            f"{torch.get_num_threads()} threads ({os.environ['OMP_WAIT_POLICY'].lower()} waiting)",
            f"torch {torch.__version__}, transformers {transformers.__version__}",
            f"reads {bandwidth / 1e9:.1f} GB/s",
        )
    )
    print(f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, bfloat16, {options.rounds} rounds")
    rate_rows, phase_rows, kind_rows = list(RATE_HEADS), [PHASE_HEAD], [KIND_HEAD]
    for model_name in models:
        for sessions in map(int, options.sessions.split(",")):
            peer = load(model_name, device)
            engine = Engine(load(model_name, device), sessions, device)
            runs, peers = take_turns(engine, peer, sessions, options.rounds, device)
            steps = [step for run in runs for step in run.steps]
            head = (model_name, str(sessions))
            rate_rows.append((*head, *rates(runs, peers, sessions)))
            phase_rows.append((*head, *phases(steps, bandwidth)))
            if parts := kinds(runs, engine.shape):
                kind_rows.append((*head, *parts))
            engine.runner.close()
    show(rate_rows)
    show(phase_rows, PHASE_HEADLINE)
    if len(kind_rows) > 1:
        show(kind_rows, HEADLINE)


if __name__ == "__main__":
    main()
