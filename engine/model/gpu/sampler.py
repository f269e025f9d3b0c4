"""DeviceSampler: chooses a step's next tokens on the GPU, within the step's graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.api.errors import cause_of
from engine.api.sampling import MAX_BIASES, SamplingParams
from engine.batch.plan import NewSequence
from engine.model.attention.base import IntArray
from engine.model.gpu.inputs import Int32Array
from engine.model.machine.device import is_out_of_memory
from engine.model.step.masks import Allowed, Masks
from engine.model.step.sampler import uniforms
from engine.model.step.sending import send
from engine.triton.overlap import launch_options
from engine.triton.sampling import choose, score
from engine.triton.sampling_fields import (
    CANDIDATES,
    FIELDS,
    MASK_WORD,
    MAY_BE_SUPPRESSED,
    MOST_COUNTED,
    PENALISED,
    STRUCTURED,
    SUPPRESSING,
    TILE,
    chunk_of,
)

ROW_FIELDS = len(FIELDS)
_AT = {name: at for at, name in enumerate(FIELDS)}
# With 16 warps, a thread of `choose` has 4 of 2,048 candidates in its registers. With 8 it would
# have twice as many: a multiprocessor had room for one program all the same, and sm_80 spilled.
SCORING_WARPS, CHOOSING_WARPS = 4, 16


class DeviceSampler:
    """Chooses tokens as `engine.model.step.sampler.Sampler` does, by kernels that wait for nothing.

    The parameters of a row come with the step's inputs, as words. Only data with an entry for each
    token of the vocabulary stays on the device: the counts of a sequence's tokens, for its
    penalties and for the tokens that min_tokens suppresses, its biases, and the mask of its
    structure. The mask is known only when the last token is, so rows with a structure have launches
    of their own (`part`).

    Attributes:
        masks: computes the masks of structures.
    """

    def __init__(self, *, max_num_seqs: int, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._chunk, chunks = chunk_of(vocab_size)

        def room(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(max_num_seqs, *shape, dtype=dtype, device=self._device)

        self._scores = room(vocab_size, dtype=torch.float32)
        # Chunks past the vocabulary are never written.
        self._maxima = room(chunks, dtype=torch.float32).fill_(float("-inf"))
        self._sums = room(chunks, dtype=torch.int64)
        self._listed = room(chunks, dtype=torch.int32)
        self._found = room(2, CANDIDATES, dtype=torch.int32)
        self._counts = room(vocab_size, dtype=torch.int16)
        self._biases = room(MAX_BIASES, 2, dtype=torch.int32)
        # By batch index: the constant words of a row, and the parameters of the variable ones.
        self._words = np.zeros((max_num_seqs, ROW_FIELDS), np.int32)
        self._seed = np.zeros(max_num_seqs, np.uint64)
        self._num_prompt_tokens = np.zeros(max_num_seqs, np.int64)
        self._min_tokens = np.zeros(max_num_seqs, np.int64)
        self._num_logprobs: dict[int, int] = {}
        self.masks = Masks(vocab_size)
        self._allowed = room(-(-vocab_size // MASK_WORD), dtype=torch.int32)

    def add(self, index: int, new: NewSequence) -> Callable[[], None] | None:
        """Add a sequence.

        Returns:
            a function that copies its data to the device, to be called before its first step; None
            if there is nothing to copy.
        """
        sampling = new.sampling
        self.masks.add(index, new)
        # A structure's mask already excludes them, unless nothing else is allowed.
        barred = () if new.grammar is not None else new.suppressed
        suppressed = [token for token in barred if token < self._vocab_size]
        penalties = (
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
        has_penalties = penalties != (1.0, 0.0, 0.0)
        self._seed[index] = new.seed
        self._num_prompt_tokens[index] = new.num_prompt_tokens
        self._min_tokens[index] = sampling.min_tokens if suppressed else 0
        if sampling.logprobs is not None:
            self._num_logprobs[index] = sampling.logprobs
        words = self._words[index]
        words[_AT["index"]] = index
        words[_AT["flags"]] = PENALISED if has_penalties else 0
        if new.grammar is not None:
            words[_AT["flags"]] |= STRUCTURED
        words[_AT["biases"]] = len(sampling.logit_bias)
        words[_AT["top_k"]] = min(sampling.top_k, self._vocab_size) or self._vocab_size
        # A temperature that is too small for float32 becomes 0, which is greedy, as it should be.
        reals = words[_AT["temperature"] : _AT["presence"] + 1].view(np.float32)
        with np.errstate(divide="ignore"):
            reals[:] = (sampling.temperature, np.log(np.float32(sampling.min_p)), *penalties)
        words[_AT["top_p_low"] :].view(np.float64)[:] = sampling.top_p
        is_counted = has_penalties or self._min_tokens[index] > 0
        if not (is_counted or sampling.logit_bias):
            return None
        # The counts of a row that only has biases are not read.
        some = suppressed if self._min_tokens[index] else []
        counts = _counts(new, some) if is_counted else None
        return lambda: self._upload(index, counts, sampling.logit_bias)

    def remove(self, index: int) -> None:
        """Forget the sequence at this index."""
        self._num_logprobs.pop(index, None)
        self.masks.remove(index)

    def pack(self, index: IntArray, lengths: IntArray) -> Int32Array:
        """The kernels' words of the rows of a step: [S, ROW_FIELDS].

        Args:
            index: [S], batch index of each row.
            lengths: [S], tokens of each row's sequence so far.
        """
        words = self._words[index]
        positions = lengths - self._num_prompt_tokens[index]
        words[:, _AT["flags"]] |= np.where(positions < self._min_tokens[index], SUPPRESSING, 0)
        place = slice(_AT["uniform_low"], _AT["uniform_high"] + 1)
        uniform = uniforms(self._seed[index], positions)
        words[:, place] = uniform.view(np.int32).reshape(-1, 2)
        return words

    def part(self, words: Int32Array) -> Int32Array | None:
        """Separate the rows with structures from the other rows of a step.

        Args:
            words: as from `pack`; those rows become padding.

        Returns:
            the rows of the step with all others padding; None if none has a structure.
        """
        if not self.masks.follows_any:
            return None
        has_structure = (words[:, _AT["flags"]] & STRUCTURED) != 0
        if not has_structure.any():
            return None
        bound = np.where(has_structure[:, None], words, -1)
        words[has_structure] = -1
        return bound

    def bind(self, index: IntArray, allowed: Allowed) -> None:
        """Copy the masks of structures to the device.

        Args:
            index: [S], batch index of each row.
        """
        rows = send(index[allowed.rows], self._device)
        self._allowed.index_copy_(0, rows, send(allowed.bits, self._device))

    def asking(self, index: IntArray) -> list[tuple[int, int]]:
        """(row, number of likeliest tokens requested), for the rows with these batch indices that
        need log-probabilities.
        """
        some = self._num_logprobs
        return (
            [(row, some[at]) for row, at in enumerate(index.tolist()) if at in some] if some else []
        )

    def launch(
        self,
        logits: Tensor,
        rows: Tensor,
        tokens: Tensor,
        latest: Tensor,
        *,
        masked: bool = False,
    ) -> None:
        """Choose the token of each row, and count it for the row's penalties.

        Args:
            logits: [S, vocab_size] float32, contiguous; they are left as they are.
            rows: [S, ROW_FIELDS] int32, as from `pack`; rows of -1 are padding.
            tokens: [S] int32, gets the tokens; -1 where a row has a NaN, +inf, or nothing finite.
            latest: [max_num_seqs] int32, gets each token at its row's batch index.
            masked: whether the rows other than padding have structures: all of them do, or none.
        """
        if not len(rows):
            return
        common = {
            "VOCAB": self._vocab_size,
            "CHUNK": self._chunk,
            "CHUNKS": self._maxima.shape[1],
            **launch_options(),
        }
        score[-(-self._vocab_size // TILE), len(rows)](
            logits,
            self._scores,
            self._maxima,
            self._sums,
            rows,
            self._counts,
            self._biases,
            self._allowed,
            MAX_BIASES=MAX_BIASES,
            MASKED=masked,
            num_warps=SCORING_WARPS,
            # A fused multiply-add would round a penalised score differently from the torch sampler,
            # and so break ties differently.
            enable_fp_fusion=False,
            **common,
        )
        choose[(len(rows),)](
            logits,
            self._scores,
            self._maxima,
            self._sums,
            self._listed,
            self._found,
            rows,
            self._counts,
            tokens,
            latest,
            num_warps=CHOOSING_WARPS,
            **common,
        )

    def _upload(
        self,
        index: int,
        counts: dict[int, int] | None,
        biases: tuple[tuple[int, float], ...],
    ) -> None:
        if counts is not None:
            self._counts[index].zero_()
            size = len(counts)
            tokens = send(np.fromiter(counts.keys(), np.int64, size), self._device)
            values = send(np.fromiter(counts.values(), np.int16, size), self._device)
            self._counts[index].index_copy_(0, tokens, values)
        if biases:
            ids, values_of = zip(*biases, strict=True)
            pairs = np.empty((len(biases), 2), np.int32)
            pairs[:, 0] = ids
            pairs[:, 1] = np.array(values_of, np.float32).view(np.int32)
            self._biases[index, : len(biases)] = send(pairs, self._device)


def why_not(vocab_size: int, device: torch.device) -> str:
    """Why the kernels cannot choose tokens of a vocabulary on a device; empty if they can.

    This compiles the kernels for the device, including those for rows with structures, and runs
    them once.

    Raises:
        torch.OutOfMemoryError: there is too little memory to try.
    """
    likeliest = vocab_size // 2
    try:
        sampler = DeviceSampler(max_num_seqs=1, vocab_size=vocab_size, device=device)
        sampler.add(0, NewSequence(0, (0,), 1, SamplingParams(temperature=0), 0, (), ()))
        words = sampler.pack(np.zeros(1, np.int64), np.ones(1, np.int64))
        logits = torch.zeros(1, vocab_size, device=device)
        logits[0, likeliest] = 1.0
        tokens = torch.full((2, 1), -1, dtype=torch.int32, device=device)
        for masked, given in enumerate((words, np.full_like(words, -1))):
            rows = send(given, device)
            sampler.launch(logits, rows, tokens[masked], tokens[0].clone(), masked=bool(masked))
        chosen = int(tokens[0])
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return cause_of(error)
    if chosen != likeliest:
        return f"they choose token {chosen} where {likeliest} is likeliest"
    return ""


def _counts(new: NewSequence, suppressed: list[int]) -> dict[int, int]:
    """The counts of a sequence's tokens, as the kernels keep them."""
    counts = dict.fromkeys(new.token_ids[: new.num_prompt_tokens], 1)
    for token in new.token_ids[new.num_prompt_tokens :]:
        counts[token] = min(max(counts.get(token, 0), 1) + 1, MOST_COUNTED)
    for token in dict.fromkeys(suppressed):
        counts[token] = counts.get(token, 0) + MAY_BE_SUPPRESSED
    return counts
