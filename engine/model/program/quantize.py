"""quantize, recognize: make a model's products multiply integers of 8 or 4 bits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError, ModelError
from engine.batch.shape import ModelShape
from engine.cache.storage import cache_shapes
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.program.capture import NUM_TOKENS
from engine.model.program.coded import Coded, Coder, Origins
from engine.model.program.find import find_graph
from engine.model.program.fuse import fuse
from engine.model.program.graph import Graph
from engine.model.program.operations.elementwise import Elementwise
from engine.model.program.operations.kerneled import Weighted
from engine.model.program.operations.linear import Linear
from engine.model.program.unreadable import UnreadableError
from engine.model.program.weights import Weight
from engine.model.state.modules import find_states
from engine.native import kernels

logger = logging.getLogger(__name__)

_BITS = {"int8": 8, "int4": 4}
# The head chooses the token, and is smaller than the layers. GGUF's mixtures also keep it wide, and
# so does NNCF.
_HEAD_BITS = 8

# Bits and group of codes for weights stored as codes that no kernel multiplies. For e4m3 they lose
# 0.5 % (normally distributed numbers) to 0.8 % (Student's t with 3 degrees); groups of 128 would
# lose 0.6 % to 1.3 %, for 4 % fewer bytes.
NEAREST = (8, 32)

# A product with fewer outputs is not quantized, because it would be padded to as many.
_LEAST = 32


def quantize(model: PreTrainedModel, config: EngineConfig, shape: ModelShape) -> Coded | None:
    """Quantize the weights of a model's products, in place: to nearest, without data.

    Afterwards the model computes with the values of its codes. Its program differs from that by
    rounding activations to 15 bits. Embeddings are quantized only if they are also the head's
    weights; norms, biases, convolutions and routers of experts never are.

    Returns:
        the scales, for `engine.model.running.forward.make_forward`; None if `config` asks for none.

    Raises:
        InvalidConfigError: there are no kernels for it on this device.
        ModelError: the model cannot be read as a program, so that no kernel of ours would multiply.
    """
    if config.quantize == "none":
        return None
    check_device(config, shape)
    native = kernels()
    assert native is not None
    began = time.perf_counter()
    try:
        graph = _read(model, config, shape)
    except UnreadableError as error:
        name = type(model).__name__
        raise ModelError(
            f"{name} cannot be quantized to {config.quantize}: it runs module by module, since "
            f"{error}",
            "quantize",
        ) from None
    coder, bits = Coder(native, model), _BITS[config.quantize]
    head = _head(graph)
    for product in _products(graph):
        for weight in product.weights:
            coder.quantize(weight, max(bits, _HEAD_BITS) if product is head else bits)
    logger.info(
        "%s was quantized to %s in %.1f s",
        type(model).__name__,
        config.quantize,
        time.perf_counter() - began,
    )
    return coder.coded


def check_device(config: EngineConfig, shape: ModelShape) -> None:
    """Check that there are kernels for the quantization in `config`.

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


@dataclass(frozen=True, slots=True)
class Recognized:
    """The codes of a checkpoint that were found in a model's floats.

    Attributes:
        coded: the scales, for `engine.model.running.forward.make_forward`; None if no product has
            such weights, or the model runs module by module.
        rest: weights of products that were stored as codes of another kind.
        coder: the coder of both.
    """

    coded: Coded | None
    rest: Sequence[Weight] = ()
    coder: Coder | None = None

    def round_rest(self) -> Coded | None:
        """Round the rest to the nearest codes, in place.

        A group's greatest number has the code 127, so that the loss is at most 1.3 % of its norm,
        and 0.5 % for a normal distribution: e4m3 has already lost 2.6 % of that, and NF4 9 %.

        Returns:
            all scales.
        """
        if self.coder is None:
            return self.coded
        for weight in self.rest:
            self.coder.quantize(weight, *NEAREST)
        return self.coder.coded


def recognize(
    model: PreTrainedModel,
    config: EngineConfig,
    shape: ModelShape,
    coded: Coded | None,
    origins: Origins,
) -> Recognized:
    """Find the codes from which a model's weights were unpacked, so that they stay packed.

    They are found in the numbers: whatever their stored format, a group of 32 that lies on a
    lattice of 16 or 256 steps consists of the values of codes. Activations are then rounded to 15
    bits.

    Args:
        config: envelope of a model that the native kernels compute.
        coded: codes known already.
        origins: the parameters that were stored as codes of any kind.
    """
    native = kernels()
    assert native is not None
    try:
        products = list(_products(_read(model, config, shape, coded)))
    except UnreadableError:
        return Recognized(coded)
    coder = Coder(native, model, coded)
    weights = [weight for product in products for weight in product.weights]
    found = [coder.recognize(weight) for weight in weights]
    rest = [weight for weight in weights if coder.is_of(weight, origins)]
    logger.info(
        "of %d weights of %s, %d stay packed, and %d are rounded to codes of %d bits",
        len(found),
        type(model).__name__,
        sum(found),
        len(rest),
        NEAREST[0],
    )
    return Recognized(coder.coded if any(found) else coded, rest, coder)


def _read(
    model: PreTrainedModel, config: EngineConfig, shape: ModelShape, coded: Coded | None = None
) -> Graph:
    if shape.has_latents:
        raise UnreadableError("it stores latents")
    model.eval()  # type: ignore[no-untyped-call]
    states = find_states(model, shape, 1, 0)
    positions = max(config.max_model_len, NUM_TOKENS)
    compact = None if coded is None else coded.compact
    return fuse(find_graph(model, shape, positions, states, compact=compact)[0])


def _products(graph: Graph) -> Iterator[Weighted]:
    """The operations whose weights may be codes."""
    routers = {id(view.value) for one in graph.operations for view in one.in_float32(out=False)}
    for one in graph.operations:
        if not isinstance(one, Weighted) or id(one.out) in routers:
            continue
        if one.out.width >= _LEAST:
            yield one


def _head(graph: Graph) -> Linear | None:
    """The product that computes the logits, perhaps before elementwise operations."""
    found = {id(graph.logits)}
    for operation in reversed(graph.operations):
        if id(operation.out) in found:
            if isinstance(operation, Linear):
                return operation
            if isinstance(operation, Elementwise):
                found.add(id(operation.x.value))
    return None
