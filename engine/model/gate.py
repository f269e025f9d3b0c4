"""The gate: only a model that our engine computes as transformers does is let in."""

from __future__ import annotations

import logging
import math
import statistics
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

from engine.api.config import EngineConfig
from engine.api.errors import ModelError, cause_of
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.batch.shape import ModelShape
from engine.model.device import is_out_of_memory
from engine.model.forward import Forward, make_forward
from engine.model.latents import ExpansionError
from engine.model.miniature import miniature
from engine.model.program.verify import MismatchError
from engine.model.rope import freeze_rope
from engine.model.runner import TorchRunner
from engine.model.unofficial import lets_attention_be_replaced

logger = logging.getLogger(__name__)

# Layers whose attention is ours, and those with states or with neither. What is not named here may
# attend in another way that the self-test is too short to see, as chunked attention is.
_LAYER_TYPES = ("full_attention", "sliding_attention")
_OTHER_LAYER_TYPES = ("linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding", "moe", "mlp")

# The test's sequences have few tokens, because a step of 8 billion parameters takes 0.7 s on a
# small host. They suffice to cut a prompt at odd places, to share steps between two sequences, and
# to cross from block to block.
_LENGTH = 20

# Largest difference of a row's logits from the expected ones, as the quotient of their norms. A
# wrong computation gives about 1. Rounding alone gives 3e-6 in float32, but 0.1 in bfloat16, and
# 0.3 where it makes single tokens change their expert. So in such types the median row counts, and
# a float32 model of the same class has to pass too.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 0.25


def find_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that computes text for a configuration.

    What takes images or sound beside text has a class of text alone, or serves as it is
    (`engine.model.text_part`).

    Raises:
        ModelError: the configuration or the class states something that is not served; the sentence
            says what.
    """
    kind = config.model_type
    text = config.get_text_config()
    if config.is_encoder_decoder or text.is_encoder_decoder:
        raise ModelError(f"{kind} is not supported: it is an encoder with a decoder")
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING)
    found: list[Any] = [mapping.get(type(config), None) for mapping in mappings]
    classes: list[type[PreTrainedModel]] = [one for one in found if isinstance(one, type)]
    if not classes:
        raise ModelError(
            f"{kind} is not supported: transformers has no causal language model for it"
        )
    model_class = classes[0]
    name = model_class.__name__
    if config.architectures and not {one.__name__ for one in classes} & set(config.architectures):
        raise ModelError(
            f"{config.architectures[0]} is not supported: its causal language model would be {name}"
        )
    if text is config and not lets_attention_be_replaced(model_class):
        raise ModelError(f"{name} is not supported: its attention cannot be replaced")
    known = (*_LAYER_TYPES, *_OTHER_LAYER_TYPES)
    others = sorted(set(getattr(text, "layer_types", None) or ()) - set(known))
    if others:
        raise ModelError(
            f"{name} is not supported: it has layers of {', '.join(others)}; supported are "
            f"{', '.join(known)}"
        )
    return model_class


def checked_forward(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, backend: str | None = None
) -> Forward:
    """A model's forward pass, once its logits have been compared with the model's own eager ones.

    They are compared on the loaded weights. Where these alone cannot tell, because their type is
    coarse or a window is as long as the test's sequences or longer, they are also compared on a
    small random model of the same class.

    Args:
        model: frozen (`engine.model.rope`), on its device.
        backend: as `engine.model.forward.make_forward` takes it.

    Raises:
        ModelError: they differ, or are not finite.
        ExpansionError: a layer makes something else of its latents than was expected.
        MismatchError: a kernel computes something else than the model, or cannot be run. In both
            cases the model may have lost weights and cannot be used any more.
    """
    wide = any(window is not None and window >= _LENGTH for window in shape.windows)
    if wide or model.dtype != torch.float32:
        small, small_shape = miniature(type(model), model.config, shape, model.device)
        freeze_rope(small, config.max_model_len)
        _compared(small, replace(config, dtype="float32"), small_shape, backend)
    return _compared(model, config, shape, backend)


@torch.inference_mode()
def _compared(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, backend: str | None
) -> Forward:
    """Run two sequences in chunks, then decode, and compare with one eager pass over both."""
    name = type(model).__name__
    # The sequences differ from the first token on, and their tokens spread over the vocabulary.
    token_ids = [
        [(7919 * (2 * i + row) + 13) % shape.vocab_size for i in range(_LENGTH)] for row in (0, 1)
    ]
    try:
        model.set_attn_implementation("eager")
        expected = model(
            input_ids=torch.tensor(token_ids, device=model.device), use_cache=False
        ).logits
        forward = make_forward(model, _with_room(config), shape, backend)
        runner = TorchRunner(
            forward,
            replace(
                config,
                num_blocks=2 * config.blocks_for(_LENGTH),
                num_host_blocks=0,
                max_model_len=_LENGTH,
                max_num_seqs=2,
                max_num_batched_tokens=2 * _LENGTH,
            ),
            shape,
        )
        differences = []
        for plan in _plans(token_ids, config):
            logits = runner.logits(plan)
            for got, row in zip(logits, plan.rows, strict=True):
                differences.append(_difference(got, expected[row.seq, row.start + row.count - 1]))
        runner.close()
    except (ModelError, ExpansionError, MismatchError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if backend == "triton":  # the kernels may not compile for this GPU
            raise MismatchError(f"the self-test of {name} failed ({cause_of(error)})") from error
        raise ModelError(
            f"{name} is not supported: its self-test failed ({cause_of(error)})"
        ) from error
    if not all(math.isfinite(difference) for difference in differences):
        raise ModelError(f"{name} gives logits that are not finite in {model.dtype}")
    exact = model.dtype == torch.float32
    found = max(differences) if exact else statistics.median(differences)
    allowed = _TOLERANCE if exact else _COARSE_TOLERANCE
    logger.info("self-test of %s in %s: logits differ by %.2g", name, model.dtype, found)
    if found > allowed and backend == "triton":
        raise MismatchError(f"logits of {name} differ by {found:.2g}, more than {allowed:g}")
    if found > allowed:
        raise ModelError(
            f"{name} is not supported: with paged attention its logits differ from its own by "
            f"{found:.2g}, more than {allowed:g}"
        )
    return forward


def _with_room(config: EngineConfig) -> EngineConfig:
    """An envelope whose steps may also be the test's."""
    return replace(
        config,
        max_num_seqs=max(config.max_num_seqs, 2),
        max_num_batched_tokens=max(config.max_num_batched_tokens, 2 * _LENGTH),
    )


def _plans(token_ids: list[list[int]], config: EngineConfig) -> list[StepPlan]:
    """Two steps with chunks of both, then a decode beside a short chunk. Every row gives logits."""
    cuts = ((0, 5, 19, 20), (0, 3, 18, 20))
    blocks_of_row = config.blocks_for(_LENGTH)
    # A sequence's blocks are neither in order nor adjacent.
    tables = [list(range(2 * blocks_of_row - 1 - row, -1, -2)) for row in (0, 1)]
    new = tuple(
        NewSequence(row, tuple(token_ids[row]), _LENGTH, SamplingParams(), 0, (), ())
        for row in (0, 1)
    )
    plans = []
    for step in range(1, len(cuts[0])):
        rows = []
        for row in (0, 1):
            start, stop = cuts[row][step - 1], cuts[row][step]
            blocks = tables[row][config.blocks_for(start) : config.blocks_for(stop)]
            rows.append(Row(row, start, stop - start, tuple(blocks), True, stop - start > 1))
        plans.append(StepPlan(step, tuple(rows), new=new if step == 1 else ()))
    return plans


def _difference(got: Tensor, expected: Tensor) -> float:
    expected = expected.float()
    return float((got - expected).norm() / expected.norm())
