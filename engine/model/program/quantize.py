"""quantize: has a model's products multiply whole numbers of 8 or 4 bits, with a scale a group."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError, ModelError
from engine.batch.shape import ModelShape
from engine.cache.storage import cache_shapes
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.program.capture import NUM_TOKENS
from engine.model.program.coded import Coded
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import Elementwise, Experts, Gated, Graph, Linear
from engine.model.program.unreadable import UnreadableError
from engine.model.state.modules import find_states
from engine.native import kernels

logger = logging.getLogger(__name__)

_BITS = {"int8": 8, "int4": 4}
# The head chooses the token, and is not as many numbers as the layers. GGUF's mixtures keep it wide
# too, and so does NNCF.
_HEAD_BITS = 8

# Outputs of a product below which it stays: it would be filled up to as many.
_LEAST = 32


def quantize(model: PreTrainedModel, config: EngineConfig, shape: ModelShape) -> Coded | None:
    """Quantize the weights that a model's products multiply, in place: to nearest, without data.

    Afterwards the model computes what its codes mean. The program of it differs from that by the
    rounding of activations to 8 bits. Embeddings are quantized only where they are the head's
    weights too; norms, biases, convolutions and the routers of experts never are.

    Returns:
        the scales, for `engine.model.forward.make_forward`; None if `config` asks for none.

    Raises:
        InvalidConfigError: there are no kernels for it on this device.
        ModelError: the model is not read as a program, so that no kernel of ours would multiply.
    """
    if config.quantize == "none":
        return None
    check_device(config, shape)
    native = kernels()
    assert native is not None
    began = time.perf_counter()
    model.eval()  # type: ignore[no-untyped-call]
    graph = _read(model, config, shape)
    coded, bits = Coded(native, model), _BITS[config.quantize]
    routers = {id(one.logits.value) for one in graph.operations if isinstance(one, Experts)}
    head = _head(graph)
    for operation in graph.operations:
        if not isinstance(operation, (Linear, Gated, Experts)):
            continue
        if id(operation.out) not in routers and operation.out.width >= _LEAST:
            for weight in operation.weights:
                coded.quantize(weight, max(bits, _HEAD_BITS) if operation is head else bits)
    logger.info(
        "%s was quantized to %s in %.1f s",
        type(model).__name__,
        config.quantize,
        time.perf_counter() - began,
    )
    return coded


def check_device(config: EngineConfig, shape: ModelShape) -> None:
    """See that there are kernels for what `config` asks for.

    Raises:
        InvalidConfigError: there are none.
    """
    if config.quantize == "none":
        return
    why: Iterable[str | None]
    if config.device == "cpu":
        why = map(CpuAttention.why_not, cache_shapes(config, shape))
    else:
        why = [f"the device is {config.device}"]
    for reason in filter(None, why):
        raise InvalidConfigError(
            f"quantize is {config.quantize!r}; allowed is 'none' here, because {reason}", "quantize"
        )


def quantized_bytes(quantize: str, multiplied: int, head: int) -> int:
    """About how many bytes so many numbers take, of the layers' products and of the head."""
    bits = _BITS[quantize]
    each = {8: 1 + 2 / 128, 4: 1 / 2 + 2 / 32}
    return int(multiplied * each[bits] + head * each[max(bits, _HEAD_BITS)])


def _read(model: PreTrainedModel, config: EngineConfig, shape: ModelShape) -> Graph:
    name = type(model).__name__
    refusal = f"{name} cannot be quantized to {config.quantize}"
    if shape.has_latents:
        raise ModelError(f"{refusal}: it stores latents, so it runs module by module", "quantize")
    try:
        states = find_states(model, shape, 1, 0)
        positions = max(config.max_model_len, NUM_TOKENS)
        return fuse(find_graph(model, shape, positions, states)[0])
    except UnreadableError as error:
        why = f"it runs module by module, since {error}"
        raise ModelError(f"{refusal}: {why}", "quantize") from None


def _head(graph: Graph) -> Linear | None:
    """The product that gives the logits, or what is then done to each of them."""
    found = {id(graph.logits)}
    for operation in reversed(graph.operations):
        if id(operation.out) in found:
            if isinstance(operation, Linear):
                return operation
            if isinstance(operation, Elementwise):
                found.add(id(operation.x.value))
    return None
