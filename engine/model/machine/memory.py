"""Memory: divides a device between weights, the largest step and the KV pool, before loading."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from engine.api.client import LoadRequest
from engine.api.config import BLOCK_SIZE, EngineConfig
from engine.api.errors import InvalidConfigError, ModelError
from engine.api.knobs import Knobs
from engine.batch.shape import ModelShape
from engine.cache.host import SWAP_BYTES
from engine.model.files.size_text import format_bytes

# The share of the free memory for a model. A host's is shared with other programs; a GPU in a GPU
# box is ours.
HOST_SHARE, GPU_SHARE = 0.75, 0.9

# A pool of fewer tokens than this is useless for a chat.
MIN_TOKENS = 256

_DEFAULTS = EngineConfig(num_blocks=1, max_model_len=1)
# Limits of the pool on a host, which other programs share: a number of full-length sequences, which
# is how many run at once until a knob is changed, and a number of bytes. On a GPU the pool may take
# all that is left, up to full length for the largest batch.
_HOST_SEQS = Knobs().max_num_seqs
_HOST_POOL_BYTES = 4 << 30
# Limits of the host memory for a GPU's swaps. It is pinned, so that no other program gets it.
_MOST_SWAP_BYTES = 4 << 30
_SWAP_SHARE = 0.25
# Shares of the memory that the weights leave, for states of sequences and of prefixes, and the most
# prefixes for each sequence: one is the start of its prompt, one is its last turn, and chunks of
# long prompts have some.
_SEQUENCES_SHARE, _SNAPSHOTS_SHARE = 0.25, 0.125
_SNAPSHOTS_EACH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """The memory needs of a model.

    Attributes:
        name: name of the model, for messages.
        weight_bytes: bytes of all weights, in the type in which they are loaded.
        loading_bytes: their bytes during loading.
        saved_bytes: how many of `weight_bytes` codes save.
        num_layers: all layers, with and without attention.
        layer_width: most numbers of one token between two operators of a layer.
        layer_experts: most numbers in the experts of a layer.
        max_positions: longest sequence that the model supports, in tokens.
        context_length: longest sequence that the registry recommends, in tokens; None if there is
            no recommendation.
    """

    name: str
    shape: ModelShape
    weight_bytes: int
    loading_bytes: int
    saved_bytes: int
    num_layers: int
    layer_width: int
    layer_experts: int
    max_positions: int
    context_length: int | None

    @property
    def served_bytes(self) -> int:
        """Bytes of all weights when served."""
        return self.weight_bytes - self.saved_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers; 1 without attention, so that a block has a size."""
        return max(self.shape.kv_bytes_per_token * BLOCK_SIZE, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStep:
    """Upper bounds of every step: sequences, tokens, and tokens of one sequence's context."""

    seqs: int
    tokens: int
    longest: int


class Footprint(Protocol):
    """The memory of one way to compute a model, beside the weights and the pool."""

    def step_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """Bytes of the largest step, with sampling, and of data kept from step to step."""
        ...

    def load_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """Bytes for turning the weights into a forward pass, before there is a pool."""
        ...


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """Limits of the size of a pool.

    Attributes:
        least, most: blocks.
        block_bytes: bytes of a block in all layers.
    """

    least: int
    most: int
    block_bytes: int


def pool_bounds(request: LoadRequest, needs: MemoryNeeds, envelope: EngineConfig) -> PoolBounds:
    """The limits of the pool in an envelope from `plan_memory`.

    A pool sized by the request has that exact size. Any other one holds a sequence of the requested
    length, or of a useful one.
    """
    block_bytes = needs.block_bytes
    given = _given_blocks(request, block_bytes)
    if given is not None:
        return PoolBounds(given, given, block_bytes)
    least = request.max_model_len or min(envelope.max_model_len, MIN_TOKENS)
    longest = _longest(request, needs)
    most = _most_blocks(longest, envelope.max_num_seqs, block_bytes, envelope.device)
    return PoolBounds(_blocks(least), most, block_bytes)


def plan_memory(
    request: LoadRequest,
    needs: MemoryNeeds,
    footprint: Footprint,
    *,
    device: str,
    dtype: str,
    quantize: str,
    free: int,
    share: float,
    host_free: int,
) -> EngineConfig:
    """The envelope that fits into the free memory.

    Weights, largest step and pool may take `share` of the free memory, or all of it if the request
    sizes the pool. Sequences may be as long as the model and the registry allow and as memory
    permits. The pool then takes the rest, up to full length for the largest batch. On a host it has
    further limits. A GPU swaps to at most 4 GiB of host memory, unless the request sizes that.

    Args:
        footprint: the footprint of the backend.
        device, dtype: as torch names them.
        quantize: see `EngineConfig`.
        free, host_free: available bytes on the device, and of host memory.
        share: usable share of `free`, from 0 to 1.

    Raises:
        InvalidConfigError: an option is outside its range.
        ModelError: the model does not fit; the sentence has the numbers.
    """
    _check_positive(request)
    _check_length(request, needs)
    seqs, tokens = _largest_batch(request)
    block_bytes = needs.block_bytes
    num_blocks = _given_blocks(request, block_bytes)
    budget = int(free * share) if num_blocks is None else free
    num_snapshots = 0
    if needs.shape.state_bytes:
        seqs, num_snapshots = _states(request, needs, seqs, budget)
        host_blocks = 0
    else:
        host_blocks = _host_blocks(request, block_bytes, device, host_free)
    swap_bytes = _swap_bytes(host_blocks * block_bytes, device)
    uses = _Uses(needs, footprint, seqs, tokens, swap_bytes, num_snapshots)
    longest = _longest(request, needs)
    if num_blocks is not None:
        length = min(longest, num_blocks * BLOCK_SIZE)
    else:
        most = _most_blocks(longest, seqs, uses.block_bytes, device)
        length = request.max_model_len or _longest_that_fits(uses, longest, most, budget)
        spare = (budget - uses.serving(length, 0)) // uses.block_bytes
        num_blocks = max(_blocks(length), min(most, spare))
    if uses.total(length, num_blocks) > budget:
        room = f"of {format_bytes(free)} free, {format_bytes(budget)} may be used"
        parts = uses.breakdown(length, num_blocks)
        raise ModelError(f"{needs.name} does not fit on {device}: {parts}; {room}")
    if request.swap_memory is None:
        host_blocks = min(host_blocks, num_blocks)
    return EngineConfig(
        num_blocks=num_blocks,
        num_host_blocks=host_blocks,
        num_snapshots=num_snapshots,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        dtype=dtype,
        device=device,
        quantize=quantize,
    )


@dataclass(frozen=True, slots=True)
class _Uses:
    """Bytes that a model needs with sequences of some length.

    Attributes:
        seqs, tokens: sequences and tokens of the largest step.
        swap_bytes: bytes of this device for swapping.
        num_snapshots: number of prefixes' states.
    """

    needs: MemoryNeeds
    footprint: Footprint
    seqs: int
    tokens: int
    swap_bytes: int
    num_snapshots: int

    @property
    def state_bytes(self) -> int:
        return self.needs.shape.state_bytes * (self.seqs + self.num_snapshots)

    @property
    def block_bytes(self) -> int:
        return self.needs.block_bytes

    def loading(self, length: int) -> int:
        load = self.footprint.load_bytes(self.needs, self._largest(length))
        return self.needs.loading_bytes + load

    def serving(self, length: int, num_blocks: int) -> int:
        step = self.footprint.step_bytes(self.needs, self._largest(length))
        fixed = self.needs.served_bytes + self.state_bytes + self.swap_bytes
        return fixed + step + num_blocks * self.block_bytes

    def total(self, length: int, num_blocks: int) -> int:
        """The most at any time. There is no pool yet during loading."""
        return max(self.loading(length), self.serving(length, num_blocks))

    def breakdown(self, length: int, num_blocks: int) -> str:
        """A clause that breaks the total down."""
        needed, weights = self.total(length, num_blocks), self.needs.loading_bytes
        others = f", swapping {format_bytes(self.swap_bytes)}" if self.swap_bytes else ""
        if self.state_bytes:
            whose = f"{self.seqs} sequences and {self.num_snapshots} prefixes"
            others += f", states of {whose} {format_bytes(self.state_bytes)}"
        if needed == self.loading(length):
            parts = f" and {format_bytes(needed - weights)} to load them"
        else:
            weights = self.needs.served_bytes
            step = self.serving(length, 0) - weights - self.state_bytes - self.swap_bytes
            parts = (
                f", largest step {format_bytes(step)}{others} and a cache of "
                f"{num_blocks * BLOCK_SIZE} tokens {format_bytes(num_blocks * self.block_bytes)}"
            )
        return f"weights {format_bytes(weights)}{parts} make {format_bytes(needed)}"

    def _largest(self, length: int) -> LargestStep:
        return LargestStep(seqs=self.seqs, tokens=self.tokens, longest=length)


def _states(request: LoadRequest, needs: MemoryNeeds, seqs: int, budget: int) -> tuple[int, int]:
    """How many sequences of a model with states run at once, and how many prefixes' states are
    kept.

    By default, sequences get a quarter of what the weights leave, and prefixes an eighth.
    """
    each = needs.shape.state_bytes
    spare = max(budget - needs.served_bytes, 0)
    if request.swap_memory:
        raise InvalidConfigError(
            f"swap_memory is {request.swap_memory} bytes; {needs.name} keeps states beside its "
            "cache, which are not swapped, so it must be 0",
            "swap_memory",
        )
    if request.max_num_seqs is None:
        seqs = max(min(seqs, int(spare * _SEQUENCES_SHARE) // each), 1)
    stated = request.snapshot_memory
    if stated is None:
        return seqs, min(int(spare * _SNAPSHOTS_SHARE) // each, _SNAPSHOTS_EACH * seqs)
    if stated < 0 or 0 < stated < each:
        raise InvalidConfigError(
            f"snapshot_memory is {stated} bytes; it must be 0 or at least {each}, what "
            f"{needs.name} keeps of one sequence",
            "snapshot_memory",
        )
    return seqs, stated // each


def _host_blocks(request: LoadRequest, block_bytes: int, device: str, host_free: int) -> int:
    """Blocks of the host pool, as requested, or the default.

    On a host the default is none: the same memory makes a larger pool, which saves preemptions.
    """
    stated = request.swap_memory
    if stated is None:
        most = 0 if device == "cpu" else min(_MOST_SWAP_BYTES, int(host_free * _SWAP_SHARE))
        return most // block_bytes
    if stated < 0 or 0 < stated < block_bytes:
        raise InvalidConfigError(
            f"swap_memory is {stated} bytes; it must be 0 or at least {block_bytes}, a block of "
            f"{BLOCK_SIZE} tokens",
            "swap_memory",
        )
    if device != "cpu" and stated > host_free:
        raise ModelError(
            f"swap_memory takes {format_bytes(stated)} of host memory, of which "
            f"{format_bytes(host_free)} are free"
        )
    return stated // block_bytes


def _swap_bytes(pool_bytes: int, device: str) -> int:
    """Bytes of a device for swapping; on a host, they include the host pool."""
    if not pool_bytes:
        return 0
    return SWAP_BYTES + (pool_bytes if device == "cpu" else 0)


def _most_blocks(longest: int, seqs: int, block_bytes: int, device: str) -> int:
    """The most blocks of a pool, regardless of free memory."""
    most = seqs * _blocks(longest)
    if device == "cpu":
        most = min(most, _HOST_SEQS * _blocks(longest), _HOST_POOL_BYTES // block_bytes)
    return most


def _longest_that_fits(uses: _Uses, longest: int, most: int, budget: int) -> int:
    """The longest sequence that fits, with a pool of its length.

    If no useful length fits, this is a length that does not fit.
    """
    lengths = range(1, min(longest, most * BLOCK_SIZE) + 1)
    fits = bisect_right(lengths, budget, key=lambda n: uses.total(n, _blocks(n)))
    return max(fits, min(longest, MIN_TOKENS))


def _longest(request: LoadRequest, needs: MemoryNeeds) -> int:
    """The longest sequence to support, before memory is considered."""
    if request.max_model_len is not None:
        return request.max_model_len
    return min(needs.max_positions, needs.context_length or needs.max_positions)


def _given_blocks(request: LoadRequest, block_bytes: int) -> int | None:
    """Blocks of the pool if the request sizes it, else None."""
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
                f"block of {BLOCK_SIZE} tokens",
                "kv_memory",
            )
    if num_blocks is not None and (request.max_model_len or 0) > num_blocks * BLOCK_SIZE:
        raise InvalidConfigError(
            f"max_model_len is {request.max_model_len}; a pool of {num_blocks} blocks allows 1 to "
            f"{num_blocks * BLOCK_SIZE}",
            "max_model_len",
        )
    return num_blocks


def _largest_batch(request: LoadRequest) -> tuple[int, int]:
    """Sequences and tokens of the largest step. If one is stated, the other's default adapts."""
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
    return -(-tokens // BLOCK_SIZE)
