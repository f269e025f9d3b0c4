"""The real core over a scripted runner, as the engine of a model that front ends may talk to."""

from __future__ import annotations

from dataclasses import replace

from engine.api.client import LoadRequest
from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.preset import Preset
from engine.api.sampling import SamplingParams
from engine.api.status import OffPath, QuantizationLoss
from engine.batch.shape import ModelShape
from engine.core.core import EngineCore
from tests.support.clock import VirtualClock
from tests.support.scripted_runner import ScriptedRunner

CONFIG = EngineConfig(
    num_blocks=256, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=512
)
SHAPE = ModelShape(
    num_params=2_000_000,
    num_active_params=1_500_000,
    hidden_size=128,
    vocab_size=65_536,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    value_dim=32,
    windows=(None,) * 4,
    dtype_bytes=4,
)
MODEL_KEY = "scripted@1:float32"
SAMPLING = SamplingParams(temperature=0.7)
BASE = "base"  # the name of a model without a chat template, for which nothing is recommended
PRESETS = (Preset("terse", "Be brief.", {"temperature": 0.2}),)


LOSS = QuantizationLoss(tokens=256, equal_best=0.989, divergence=0.00131)


def scripted_core(
    request: LoadRequest,
    runner: ScriptedRunner,
    knobs: Knobs,
    clock: VirtualClock,
    off_path: tuple[OffPath, ...] = (),
    off_kernels: str = "",
) -> EngineCore:
    config, name = runner.config, request.model
    quantize = request.quantize or "none"
    card = replace(
        SHAPE.card(config, name=name, architecture="ScriptedForCausalLM", attention="scripted"),
        quantize=quantize,
        loss=LOSS if quantize != "none" else None,
        sampling=SAMPLING if name != BASE else SamplingParams(),
        sampling_sources={"temperature": "models.toml"} if name != BASE else {},
        has_chat_template=name != BASE,
        switches_thinking=name != BASE,
        presets=PRESETS,
        off_path=off_path,
        off_kernels=off_kernels,
    )
    return EngineCore(
        config=config,
        runner=runner,
        shape=SHAPE,
        card=card,
        key=MODEL_KEY,
        eos_token_ids=frozenset(),
        knobs=knobs,
        clock=clock,
    )
