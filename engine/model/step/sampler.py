"""Sampler: chooses the next token of each row in one batch, each by its own parameters."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api.logprobs import TokenLogprobs
from engine.batch.plan import NOT_FOLLOWED, NewSequence
from engine.model.step.draw import Draw, Filters, draw_on
from engine.model.step.logprobs import RawLogprobs
from engine.model.step.masks import Allowed, Masks
from engine.model.step.sending import synchronize

IntArray = npt.NDArray[np.int64]

_T = TypeVar("_T")
_OfRows: TypeAlias = list[tuple[int, _T]]  # row of the step, its value


# The bias of eight tokens' logits for each byte of a mask, the lowest bit first.
_BIAS_OF_BYTE = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(0),
    np.float32("-inf"),
)


class Sampled(NamedTuple):
    """The result of sampling a step.

    Attributes:
        token_ids: [S]; `NOT_FINITE` where a row has a NaN, +inf, or nothing finite, `NOT_FOLLOWED`
            where its structure cannot be followed.
        logprobs: one for each row, None if it needs none or has no token; empty if no row needs
            any.
        waited: seconds spent waiting for the structures' masks.
    """

    token_ids: IntArray
    logprobs: tuple[TokenLogprobs | None, ...]
    waited: float = 0.0


class Sampler:
    """Chooses tokens by `engine.api.sampling.SamplingParams`, for sequences at fixed batch indices.

    These act in this order: logit_bias; repetition, frequency and presence penalty; suppressed
    tokens, or all that a structure does not allow; temperature, top_k, top_p and min_p; and one
    draw. With a temperature of 0, the likeliest token after suppression is chosen. Bias before
    penalties is the order of transformers and vLLM.

    Each filter sets the least logit that a row still allows, and the draw inverts the distribution
    function in the order of the vocabulary. So equal logits are treated alike, and neither their
    order in a sort nor the batch's other rows can change a row's token. Only its logits,
    parameters, seed and output position decide it.

    Args:
        draw: how tokens are drawn; None is the fastest way for the device.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        vocab_size: int,
        device: torch.device | str,
        draw: Draw | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._draw = draw or draw_on(self._device)
        self._temperature = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs, dtype=np.float64)
        self._min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self._penalties = np.zeros((max_num_seqs, 3), dtype=np.float32)
        self._seed = np.zeros(max_num_seqs, dtype=np.uint64)
        self._num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        # Values that only few sequences have, by batch index.
        self._num_logprobs: dict[int, int] = {}
        self._biases: dict[int, tuple[IntArray, npt.NDArray[np.float32]]] = {}
        self._suppressed: dict[int, tuple[int, IntArray]] = {}  # min_tokens, tokens
        # For sequences with a penalty: how often each seen token is in the output.
        self._counts: dict[int, dict[int, int]] = {}
        self._masks = Masks(vocab_size)

    def add(self, index: int, new: NewSequence) -> None:
        """Add a sequence's parameters and, for its penalties, its tokens so far."""
        sampling = new.sampling
        # A temperature too small for float32 becomes 0, which is greedy, as it should be.
        self._temperature[index] = sampling.temperature
        self._top_k[index] = min(sampling.top_k, self._vocab_size) or self._vocab_size
        self._top_p[index] = sampling.top_p
        self._min_p[index] = sampling.min_p
        self._seed[index] = new.seed
        self._num_prompt_tokens[index] = new.num_prompt_tokens
        if sampling.logprobs is not None:
            self._num_logprobs[index] = sampling.logprobs
        if sampling.logit_bias:
            tokens, biases = zip(*sampling.logit_bias, strict=True)
            self._biases[index] = np.array(tokens, np.int64), np.array(biases, np.float32)
        self._masks.add(index, new)
        # A structure's mask already excludes them, unless nothing else is allowed.
        if sampling.min_tokens and new.grammar is None:
            barred = [token for token in new.suppressed if token < self._vocab_size]
            if barred:
                self._suppressed[index] = sampling.min_tokens, np.array(barred, np.int64)
        penalties = (
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
        if penalties != (1.0, 0.0, 0.0):
            self._penalties[index] = penalties
            counts = self._counts[index] = dict.fromkeys(new.token_ids[: new.num_prompt_tokens], 0)
            for token in new.token_ids[new.num_prompt_tokens :]:
                counts[token] = counts.get(token, 0) + 1

    def remove(self, index: int) -> None:
        """Remove the sequence at this index."""
        for some in (self._num_logprobs, self._biases, self._suppressed, self._counts):
            some.pop(index, None)
        self._masks.remove(index)

    def sample(self, logits: Tensor, index: IntArray, lengths: IntArray) -> Sampled:
        """Choose the next token of each row, and count it for the row's penalties.

        Args:
            logits: [S, vocab_size] float32, contiguous; bias and penalties are applied in place.
            index: [S], batch index of each row.
            lengths: [S], tokens of each row's sequence so far.
        """
        rows = index.tolist()
        asking = _of_rows(self._num_logprobs, rows)
        raw = RawLogprobs(logits, asking) if asking else None
        if biased := _of_rows(self._biases, rows):
            self._add_biases(logits, biased)
        if counted := _of_rows(self._counts, rows):
            self._penalise(logits, index, counted)
        positions = lengths - self._num_prompt_tokens[index]
        if waiting := _of_rows(self._suppressed, rows):
            self._suppress(logits, positions, waiting)
        allowed = self._masks.collect(rows)
        if allowed is not None:
            self._bind(logits, allowed)

        temperature = self._temperature[index]
        tokens = self._draw(
            logits,
            Filters(
                temperature,
                self._top_k[index],
                self._top_p[index],
                self._min_p[index],
                uniforms(self._seed[index], positions)
                if temperature.any()
                else np.zeros(len(index)),
            ),
        )

        for row, counts in counted:
            token = int(tokens[row])
            if token >= 0:
                counts[token] = counts.get(token, 0) + 1
        waited = 0.0
        if allowed is not None:
            tokens[allowed.failed] = NOT_FOLLOWED
            self._masks.accept((rows[row], int(tokens[row])) for row in allowed.rows)
            waited = allowed.waited
        if raw is None:
            return Sampled(tokens, (), waited)
        started = raw.start(self._to_device(tokens))
        synchronize(self._device)
        return Sampled(tokens, started.of(tokens), waited)

    def _add_biases(
        self, logits: Tensor, biased: _OfRows[tuple[IntArray, npt.NDArray[np.float32]]]
    ) -> None:
        flat = np.concatenate([row * self._vocab_size + tokens for row, (tokens, _) in biased])
        biases = self._to_device(np.concatenate([biases for _, (_, biases) in biased]))
        logits.view(-1)[self._to_device(flat)] += biases

    def _penalise(self, logits: Tensor, index: IntArray, counted: _OfRows[dict[int, int]]) -> None:
        """Apply the penalties of some rows, given with their counts, to the tokens seen there."""
        sizes = [len(counts) for _, counts in counted]
        row_of = np.repeat([row for row, _ in counted], sizes)
        token_of = np.concatenate([np.fromiter(c.keys(), np.int64, len(c)) for _, c in counted])
        count_of = np.concatenate([np.fromiter(c.values(), np.float32, len(c)) for _, c in counted])
        flat = self._to_device(row_of * self._vocab_size + token_of)
        count = self._to_device(count_of)
        repetition, frequency, presence = self._to_device(self._penalties[index[row_of]]).unbind(1)
        scores = logits.view(-1)[flat]
        # The repetition penalty is that of CTRL (arXiv 1909.05858, section 4.1), changed to lower
        # the logit whatever its sign.
        scores = torch.where(scores < 0, scores * repetition, scores / repetition)
        scores -= frequency * count + presence * (count > 0)
        logits.view(-1)[flat] = scores

    def _suppress(
        self, logits: Tensor, positions: IntArray, waiting: _OfRows[tuple[int, IntArray]]
    ) -> None:
        """Forbid the tokens that would end a row before its min_tokens."""
        flat = [
            row * self._vocab_size + suppressed
            for row, (min_tokens, suppressed) in waiting
            if positions[row] < min_tokens
        ]
        if flat:
            # -inf is added, not stored, so that a NaN stays one.
            logits.view(-1)[self._to_device(np.concatenate(flat))] += float("-inf")

    def _bind(self, logits: Tensor, allowed: Allowed) -> None:
        """Forbid the tokens that some rows' structures do not allow."""
        for row, bits in zip(allowed.rows, allowed.bits, strict=True):
            # 30 us for 152,000 tokens, where `masked_fill_` takes up to 250 us. As above, -inf is
            # added, so that a NaN stays one.
            bias = np.take(_BIAS_OF_BYTE, bits.view(np.uint8), axis=0).reshape(-1)
            logits[row] += self._to_device(bias[: self._vocab_size])

    def _to_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _of_rows(some: dict[int, _T], rows: list[int]) -> _OfRows[_T]:
    """(row, value of its batch index), for the rows whose batch index has a value."""
    return [(row, some[at]) for row, at in enumerate(rows) if at in some] if some else []


def uniforms(seeds: npt.NDArray[np.uint64], positions: IntArray) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), one for each seed and output position.

    Position p of seed s has the upper 53 bits of output p + 1 of a SplitMix64 generator (Steele,
    Lea and Flood, OOPSLA'14) whose state starts at the first output for s. If it started at s
    itself, seeds an increment apart would share one stream, shifted.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = _mix(seeds + golden)
    mixed = _mix(start + (positions.astype(np.uint64) + np.uint64(1)) * golden)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
