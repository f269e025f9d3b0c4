"""Divides a device's memory between weights, the largest step and the KV pool, before loading."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

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

# Of one logit: it, and what sampling makes of it when all rows need a nucleus of most of the
# vocabulary and log-probabilities (44 measured).
_SAMPLING_BYTES = 48
# Of one token in a layer, in units of its width: the residual stream, its norm and the attention's
# input and output; gate, up and their product (6 and 3 make 1.02 to 1.3 times what was measured).
_STREAMS, _WIDE_STREAMS = 6, 3
# The torch backend: tokens it gathers for one call, and how often it holds a gathered copy; scores
# that it holds in float32 for softcap and sinks, with their copies; bytes a position of its mask.
_GATHERED_TOKENS, _GATHERED_COPIES = 1 << 16, 3
_SCORE_BYTES = 4 * 4 << 24
_MASK_BYTES = 256 * 2 * 14


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


def plan_memory(
    request: LoadRequest, needs: MemoryNeeds, *, device: str, dtype: str, free: int, share: float
) -> EngineConfig:
    """The envelope that fits.

    Weights, largest step and pool may take `share` of the free memory; with a pool that the request
    sizes, all of it. Sequences may be as long as the model and the registry allow and as fits; the
    pool takes what is left then, up to full length for the largest batch, and less on a host.

    Args:
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

    def total(length: int, num_blocks: int) -> int:
        step = step_bytes(needs, max_num_seqs, max_num_batched_tokens, length)
        return needs.weight_bytes + step + num_blocks * block_bytes

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
        spare = (budget - total(length, 0)) // block_bytes
        num_blocks = max(_blocks(length), min(most, spare))
    if total(length, num_blocks) > budget:
        raise ModelError(
            f"{needs.name} does not fit on {device}: weights {show_bytes(needs.weight_bytes)}, "
            f"largest step {show_bytes(total(length, 0) - needs.weight_bytes)} and a cache of "
            f"{num_blocks * _BLOCK_SIZE} tokens {show_bytes(num_blocks * block_bytes)} make "
            f"{show_bytes(total(length, num_blocks))}; of {show_bytes(free)} free, "
            f"{show_bytes(budget)} may be used"
        )
    return EngineConfig(
        num_blocks=num_blocks,
        max_model_len=length,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        dtype=dtype,
        device=device,
    )


def step_bytes(needs: MemoryNeeds, max_num_seqs: int, max_num_tokens: int, longest: int) -> int:
    """Bytes that the largest step takes beside weights and pool.

    Args:
        longest: most tokens of one sequence.
    """
    shape = needs.shape
    heads = shape.num_heads * (shape.head_dim + shape.value_dim)
    token = _STREAMS * max(shape.hidden_size, heads // 2) + _WIDE_STREAMS * needs.layer_width
    activations = max_num_tokens * token * shape.dtype_bytes
    logits = max_num_seqs * shape.vocab_size * _SAMPLING_BYTES
    gathered = max(longest, min(_GATHERED_TOKENS, max_num_seqs * longest))
    layer_kv_bytes = shape.kv_bytes_per_token // shape.num_layers
    attention = _GATHERED_COPIES * gathered * layer_kv_bytes + _SCORE_BYTES + _MASK_BYTES * longest
    # Layers and head run one after the other, but a GPU's allocator does not mix their pieces.
    return activations + attention + logits


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
