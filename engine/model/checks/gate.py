"""Gate: accepts only models that our engine computes as transformers does."""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

from engine.api.config import EngineConfig
from engine.api.errors import ModelError, cause_of
from engine.batch.shape import ModelShape
from engine.cache.storage import cache_shapes
from engine.model.checks.miniature import miniature
from engine.model.checks.script import Script, long_script, short_script
from engine.model.checks.selftest import Finding, play
from engine.model.machine.device import is_out_of_memory
from engine.model.program.coded import Coded
from engine.model.program.verify import MismatchError, Wrong
from engine.model.running.forward import Forward, make_forward, pick_backend
from engine.model.tracing.latents import ExpansionError
from engine.model.tracing.rope import freeze_rope
from engine.model.tracing.unofficial import lets_attention_be_replaced

logger = logging.getLogger(__name__)

# Layers with our attention, and those with states or with neither. Types not listed here may attend
# in another way.
_LAYER_TYPES = ("full_attention", "sliding_attention")
_OTHER_LAYER_TYPES = ("linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding", "moe", "mlp")

# Largest difference of a row's logits from the expected ones, as the quotient of their norms. A
# wrong computation gives about 1. Rounding alone gives 3e-6 in float32, but 0.1 in bfloat16, and
# 0.3 if it changes the expert of single tokens. So in such types, and if activations are rounded to
# 15 bits, the median row counts, and a float32 model of the same class has to pass too.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 0.25
# The same for the small models. Some layers of transformers compute a decoded token slightly
# differently from one of a prompt: the logits of a small Zamba 2, whose time steps have a minimum
# length in only one of the two, differ by 0.006.
_SMALL_TOLERANCE = 0.02


def find_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that computes text for a configuration.

    A model that takes images or sound beside text has a separate text class, or is served as it is
    (`engine.model.tracing.text_part`).

    Raises:
        ModelError: the configuration or the class states something unsupported; the sentence says
            what.
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
    model: PreTrainedModel,
    config: EngineConfig,
    shape: ModelShape,
    backend: str | None = None,
    coded: Coded | None = None,
    apart: Sequence[Wrong] = (),
    *,
    is_known: bool = False,
) -> Forward:
    """Make a model's forward pass, and compare its logits with the model's own eager ones.

    Errors of a class or of our attention are searched with a small random model of the class, in
    all situations of a sequence in the engine. The loaded weights then run three short steps.

    Args:
        model: frozen (`engine.model.tracing.rope`), on its device.
        backend, coded, apart: see `engine.model.running.forward.make_forward`. A quantized model is
            compared with the values of its codes.
        is_known: whether the model has passed before. Then its program is only compared with the
            model operation by operation, while it is made.

    Raises:
        ModelError: they differ, or are not finite.
        ExpansionError: a layer computes something unexpected from its latents.
        MismatchError: a kernel computes something different from the model, or cannot be run. In
            both cases the model may have lost weights and cannot be used any more.
    """
    backend = backend or pick_backend(*cache_shapes(config, shape))
    if is_known:
        return make_forward(model, config, shape, backend, coded, apart)
    _check_class(model, config, shape, backend)
    dtype: torch.dtype = getattr(torch, config.dtype)
    exact = dtype == torch.float32 and (coded is None or not coded.has_codes)
    name, script = type(model).__name__, short_script(shape.vocab_size, config.block_size)
    try:
        forward, findings = play(
            model, _with_room(config, script), shape, backend, script, coded, apart
        )
        allowed = _TOLERANCE if exact else _COARSE_TOLERANCE
        fault = _fault(findings, dtype, allowed, name, exact)
    except (ModelError, ExpansionError, MismatchError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        fault = f"its self-test failed ({cause_of(error)})"
    if fault is None:
        return forward
    if backend != "torch":  # which may compute it
        raise MismatchError(f"{name} by {backend}: {fault}")
    if model.dtype != torch.float32:
        fault += "; a small model of its class is right in float32, which dtype may be set to"
    raise ModelError(f"{name} is not supported: {fault}")


def _check_class(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, backend: str
) -> None:
    """Run the tests that are too expensive on the loaded weights on small random models of the
    class.

    If two experts are equally good for a token, rounding may send it to the other one. That does
    not happen in two models, so a second one decides if the first one is wrong.

    Raises:
        ModelError: they are computed wrongly.
        MismatchError: they are, but not by torch alone.
    """
    fault = None
    for seed in (0, 1):
        fault = _fault_of_small(model, config, shape, backend, seed)
        if fault is None:
            return
    name = type(model).__name__
    if backend != "torch" and _fault_of_small(model, config, shape, "torch", 1) is None:
        raise MismatchError(f"{name} by {backend}: {fault}; torch computes it right")
    raise ModelError(f"{name} is not supported: {fault}")


def _fault_of_small(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, backend: str, seed: int
) -> str | None:
    """The fault of a small random model of a model's class; None if there is none.

    Raises:
        ModelError: there is no such model, or it needs something that no backend supports.
        MismatchError: a kernel differs.
    """
    name = type(model).__name__
    try:
        findings = _findings_of_small(model, config, shape, backend, seed)
    except (ModelError, ExpansionError, MismatchError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return f"its self-test failed ({cause_of(error)})"
    return _fault(findings, torch.float32, _SMALL_TOLERANCE, f"a small {name}", exact=True)


def _findings_of_small(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, backend: str, seed: int
) -> list[Finding]:
    """The findings on a small random model of the class. Torch computes operations whose kernels
    are wrong, as it will in the loaded model.
    """
    apart: tuple[Wrong, ...] = ()
    while True:
        small, small_shape = miniature(type(model), model.config, shape, model.device, seed)
        freeze_rope(small, config.max_model_len)
        script = long_script(
            small_shape.vocab_size, config.block_size, keeps_states=bool(small_shape.state_bytes)
        )
        envelope = script.envelope(replace(config, dtype="float32"))
        try:
            _, findings = play(small, envelope, small_shape, backend, script, apart=apart)
        except MismatchError as error:
            if not error.wrong:
                raise
            apart += error.wrong
        else:
            return findings


def _fault(
    findings: Sequence[Finding], dtype: torch.dtype, allowed: float, name: str, exact: bool
) -> str | None:
    """The fault that a script's findings show; None if there is none.

    Args:
        exact: whether each row counts, rather than the median row.

    Raises:
        ModelError: some logits are not finite.
    """
    if not all(math.isfinite(one.difference) for one in findings):
        wider = "; bfloat16 holds larger numbers" if dtype == torch.float16 else ""
        raise ModelError(f"{name} gives logits that are not finite in {dtype}{wider}")
    differences = [one.difference for one in findings]
    found = max(differences) if exact else statistics.median(differences)
    logger.info("self-test of %s in %s: logits differ by %.2g", name, dtype, found)
    if found <= allowed:
        return None
    first = next(one for one in findings if one.difference > allowed)
    return (
        f"with paged attention its logits differ from its own by {first.difference:.2g}, more than "
        f"{allowed:g}, {first.situation}"
    )


def _with_room(config: EngineConfig, script: Script) -> EngineConfig:
    """An envelope large enough for the script's steps too."""
    return replace(
        config,
        max_num_seqs=max(config.max_num_seqs, script.max_num_seqs),
        max_num_batched_tokens=max(
            config.max_num_batched_tokens, script.max_num_batched_tokens, script.max_num_seqs
        ),
    )
