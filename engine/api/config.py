"""EngineConfig: the fixed envelope, which all memory is sized for."""

from __future__ import annotations

from dataclasses import dataclass

from engine.api.errors import InvalidConfigError

# Token slots in a block of the KV pool. The native kernels are compiled for this number.
BLOCK_SIZE = 16

# Formats to which weights can be quantized at load.
QUANTIZATIONS = ("none", "int8", "int4")

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The settings that cannot change while a model is loaded. `engine.api.knobs.Knobs` can.

    Attributes:
        num_blocks: blocks in the KV pool.
        num_host_blocks: blocks in host memory for swapped-out sequences; 0 is none.
        num_snapshots: snapshots of states, for a model with states; 0 is none.
        block_size: token slots in a block.
        max_model_len: most tokens of one sequence, prompt and output together.
        max_num_seqs: largest batch, in sequences, for which buffers are sized.
        max_num_batched_tokens: largest step, in tokens, for which buffers are sized.
        dtype: of weights and cache, as torch names it.
        device: the model's device, as torch names it.
        quantize: format of the matrix products' weights, one of `QUANTIZATIONS`.

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
            # sequences never advance.
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
