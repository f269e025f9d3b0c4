"""Tokens per second at 1, 8 and 32 sessions, beside transformers' `generate`, and a step's phases.

    python -m benchmarks.smoke [--rounds N] [--sessions 1,8,32] [--models builtin,387m]

For each model and number of sessions the engine and `generate` (one static batch of prompts of
equal length) take turns on the same prompts, greedy, with a fixed number of output tokens; figures
are medians over the rounds. Rates count output tokens over the whole run, prefill included. The
second table takes the engine's decode-only steps apart and sets the bytes that a step has to move
against the read bandwidth measured in the same run. Where native kernels compute the whole forward
pass, the third one takes it apart.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.kinds import COLUMNS, HEADLINE, Profile, cells
from benchmarks.model_387m import make_model
from engine.builtin import MODEL_DIR
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.knobs import Knobs
from engine.model.forward import make_forward
from engine.model.program.forward import ProgramForward
from engine.model.runner import TorchRunner
from engine.model.trace import trace
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.snapshot import ModelCard
from engine.stream import Timings
from engine.telemetry import StepRecord

PROMPT_TOKENS = 128
OUTPUT_TOKENS = 64
BUDGET = 2048


@dataclass(frozen=True, slots=True)
class Run:
    """One round of the engine.

    Attributes:
        timings: of each request.
        profiles: of each step; empty ones where no program computes it.
    """

    seconds: float
    timings: list[Timings]
    steps: list[StepRecord]
    profiles: list[Profile]


def load(name: str, device: torch.device) -> PreTrainedModel:
    """The built-in model, or a random one of 387 M parameters, in bfloat16 with eager attention's
    fast sibling (`sdpa`), which is what `generate` runs on by default."""
    model: Any  # the classes differ in how `to` is typed
    if name == "builtin":
        model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
    else:
        model = make_model()
    return cast(PreTrainedModel, model.to(device, torch.bfloat16).eval())


def make_prompts(vocab_size: int, sessions: int, round_: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1000 * sessions + round_)
    ids = torch.randint(4, vocab_size, (sessions, PROMPT_TOKENS), generator=generator)
    return [[int(i) for i in row] for row in ids]


class Engine:
    """Our side: a core over one model, warm between rounds."""

    def __init__(self, model: PreTrainedModel, sessions: int, device: torch.device) -> None:
        length = PROMPT_TOKENS + OUTPUT_TOKENS
        config = EngineConfig(
            num_blocks=sessions * -(-length // 16) + 64,
            max_model_len=length,
            max_num_seqs=sessions,
            max_num_batched_tokens=BUDGET,
            dtype="bfloat16",
            device=str(device),
        )
        self.shape: ModelShape = trace(type(model), model.config, torch.bfloat16).shape
        self._forward = make_forward(model, config, self.shape)
        self.runner = TorchRunner(self._forward, config, self.shape)
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
            self.core.submit(str(i), prompt, sampling)
        timings = []
        profiles: list[Profile] = []
        self._profile()
        while not self.core.idle:
            timings += [o.end.timings for o in self.core.step() if o.end is not None]
            # The last call finds nothing to do, and leaves no record.
            if self.core.records.total > first + len(profiles):
                profiles.append(self._profile())
        seconds = time.perf_counter() - start
        steps = list(self.core.records.since(first))
        assert len(timings) == len(prompts)
        assert len(profiles) == len(steps)
        return Run(seconds, timings, steps, profiles)

    def _profile(self) -> Profile:
        """What each kind of operation has cost since this was last asked."""
        return self._forward.profile() if isinstance(self._forward, ProgramForward) else {}


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


def phases(steps: list[StepRecord], bandwidth: float) -> str:
    """Median milliseconds of each phase of a decode-only step, and its distance to the floor."""
    decodes = [step for step in steps if is_decode(step)]
    parts = [
        [step.plan for step in decodes],
        [step.times.prepare for step in decodes],
        [step.times.forward for step in decodes],
        [step.times.sample for step in decodes],
        [step.commit for step in decodes],
        [step.duration for step in decodes],
    ]
    cells = [f"{1e3 * median(part):8.2f}" for part in parts]
    floor = median([step.cost.bytes / bandwidth for step in decodes])
    cells.append(f"{1e3 * floor:8.2f}")
    cells.append(f"{median(parts[-1]) / floor:7.2f}x")
    return " ".join(cells)


def kinds(runs: list[Run], shape: ModelShape) -> str | None:
    """Median milliseconds of each kind of operation in a decode-only step, if they are known."""
    decodes = [
        (step, profile)
        for run in runs
        for step, profile in zip(run.steps, run.profiles, strict=True)
        if is_decode(step) and profile
    ]
    if not decodes:
        return None
    return " ".join(f"{cell:>9}" for cell in cells(decodes, shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sessions", default="1,8,32")
    parser.add_argument("--models", default="builtin,387m")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.machine()
    bandwidth = read_bandwidth(device)
    print(
        f"{device} {name}, {torch.get_num_threads()} threads "
        f"({os.environ['OMP_WAIT_POLICY'].lower()} waiting), torch {torch.__version__}, "
        f"transformers {transformers.__version__}; reads {bandwidth / 1e9:.1f} GB/s; "
        f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, bfloat16, {options.rounds} rounds"
    )
    rows, phase_rows, kind_rows = [], [], []
    for model_name in options.models.split(","):
        for sessions in map(int, options.sessions.split(",")):
            peer = load(model_name, device)
            engine = Engine(load(model_name, device), sessions, device)
            vocab = engine.shape.vocab_size
            runs, peers = [], []
            for round_ in range(-1, options.rounds):  # round -1 warms up
                prompts = make_prompts(vocab, sessions, round_)
                run, seconds = engine.run(prompts), run_generate(peer, prompts, device)
                if round_ >= 0:
                    runs.append(run)
                    peers.append(seconds)
            tokens = sessions * OUTPUT_TOKENS
            ours = median([tokens / run.seconds for run in runs])
            theirs = median([tokens / seconds for seconds in peers])
            timings = [timing for run in runs for timing in run.timings]
            ttft = median([timing.ttft for timing in timings if timing.ttft is not None])
            tpot = median([timing.tpot for timing in timings if timing.tpot is not None])
            head = f"{model_name:8} {sessions:8}"
            rows.append(
                f"{head} {ours:10.1f} {theirs:10.1f} {ours / theirs:7.2f} "
                f"{1e3 * ttft:9.1f} {1e3 * tpot:9.2f}"
            )
            steps = [step for run in runs for step in run.steps]
            phase_rows.append(f"{head} {phases(steps, bandwidth)}")
            if parts := kinds(runs, engine.shape):
                kind_rows.append(f"{head} {parts}")
            engine.runner.close()
    print(
        f"\n{'model':8} {'sessions':>8} {'batchdeck':>10} {'generate':>10} {'ratio':>7} "
        f"{'TTFT p50':>9} {'TPOT p50':>9}\n{'':17} {'tok/s':>10} {'tok/s':>10} {'':7} "
        f"{'ms':>9} {'ms':>9}"
    )
    print("\n".join(rows))
    columns = ("plan", "prepare", "forward", "sample", "commit", "step", "floor")
    print(
        "\nmedian milliseconds of a decode step; floor: bytes it has to move at the bandwidth above"
        f"\n{'model':8} {'sessions':>8} "
        + " ".join(f"{column:>8}" for column in columns)
        + f" {'of floor':>8}"
    )
    print("\n".join(phase_rows))
    if kind_rows:
        names = " ".join(f"{column:>9}" for column in COLUMNS)
        print(f"\n{HEADLINE}\n{'model':8} {'sessions':>8} {names}")
        print("\n".join(kind_rows))


if __name__ == "__main__":
    main()
