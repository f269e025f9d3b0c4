"""Worker: llama.cpp, batching continuously over its parallel sequences.

llama.cpp computes batches, and its caller decides which tokens are in one. Here this is done as in
its server: a token of each sequence that decodes, then as much of the prompts as there is room for.

With the argument `defaults` it maps the file and chooses the type of its cache, whether it uses
flash attention and how it holds the weights as it does for its users; `load` then makes the context
too. Otherwise file and cache are as is fair beside peers that serve a model in bfloat16.
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
_SCORED = 128  # tokens whose logits are held at once


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
    def __init__(self, has_defaults: bool) -> None:
        self._has_defaults = has_defaults

    def load(self, setup: Setup) -> About:
        self._setup = setup
        self._log = llama_cpp.llama_log_callback(_to_stderr)
        llama_cpp.llama_log_set(self._log, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_mmap = self._has_defaults
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
        name = f"llama-cpp-python {version('llama-cpp-python')}"
        if self._has_defaults:
            self._make_context(len(setup.cache_lengths), max(setup.cache_lengths), shares=False)
            return About(
                name,
                f"its defaults (n_batch {setup.budget}, n_ubatch {_MICRO_BATCH}, the file mapped), "
                f"a stream for each sequence; built with {', '.join(has)}",
                "as the file has them",
            )
        return About(
            name,
            f"n_batch {setup.budget}, n_ubatch {_MICRO_BATCH}, flash attention, bf16 cache, a "
            "stream for each sequence, or one for all where they share a prompt, which is then "
            f"copied; built with {', '.join(has)}",
            _weights(setup.model),
        )

    def run(self, workload: Workload) -> list[Served]:
        self._make_context(len(workload.prompts), max(workload.lengths), workload.shared_tokens > 0)
        return drive(self, workload)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        found = []
        for text in texts:
            raw = text.encode()
            ids = (llama_cpp.llama_token * (len(raw) + 2))()  # there may be a mark at each end
            count = llama_cpp.llama_tokenize(vocab, raw, len(raw), ids, len(ids), True, False)
            if count < 0:
                raise RuntimeError(f"llama_tokenize returned {count}")
            found.append(list(ids[:count]))
        return found

    def score(self, windows: Sequence[Sequence[int]]) -> list[float]:
        self._make_context(1, max(map(len, windows)), shares=False)
        return [self._score(window) for window in windows]

    def _score(self, window: Sequence[int]) -> float:
        llama_cpp.llama_memory_clear(self._memory, True)
        batch, total = self._batch, 0.0
        for start in range(0, len(window) - 1, _SCORED):
            chunk = window[start : min(start + _SCORED, len(window) - 1)]
            for row, token in enumerate(chunk):
                self._place(row, token, start + row, 0, has_logits=True)
            batch.n_tokens = len(chunk)
            self._decode()
            shape = (len(chunk), self._vocab_size)
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), shape)
            logits = logits - logits.max(1, keepdims=True)
            of_next = logits[range(len(chunk)), window[start + 1 : start + 1 + len(chunk)]]
            total += float((of_next - np.log(np.exp(logits).sum(1, dtype=np.float64))).sum())
        return total

    def _make_context(self, sequences: int, length: int, shares: bool) -> None:
        """Make an empty context of the workload's size.

        Sequences in one stream share a prompt at no cost, but each of them attends over the cells
        of all. So streams of their own are faster where nothing is shared.

        Args:
            length: the most tokens of a sequence.
            shares: whether prompts begin alike.
        """
        length = -(-length // _CONTEXT_GRAIN) * _CONTEXT_GRAIN
        layout = (sequences, length, shares)
        if layout != self._layout:
            if self._context is not None:
                llama_cpp.llama_free(self._context)
            params = llama_cpp.llama_context_default_params()
            params.n_seq_max = sequences
            params.n_ctx = sequences * length
            params.n_batch = self._setup.budget
            params.n_ubatch = _MICRO_BATCH
            params.n_threads = params.n_threads_batch = self._setup.threads
            params.kv_unified = shares
            if self._has_defaults:
                params.swa_full = False  # as all of its programs have it
            else:
                params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
                params.type_k = params.type_v = _GGML_TYPE_BF16
            params.no_perf = True
            self._context = llama_cpp.llama_init_from_model(self._model, params)
            if not self._context:
                raise RuntimeError("llama.cpp cannot make a context")
            self._layout = layout
        self._memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(self._memory, True)
        self._slots = [_Slot(sequence) for sequence in range(sequences)]
        self._shares = shares

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
                self._place(rows, token, position, slot.sequence)
                rows += 1
            del slot.todo[: len(chunk)]
            chunks.append((slot, chunk))
            if not slot.todo:
                batch.logits[rows - 1] = True
                samples.append((slot, rows - 1))
        batch.n_tokens = rows
        self._decode()
        for slot, chunk in chunks:
            slot.cached += chunk
        return iter([self._sample(slot, row) for slot, row in samples])

    def _place(
        self, row: int, token: int, position: int, sequence: int, has_logits: bool = False
    ) -> None:
        """Put a token into the batch."""
        batch = self._batch
        batch.token[row] = token
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = has_logits

    def _decode(self) -> None:
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

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
    serve(LlamaCpp(sys.argv[1:] == ["defaults"]))
