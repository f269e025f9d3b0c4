"""The gate: only a model that our engine computes as transformers does is let in."""

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
from engine.model.device import is_out_of_memory
from engine.model.forward import Forward, make_forward, pick_backend
from engine.model.latents import ExpansionError
from engine.model.miniature import miniature
from engine.model.program.coded import Coded
from engine.model.program.verify import MismatchError, Wrong
from engine.model.rope import freeze_rope
from engine.model.script import Script, long_script, short_script
from engine.model.selftest import Finding, play
from engine.model.unofficial import lets_attention_be_replaced

logger = logging.getLogger(__name__)

# Layers whose attention is ours, and those with states or with neither. What is not named here may
# attend in another way.
_LAYER_TYPES = ("full_attention", "sliding_attention")
_OTHER_LAYER_TYPES = ("linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding", "moe", "mlp")

# Largest difference of a row's logits from the expected ones, as the quotient of their norms. A
# wrong computation gives about 1. Rounding alone gives 3e-6 in float32, but 0.1 in bfloat16, and
# 0.3 where it makes single tokens change their expert. So in such types, and where activations are
# rounded to 15 bits, the median row counts, and a float32 model of the same class has to pass too.
_TOLERANCE = 1e-3
_COARSE_TOLERANCE = 0.25
# That of the small models. Some layers of transformers compute a decoded token a little otherwise
# than one of a prompt: the logits of a small Zamba 2, whose steps of time have a least length in
# one of the two, differ by 0.006.
_SMALL_TOLERANCE = 0.02


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
    model: PreTrainedModel,
    config: EngineConfig,
    shape: ModelShape,
    backend: str | None = None,
    coded: Coded | None = None,
    apart: Sequence[Wrong] = (),
    *,
    is_known: bool = False,
) -> Forward:
    """A model's forward pass, once its logits have been compared with the model's own eager ones.

    What a class and our attention can get wrong is looked for on a small random model of the class,
    in all situations that the engine brings a sequence into. The loaded weights then run three
    short steps.

    Args:
        model: frozen (`engine.model.rope`), on its device.
        backend, coded, apart: as `engine.model.forward.make_forward` takes them. A quantized model
            is compared with what its codes mean.
        is_known: whether the model has passed here before. Then a program of it is only compared
            with the model operation by operation, as it is made.

    Raises:
        ModelError: they differ, or are not finite.
        ExpansionError: a layer makes something else of its latents than was expected.
        MismatchError: a kernel computes something else than the model, or cannot be run. In both
            cases the model may have lost weights and cannot be used any more.
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
    """Try on small random models of a model's class what is dear on the loaded weights.

    A token to which two experts are as good as equal may go to the other one over rounding. That
    does not happen in two models, so a second one decides where the first one is wrong.

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
    """What is wrong with a small random model of a model's class; None if nothing is.

    Raises:
        ModelError: there is none, or it asks for what no backend does.
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
    """The findings on a small random model of the class. Operations whose kernels are wrong are
    left to torch, as those of the loaded model will be.
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
    """What the findings of a script say is wrong; None if nothing is.

    Args:
        exact: whether each row counts, and not the median row.

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
    """An envelope whose steps may also be the script's."""
    return replace(
        config,
        max_num_seqs=max(config.max_num_seqs, script.max_num_seqs),
        max_num_batched_tokens=max(
            config.max_num_batched_tokens, script.max_num_batched_tokens, script.max_num_seqs
        ),
    )
