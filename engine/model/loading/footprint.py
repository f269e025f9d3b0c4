"""Footprints: the memory for computing a model beside its weights and its pool.

The footprint depends on what computes the model. The native one was compared with the resident set,
on models of 24 layers of 896 numbers, 6 of 1024, 4 of 1152 (Gemma 2) and 4 of 2048, with
vocabularies of 32,000 to 152,000, in steps of 512 tokens of 32 sequences and of 2,048 tokens of
256. It is 1.1 to 1.4 times the memory of a step as a program (1.3 to 1.8 times as modules), and 1.1
to 1.7 times that of loading.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from engine.api.config import BLOCK_SIZE
from engine.api.errors import ModelError
from engine.batch.shape import ModelShape
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.attention.torch_backend import TorchAttention
from engine.model.attention.triton_backend import TritonAttention
from engine.model.checks.loss import AT_LOAD
from engine.model.machine.memory import Footprint, LargestStep, MemoryNeeds
from engine.model.program.capture import NUM_TOKENS
from engine.model.step.logprobs import work_bytes
from engine.model.step.prompts import MOST_LOGITS, slice_bytes
from engine.native import kernels

# The memory of one token in a layer. In units of the width of the residual stream: the stream, its
# norm, and the input and output of attention. In units of the widest operator: gate, up and their
# product. 6 and 3 make 1.02 to 1.3 times the measured memory. A program has smaller buffers,
# because it computes gate, up and their product at once.
_STREAMS, _WIDE_STREAMS = 6, 3

# Bytes for each logit: the logit, and the buffers of sampling when all rows need a nucleus of most
# of the vocabulary, and log-probabilities. Torch was measured to take 44. The native kernels, which
# draw in their own memory, take 13 beside the logits, which take 4, or 8 if a softcap has a second
# buffer of them.
_TORCH_SAMPLING_BYTES = 48
_NATIVE_SAMPLING_BYTES = 14
# Bytes for each logit on a GPU beside it: its score after penalties, and how often it was chosen.
_GPU_SAMPLING_BYTES = 6
# cuBLAS's memory for products on two streams; and 50 graphs of 1,000 launches. Both are estimates,
# which measurements replace.
_CUBLAS_BYTES, _GRAPHS_BYTES = 64 << 20, 128 << 20
# Bytes for each logit and each drawing thread: five numbers in float32. And an upper bound of bytes
# for each thread of attention and products.
_DRAWING_BYTES = 20
_THREAD_BYTES = 1 << 20

# Freed memory that glibc's heap keeps: up to 64 MB once it has seen blocks of 32 MB. After a
# program was made, 40 to 55 MB were measured.
HEAP_BYTES = 64 << 20
# Bytes for each position of each sequence: its token id, and its share of a block's number, which
# the runner stores and sends.
_ID_BYTES = 5
# Bytes for each position and each number of a head: cosines and sines of half of the numbers in
# float32, for two kinds of layers; and a model's temporaries for them (12 were measured).
_ROTATION_BYTES, _ROTATING_BYTES = 8, 16
# Numbers in the recorded pass for each of its tokens and layers, in the same two units.
_RECORDED_STREAMS, _RECORDED_WIDE_STREAMS = 32, 6


def footprint_of(backend: str, device: torch.device) -> Footprint:
    """The footprint of a backend, named as in `engine.model.running.forward.make_forward`.

    `triton modules` is that of the backend `triton` if a model cannot be read as a program.

    Raises:
        ModelError: the backend is the native one, and there are no kernels.
    """
    if backend == "torch":
        return TorchFootprint(device, TorchAttention.step_bytes)
    if backend == "triton":
        return GpuFootprint(device)
    if backend == "triton modules":
        return TorchFootprint(device, TritonAttention.step_bytes)
    native = kernels()
    if native is None:
        raise ModelError("this installation has no native kernels")
    return NativeFootprint(native)


class TorchFootprint:
    """The footprint of the model's own modules, by torch's allocator.

    Args:
        attention: most bytes for the attention of a step.
    """

    def __init__(
        self,
        device: torch.device,
        attention: Callable[[ModelShape, LargestStep, torch.device], int],
    ) -> None:
        self._device = device
        self._attention = attention

    def step_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """See `Footprint.step_bytes`."""
        # Layers and head run one after the other, but a GPU's allocator does not reuse the pieces
        # of one for the other. Nor are there logits of prompts during sampling.
        vocab_size = needs.shape.vocab_size
        logits = max(
            largest.seqs * vocab_size * _TORCH_SAMPLING_BYTES, slice_bytes(vocab_size, self._device)
        )
        attention = self._attention(needs.shape, largest, self._device)
        return _activations(needs, largest) + attention + logits

    def load_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """See `Footprint.load_bytes`. It is 0, because weights stay as they are read."""
        return 0


class GpuFootprint:
    """The footprint of a program of launches, estimated before the program exists.

    The pool is sized again when everything else is allocated (`engine.model.gpu.sizing`). Until
    then, this decides whether the weights are worth reading.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def step_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """See `Footprint.step_bytes`."""
        shape = needs.shape
        rows = max(largest.seqs, MOST_LOGITS)
        logits = shape.vocab_size * (rows * 4 + largest.seqs * _GPU_SAMPLING_BYTES)
        attention = TritonAttention.step_bytes(shape, largest, self._device)
        rotation = largest.longest * shape.head_dim * _ROTATION_BYTES
        tables = largest.seqs * (largest.longest // BLOCK_SIZE + 1) * 4
        kept = rotation + tables + _CUBLAS_BYTES + _GRAPHS_BYTES
        return _activations(needs, largest) + attention + logits + kept

    def load_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """See `Footprint.load_bytes`. It covers buffers, the recorded pass, and matrices during
        joining.
        """
        shape = needs.shape
        width = _width(needs)
        numbers = _RECORDED_STREAMS * width + _RECORDED_WIDE_STREAMS * needs.layer_width
        recorded = NUM_TOKENS * needs.num_layers * numbers * shape.dtype_bytes
        rotation = largest.longest * shape.head_dim * _ROTATING_BYTES
        logits = max(largest.seqs, MOST_LOGITS) * shape.vocab_size * 4
        joined = max(2 * needs.layer_width, 3 * width) * shape.hidden_size * shape.dtype_bytes
        return _activations(needs, largest) + recorded + rotation + logits + 2 * joined


class NativeFootprint:
    """The footprint of a program of native kernels, or of modules with native attention only.

    Which of the two the model becomes is known only with its weights, so this suffices for either.

    Args:
        native: the compiled kernels.
    """

    def __init__(self, native: ModuleType) -> None:
        self._native = native

    def step_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """See `Footprint.step_bytes`."""
        shape = needs.shape
        rows = max(largest.seqs, MOST_LOGITS)
        logits = shape.vocab_size * (rows * 8 + largest.seqs * _NATIVE_SAMPLING_BYTES)
        threads: int = self._native.threads()
        positions = largest.seqs * _ID_BYTES + shape.head_dim * _ROTATION_BYTES
        attention = CpuAttention.step_bytes(shape, largest)
        scratch = threads * (shape.vocab_size * _DRAWING_BYTES + _THREAD_BYTES)
        logprobs = work_bytes(rows, shape.vocab_size, torch.device("cpu"))
        kept = largest.longest * positions + scratch + HEAP_BYTES
        return _activations(needs, largest) + attention + logits + logprobs + kept

    def load_bytes(self, needs: MemoryNeeds, largest: LargestStep) -> int:
        """See `Footprint.load_bytes`. It covers buffers, the recorded pass, and a matrix or a
        layer's experts during packing.
        """
        shape = needs.shape
        width = _width(needs)
        numbers = _RECORDED_STREAMS * width + _RECORDED_WIDE_STREAMS * needs.layer_width
        recorded = NUM_TOKENS * needs.num_layers * numbers * shape.dtype_bytes
        block: int = self._native.BLOCK
        pool = NUM_TOKENS * block * shape.kv_bytes_per_token
        logits = max(largest.seqs, MOST_LOGITS) * shape.vocab_size * 2 * 4
        rotation = largest.longest * shape.head_dim * _ROTATING_BYTES
        buffers = _activations(needs, largest) + logits + rotation
        # Adjacent matrices are joined and then packed; the head is only packed.
        joined = 2 * max(2 * needs.layer_width, 3 * width)
        matrix = max(joined, shape.vocab_size) * shape.hidden_size
        # A layer's experts are freed when all of them are packed.
        packing = max(matrix, needs.layer_experts) * shape.dtype_bytes
        # The model's output before quantization, and for one text at a time in float32.
        probed = AT_LOAD.tokens * shape.vocab_size * (shape.dtype_bytes + 4)
        quantizing = probed if needs.saved_bytes else 0
        return buffers + recorded + pool + packing + quantizing + HEAP_BYTES


def _activations(needs: MemoryNeeds, largest: LargestStep) -> int:
    token = _STREAMS * _width(needs) + _WIDE_STREAMS * needs.layer_width
    return largest.tokens * token * needs.shape.dtype_bytes


def _width(needs: MemoryNeeds) -> int:
    """Width in numbers of the residual stream, or of attention's input and output if larger."""
    shape = needs.shape
    return max(shape.hidden_size, shape.num_heads * (shape.head_dim + shape.value_dim) // 2)
