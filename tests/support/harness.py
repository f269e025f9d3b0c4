"""CoreHarness: a core over a scripted runner, driven step by step."""

from __future__ import annotations

from collections.abc import Sequence

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.knobs import Knobs
from engine.output import End
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.snapshot import ModelCard
from tests.support.clock import VirtualClock
from tests.support.scripted_runner import ScriptedRunner

EOS = 999
SHAPE = ModelShape(
    num_params=1000,
    num_active_params=800,
    hidden_size=8,
    vocab_size=1000,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    value_dim=4,
    windows=(None, 4),
    dtype_bytes=4,
)
CARD = ModelCard("scripted", "Scripted", 1000, "float32", "cpu", "none", 512, 4000, 64)


class CoreHarness:
    """Collects what a core gives, and checks its books after every step.

    Attributes:
        tokens: output token ids so far, by request.
        ends: how each request ended; a second end fails the test.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 128,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        depth: int = 1,
        watermark: float = 0.0,
        **knobs: object,
    ) -> None:
        self.config = EngineConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        self.clock = VirtualClock()
        self.runner = ScriptedRunner(self.config, depth, self.clock)
        start = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "watermark": watermark,
        }
        self.core = EngineCore(
            config=self.config,
            runner=self.runner,
            shape=SHAPE,
            card=CARD,
            key="scripted",
            eos_token_ids=frozenset({EOS}),
            knobs=Knobs(**(start | knobs)),  # type: ignore[arg-type]
            clock=self.clock,
        )
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, End] = {}

    def submit(
        self, name: str, prompt: Sequence[int], max_tokens: int | None = 4, **options: object
    ) -> None:
        sampling = {"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True}
        names = ("priority", "deadline", "origin")
        routed = {key: options.pop(key) for key in names if key in options}
        params = SamplingParams(**(sampling | options))  # type: ignore[arg-type]
        self.core.submit(name, prompt, params, **routed)  # type: ignore[arg-type]

    def step(self) -> None:
        for output in self.core.step():
            assert output.request_id not in self.ends, f"{output.request_id} spoke after its end"
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.end is not None:
                self.ends[output.request_id] = output.end
        self.core.check()

    def run(self, max_steps: int = 2000) -> None:
        """Step until there is nothing to do."""
        for _ in range(max_steps):
            self.step()
            if self.core.idle:
                return
        raise AssertionError(f"not idle after {max_steps} steps")
