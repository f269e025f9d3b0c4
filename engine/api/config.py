"""EngineConfig: the fixed envelope, that is, everything that memory was sized for."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.errors import InvalidConfigError

# Token slots in a block of the KV pool. The native kernels are compiled for this number.
BLOCK_SIZE = 16

# What weights may be quantized to at load.
QUANTIZATIONS = ("none", "int8", "int4")

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What cannot change while a model is loaded. Live policy is in `engine.api.knobs.Knobs`.

    Attributes:
        num_blocks: blocks in the KV pool.
        num_host_blocks: blocks in host memory for sequences that are swapped out; 0 is none.
        num_snapshots: states of prefixes that are kept for a model with states; 0 is none.
        block_size: token slots in a block.
        max_model_len: most tokens of one sequence, prompt and output together.
        max_num_seqs: largest batch, in sequences, that buffers are sized for.
        max_num_batched_tokens: largest step, in tokens, that buffers are sized for.
        dtype: of weights and cache, as torch names it.
        device: where the model lives, as torch names it.
        quantize: what the weights of products are quantized to, of `QUANTIZATIONS`.

    Raises:
        InvalidConfigError: a value is outside its range; `param` names the field.
    """

    num_blocks: int
    max_model_len: int
    block_size: int = BLOCK_SIZE
    num_host_blocks: int = 0
    num_snapshots: int = 0
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    dtype: str = "float32"
    device: str = "cpu"
    quantize: str = "none"

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "max_model_len",
            "block_size",
            "max_num_seqs",
            "max_num_batched_tokens",
        ):
            value = getattr(self, name)
            if value < 1:
                raise InvalidConfigError(f"{name} is {value}; it must be at least 1", name)
        for name in ("num_host_blocks", "num_snapshots"):
            value = getattr(self, name)
            if value < 0:
                raise InvalidConfigError(f"{name} is {value}; it must be at least 0", name)
        if self.max_num_batched_tokens < self.max_num_seqs:
            # A decode token of every running sequence must fit in one step: otherwise some
            # sequences never move.
            raise InvalidConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least "
                f"max_num_seqs ({self.max_num_seqs}), one decode token for each sequence",
                "max_num_batched_tokens",
            )
        if self.dtype not in DTYPES or self.dtype == "auto":
            raise InvalidConfigError(
                f"dtype is {self.dtype!r}; allowed are {', '.join(DTYPES[1:])}", "dtype"
            )
        if self.quantize not in QUANTIZATIONS:
            raise InvalidConfigError(
                f"quantize is {self.quantize!r}; allowed are {', '.join(QUANTIZATIONS)}", "quantize"
            )

    @property
    def num_slots(self) -> int:
        """Token slots in the whole pool."""
        return self.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens of one sequence occupy."""
        return -(-num_tokens // self.block_size)
