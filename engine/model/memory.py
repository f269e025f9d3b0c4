"""Divides a device's memory between weights, the largest step and the KV pool, before loading."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from engine.client import LoadRequest
from engine.config import EngineConfig
from engine.errors import InvalidConfigError, ModelError
from engine.knobs import Knobs
from engine.shape import ModelShape

_DEFAULTS = EngineConfig(num_blocks=1, max_model_len=1)
_BLOCK_SIZE = _DEFAULTS.block_size
# A pool that holds less than this is of no use to a chat.
_MIN_TOKENS = 256
# Bounds on the pool of a host, where other programs live too: sequences of full length, as many as
# run at once until a knob is turned, and bytes. On a GPU it takes all that is left.
_HOST_SEQS = Knobs().max_num_seqs
_HOST_POOL_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """What a model asks of a device.

    Attributes:
        name: of the model, for messages.
        weight_bytes: of all weights in the type they are loaded as.
        layer_width: most numbers that one token has between two operators of a layer.
        max_positions: longest sequence that the model can represent.
        context_length: longest sequence that the registry recommends.
    """

    name: str
    shape: ModelShape
    weight_bytes: int
    layer_width: int
    max_positions: int
    context_length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStep:
    """What a step never exceeds: sequences, tokens, and tokens of one sequence's context."""

    seqs: int
    tokens: int
    longest: int


class Footprint(Protocol):
    """What a way to compute a model takes beside its weights and its pool."""

    def step_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """Bytes of the largest step, sampling included, and of what is kept from step to step."""
        ...

    def load_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """Bytes while the weights become what computes them, when there is no pool yet."""
        ...


def plan_memory(
    request: LoadRequest,
    needs: MemoryNeeds,
    footprint: Footprint,
    *,
    device: str,
    dtype: str,
    free: int,
    share: float,
) -> EngineConfig:
    """The envelope that fits.

    Weights, largest step and pool may take `share` of the free memory; with a pool that the request
    sizes, all of it. Sequences may be as long as the model and the registry allow and as fits; the
    pool takes what is left then, up to full length for the largest batch, and less on a host.

    Args:
        footprint: of what will compute the model.
        device, dtype: as torch names them.
        free: bytes that can be had on the device.

    Raises:
        InvalidConfigError: an option outside its range.
        ModelError: the model does not fit, with the numbers.
    """
    _check_positive(request)
    _check_length(request, needs)
    max_num_seqs, max_num_batched_tokens = _largest_batch(request)
    block_bytes = needs.shape.kv_bytes_per_token * _BLOCK_SIZE

    def largest(length: int) -> LargestStep:
        return LargestStep(seqs=max_num_seqs, tokens=max_num_batched_tokens, longest=length)

    def loading(length: int) -> int:
        return needs.weight_bytes + footprint.load_bytes(needs, largest(length))

    def serving(length: int, num_blocks: int) -> int:
        step = footprint.step_bytes(needs, largest(length))
        return needs.weight_bytes + step + num_blocks * block_bytes

    def total(length: int, num_blocks: int) -> int:
        return max(loading(length), serving(length, num_blocks))

    num_blocks = _given_blocks(request, block_bytes)
    if num_blocks is not None:
        budget = free
        length = min(_longest(request, needs), num_blocks * _BLOCK_SIZE)
    else:
        budget = int(free * share)
        longest = _longest(request, needs)
        most = max_num_seqs * _blocks(longest)
        if device == "cpu":
            most = min(most, _HOST_SEQS * _blocks(longest), _HOST_POOL_BYTES // block_bytes)
        if request.max_model_len is None:
            lengths = range(1, min(longest, most * _BLOCK_SIZE) + 1)
            fits = bisect_right(lengths, budget, key=lambda n: total(n, _blocks(n)))
            length = max(fits, min(longest, _MIN_TOKENS))
        else:
            length = request.max_model_len
        spare = (budget - serving(length, 0)) // block_bytes
        num_blocks = max(_blocks(length), min(most, spare))
    needed = total(length, num_blocks)
    if needed > budget:
        if needed == loading(length):
            parts = f" and {show_bytes(needed - needs.weight_bytes)} to load them"
        else:
            step = serving(length, 0) - needs.weight_bytes
            parts = (
                f", largest step {show_bytes(step)} and a cache of {num_blocks * _BLOCK_SIZE} "
                f"tokens {show_bytes(num_blocks * block_bytes)}"
            )
        raise ModelError(
            f"{needs.name} does not fit on {device}: weights {show_bytes(needs.weight_bytes)}"
            f"{parts} make {show_bytes(needed)}; of {show_bytes(free)} free, {show_bytes(budget)} "
            "may be used"
        )
    return EngineConfig(
        num_blocks=num_blocks,
        max_model_len=length,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        dtype=dtype,
        device=device,
    )


def show_bytes(count: int) -> str:
    """A size for people."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB"


def _longest(request: LoadRequest, needs: MemoryNeeds) -> int:
    """The longest sequence that is wanted, before memory is considered."""
    if request.max_model_len is not None:
        return request.max_model_len
    return min(needs.max_positions, needs.context_length or needs.max_positions)


def _given_blocks(request: LoadRequest, block_bytes: int) -> int | None:
    """Blocks of the pool if the request sizes it."""
    if request.kv_memory is not None and request.num_blocks is not None:
        raise InvalidConfigError(
            "kv_memory and num_blocks are both given; one is allowed", "kv_memory"
        )
    num_blocks = request.num_blocks
    if request.kv_memory is not None:
        num_blocks = request.kv_memory // block_bytes
        if num_blocks < 1:
            raise InvalidConfigError(
                f"kv_memory is {request.kv_memory} bytes; it must be at least {block_bytes}, a "
                f"block of {_BLOCK_SIZE} tokens",
                "kv_memory",
            )
    if num_blocks is not None and (request.max_model_len or 0) > num_blocks * _BLOCK_SIZE:
        raise InvalidConfigError(
            f"max_model_len is {request.max_model_len}; a pool of {num_blocks} blocks allows 1 to "
            f"{num_blocks * _BLOCK_SIZE}",
            "max_model_len",
        )
    return num_blocks


def _largest_batch(request: LoadRequest) -> tuple[int, int]:
    """Sequences and tokens of the largest step; where one is given, the other gives way."""
    seqs, tokens = request.max_num_seqs, request.max_num_batched_tokens
    if seqs is None:
        seqs = min(_DEFAULTS.max_num_seqs, tokens or _DEFAULTS.max_num_seqs)
    if tokens is None:
        tokens = max(_DEFAULTS.max_num_batched_tokens, seqs)
    return seqs, tokens


def _check_positive(request: LoadRequest) -> None:
    for name in (
        "kv_memory",
        "num_blocks",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
    ):
        value = getattr(request, name)
        if value is not None and value < 1:
            raise InvalidConfigError(f"{name} is {value}; it must be at least 1", name)


def _check_length(request: LoadRequest, needs: MemoryNeeds) -> None:
    if request.max_model_len is not None and request.max_model_len > needs.max_positions:
        raise InvalidConfigError(
            f"max_model_len is {request.max_model_len}; {needs.name} allows 1 to "
            f"{needs.max_positions}",
            "max_model_len",
        )


def _blocks(tokens: int) -> int:
    return -(-tokens // _BLOCK_SIZE)
