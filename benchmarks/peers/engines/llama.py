"""Worker: llama.cpp, batching continuously over its parallel sequences.

llama.cpp computes batches, and its caller decides which tokens are in one. Here this is done as in
its server: a token of each sequence that decodes, then as much of the prompts as there is room for.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

import gguf
import llama_cpp  # type: ignore[import-not-found]
import numpy as np

from benchmarks.peers.engines.held import held
from benchmarks.peers.serve import About, Served, Setup, drive, serve
from benchmarks.peers.workload import Workload

_CONTEXT_GRAIN = 256  # sequences' contexts are multiples of it
_GGML_TYPE_BF16 = 30  # ggml.h; the bindings leave it out
_BUILT_WITH = ("AVX2", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8", "LLAMAFILE")
_MICRO_BATCH = 512  # its default; 2048 was no faster


@dataclass(slots=True)
class _Slot:
    """A sequence of llama.cpp's cache.

    Attributes:
        cached: the tokens whose keys and values it holds.
        request: the number of its request; -1 if it has none.
        todo: the tokens to compute: those of the prompt, or the one that was sampled last.
        left: how many tokens are still to come.
    """

    sequence: int
    cached: list[int] = field(default_factory=list)
    request: int = -1
    todo: list[int] = field(default_factory=list)
    left: int = 0
    is_new: bool = False


class LlamaCpp:
    def load(self, setup: Setup) -> About:
        self._setup = setup
        self._log = llama_cpp.llama_log_callback(_to_stderr)
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_mmap = False
        self._model = llama_cpp.llama_model_load_from_file(setup.model.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {setup.model}")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._context = None
        self._layout: tuple[int, int, bool] | None = None
        self._batch = llama_cpp.llama_batch_init(setup.budget, 0, 1)
        system = llama_cpp.llama_print_system_info().decode()
        has = [name for name in _BUILT_WITH if f"{name} = 1" in system]
        return About(
            f"llama-cpp-python {version('llama-cpp-python')}",
            f"n_batch {setup.budget}, n_ubatch {_MICRO_BATCH}, flash attention, bf16 cache, a "
            "stream for each sequence, or one for all where they share a prompt, which is then "
            f"copied; built with {', '.join(has)}",
            _weights(setup.model),
        )

    def run(self, workload: Workload) -> list[Served]:
        self._make_context(workload)
        return drive(self, workload)

    def _make_context(self, workload: Workload) -> None:
        """Make an empty context of the workload's size.

        Sequences in one stream share a prompt at no cost, but each of them attends over the cells
        of all. So streams of their own are faster where nothing is shared.
        """
        length = -(-max(workload.lengths) // _CONTEXT_GRAIN) * _CONTEXT_GRAIN
        layout = (len(workload.prompts), length, workload.shared_tokens > 0)
        if layout != self._layout:
            if self._context is not None:
                llama_cpp.llama_free(self._context)
            params = llama_cpp.llama_context_default_params()
            params.n_seq_max = len(workload.prompts)
            params.n_ctx = len(workload.prompts) * length
            params.n_batch = self._setup.budget
            params.n_ubatch = _MICRO_BATCH
            params.n_threads = params.n_threads_batch = self._setup.threads
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            params.kv_unified = workload.shared_tokens > 0
            params.type_k = params.type_v = _GGML_TYPE_BF16
            params.no_perf = True
            self._context = llama_cpp.llama_init_from_model(self._model, params)
            if not self._context:
                raise RuntimeError("llama.cpp cannot make a context")
            self._layout = layout
        self._memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(self._memory, True)
        self._slots = [_Slot(sequence) for sequence in range(len(workload.prompts))]
        self._shares = workload.shared_tokens > 0

    def submit(self, index: int, prompt: Sequence[int], output_tokens: int) -> None:
        slot = next(slot for slot in self._slots if slot.request < 0)
        slot.request, slot.todo, slot.left = index, list(prompt), output_tokens
        slot.is_new = True

    def step(self) -> Iterator[tuple[int, int]]:
        busy = [slot for slot in self._slots if slot.request >= 0]
        busy.sort(key=lambda slot: (len(slot.todo) > 1, slot.request))
        batch, rows = self._batch, 0
        chunks: list[tuple[_Slot, list[int]]] = []
        samples: list[tuple[_Slot, int]] = []
        for slot in busy:
            if slot.is_new:
                self._begin(slot)
            chunk = slot.todo[: self._setup.budget - rows]
            for position, token in enumerate(chunk, len(slot.cached)):
                batch.token[rows] = token
                batch.pos[rows] = position
                batch.n_seq_id[rows] = 1
                batch.seq_id[rows][0] = slot.sequence
                batch.logits[rows] = False
                rows += 1
            del slot.todo[: len(chunk)]
            chunks.append((slot, chunk))
            if not slot.todo:
                batch.logits[rows - 1] = True
                samples.append((slot, rows - 1))
        batch.n_tokens = rows
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        for slot, chunk in chunks:
            slot.cached += chunk
        return iter([self._sample(slot, row) for slot, row in samples])

    def _begin(self, slot: _Slot) -> None:
        """Give the slot the longest beginning of its prompt that any slot, itself included, has."""
        slot.is_new = False
        source, count = slot, 0
        if self._shares:
            source = max(self._slots, key=lambda other: _common(other.cached, slot.todo))
            # The last token is computed in any case, for its logits.
            count = min(_common(source.cached, slot.todo), len(slot.todo) - 1)
        kept = count if source is slot else 0
        llama_cpp.llama_memory_seq_rm(self._memory, slot.sequence, kept, -1)
        if source is not slot:
            llama_cpp.llama_memory_seq_cp(self._memory, source.sequence, slot.sequence, 0, count)
        slot.cached = slot.todo[:count]
        del slot.todo[:count]

    def _sample(self, slot: _Slot, row: int) -> tuple[int, int]:
        """Take the likeliest next token of a sequence. The next step computes it if more are to
        come."""
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        token = int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())
        request = slot.request
        slot.left -= 1
        if slot.left:
            slot.todo = [token]
        else:
            slot.request = -1
        return request, token


def _weights(file: str) -> str:
    """The types of the file's matrices."""
    tensors = [tensor for tensor in gguf.GGUFReader(file).tensors if len(tensor.shape) > 1]
    types = {tensor.name: tensor.tensor_type.name for tensor in tensors}
    table = types.pop("token_embd.weight")
    return held(types.values(), table)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def _to_stderr(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    sys.stderr.write(text.decode(errors="replace"))


if __name__ == "__main__":
    serve(LlamaCpp())
