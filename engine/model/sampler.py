"""Sampler: the next token of each row, batched, each row by its own parameters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.logprobs import TokenLogprobs
from engine.model.logprobs import RawLogprobs
from engine.plan import NewSequence

IntArray = npt.NDArray[np.int64]

# Candidates sorted for top_p before the whole row is: a nucleus is rarely larger, and topk of 256
# takes 4 ms where a sort takes 59 (32 rows of 32,000 logits on one core).
_NUCLEUS_CANDIDATES = 256
# Weights are summed in float32 by chunks, then in float64: a float32 sum over a whole vocabulary
# loses its tail, a float64 one takes 32 ms where this takes 1 (32 rows of 150,000).
_CHUNK = 128


class Sampled(NamedTuple):
    """What a step's sampling gave.

    Attributes:
        token_ids: [S]; -1 where a row has a NaN, +inf, or nothing finite.
        logprobs: for each row, None where it asks for none or has no token; empty if none asks.
    """

    token_ids: IntArray
    logprobs: tuple[TokenLogprobs | None, ...]


class Sampler:
    """Chooses tokens by `engine.request.SamplingParams`, for sequences at fixed batch indices.

    In this order: logit_bias; repetition, frequency and presence penalty; suppressed tokens; then,
    unless the temperature is 0, which takes the likeliest: temperature, top_k, top_p, min_p, and
    one draw. Bias before penalties is the order of transformers and vLLM.

    Each filter is a least logit that a row still allows, and the draw inverts the distribution
    function in the order of the vocabulary. So equal logits share one fate, and neither their order
    in a sort nor the batch's other rows can change a row's token: logits, seed and output position
    decide it alone.
    """

    def __init__(self, *, max_num_seqs: int, vocab_size: int, device: torch.device | str) -> None:
        self._vocab_size = vocab_size
        self._device = torch.device(device)
        self._temperature = np.zeros(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs, dtype=np.float64)
        self._min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self._penalties = np.zeros((max_num_seqs, 3), dtype=np.float32)
        self._seed = np.zeros(max_num_seqs, dtype=np.uint64)
        self._num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self._min_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self._num_logprobs = np.full(max_num_seqs, -1, dtype=np.int64)  # -1 asks for none
        self._biases: dict[int, tuple[IntArray, npt.NDArray[np.float32]]] = {}
        self._suppressed: dict[int, tuple[int, ...]] = {}
        # Of sequences with a penalty: each token seen, with how often it is in the output.
        self._counts: dict[int, dict[int, int]] = {}

    def add(self, index: int, new: NewSequence) -> None:
        """Learn a sequence's parameters, and what it has produced, for its penalties."""
        sampling = new.sampling
        # What float32 has no number for is greedy, as it should be.
        self._temperature[index] = sampling.temperature
        self._top_k[index] = min(sampling.top_k, self._vocab_size) or self._vocab_size
        self._top_p[index] = sampling.top_p
        self._min_p[index] = sampling.min_p
        self._seed[index] = new.seed
        self._num_prompt_tokens[index] = new.num_prompt_tokens
        self._num_logprobs[index] = -1 if sampling.logprobs is None else sampling.logprobs
        if sampling.logit_bias:
            tokens, biases = zip(*sampling.logit_bias, strict=True)
            self._biases[index] = np.array(tokens, np.int64), np.array(biases, np.float32)
        suppressed = tuple(token for token in new.suppressed if token < self._vocab_size)
        self._min_tokens[index] = sampling.min_tokens if suppressed else 0
        self._suppressed[index] = suppressed
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
        """Forget the sequence at this index."""
        self._biases.pop(index, None)
        self._suppressed.pop(index, None)
        self._counts.pop(index, None)

    def sample(self, logits: Tensor, index: IntArray, lengths: IntArray) -> Sampled:
        """The next token of each row, which counts from now on for the row's penalties.

        Args:
            logits: [S, vocab_size] float32, contiguous; bias and penalties are applied in place.
            index: [S], batch index of each row.
            lengths: [S], tokens of each row's sequence so far.
        """
        (asking,) = np.nonzero(self._num_logprobs[index] >= 0)
        sizes = self._num_logprobs[index[asking]]
        raw = RawLogprobs(logits, asking, sizes) if len(asking) else None
        self._add_biases(logits, index)
        positions = lengths - self._num_prompt_tokens[index]
        counted = [
            (row, counts)
            for row, at in enumerate(index.tolist() if self._counts else ())
            if (counts := self._counts.get(at)) is not None
        ]
        if counted:
            self._penalise(logits, index, counted)
        self._suppress(logits, index, positions)
        top, tokens = logits.max(dim=-1)
        finite = top.isfinite()

        (drawing,) = np.nonzero(self._temperature[index])
        if len(drawing):
            rows = self._to_device(drawing)
            drawn = self._draw(
                logits if len(drawing) == len(index) else logits[rows],
                top[rows],
                index[drawing],
                uniforms(self._seed[index[drawing]], positions[drawing]),
            )
            tokens[rows] = drawn
        chosen: IntArray = torch.where(finite, tokens, -1).cpu().numpy()

        for row, counts in counted:
            token = int(chosen[row])
            if token >= 0:
                counts[token] = counts.get(token, 0) + 1
        if raw is None:
            return Sampled(chosen, ())
        logprobs: list[TokenLogprobs | None] = [None] * len(chosen)
        # What was drawn from a row that is not finite may lie outside the vocabulary.
        found_in = raw.of(tokens.where(finite, 0))
        for row, found in zip(asking.tolist(), found_in, strict=True):
            if chosen[row] >= 0:
                logprobs[row] = found
        return Sampled(chosen, tuple(logprobs))

    def _add_biases(self, logits: Tensor, index: IntArray) -> None:
        biased = [
            (row, *self._biases[at])
            for row, at in enumerate(index.tolist() if self._biases else ())
            if at in self._biases
        ]
        if biased:
            flat = np.concatenate([row * self._vocab_size + tokens for row, tokens, _ in biased])
            biases = self._to_device(np.concatenate([biases for *_, biases in biased]))
            logits.view(-1)[self._to_device(flat)] += biases

    def _penalise(
        self, logits: Tensor, index: IntArray, counted: list[tuple[int, dict[int, int]]]
    ) -> None:
        """Apply the penalties of some rows, given with their counts, to the tokens seen there."""
        sizes = [len(counts) for _, counts in counted]
        row_of = np.repeat([row for row, _ in counted], sizes)
        token_of = np.concatenate([np.fromiter(c.keys(), np.int64, len(c)) for _, c in counted])
        count_of = np.concatenate([np.fromiter(c.values(), np.float32, len(c)) for _, c in counted])
        flat = self._to_device(row_of * self._vocab_size + token_of)
        count = self._to_device(count_of)
        repetition, frequency, presence = self._to_device(self._penalties[index[row_of]]).unbind(1)
        scores = logits.view(-1)[flat]
        # CTRL, arXiv 1909.05858, section 4.1, made to push down whatever the logit's sign.
        scores = torch.where(scores < 0, scores * repetition, scores / repetition)
        scores -= frequency * count + presence * (count > 0)
        logits.view(-1)[flat] = scores

    def _suppress(self, logits: Tensor, index: IntArray, positions: IntArray) -> None:
        """Forbid the tokens that would end a row before its min_tokens."""
        (early,) = np.nonzero(positions < self._min_tokens[index])
        flat = [
            row * self._vocab_size + token
            for row in early.tolist()
            for token in self._suppressed[int(index[row])]
        ]
        if flat:
            # Added, not stored, for a NaN must stay one.
            logits.view(-1)[torch.tensor(flat, device=self._device)] += float("-inf")

    def _draw(
        self, logits: Tensor, top: Tensor, index: IntArray, uniform: npt.NDArray[np.float64]
    ) -> Tensor:
        """One token a row: [S]. Arguments as in `sample`; `top` is each row's largest logit."""
        # The largest is 0 now, so that no temperature overflows.
        scaled = (logits - top[:, None]).div_(self._to_device(self._temperature[index])[:, None])
        floor = torch.full_like(top, float("-inf"))

        top_k = self._top_k[index]
        (rows,) = np.nonzero(top_k < self._vocab_size)
        if len(rows):
            at = self._to_device(rows)
            best = scaled[at].topk(int(top_k[rows].max())).values
            floor[at] = best.gather(1, self._to_device(top_k[rows] - 1)[:, None]).squeeze(1)

        top_p = self._top_p[index]
        (rows,) = np.nonzero(top_p < 1)
        if len(rows):
            at = self._to_device(rows)
            floor[at] = _nucleus(scaled[at], floor[at], self._to_device(top_p[rows]))

        min_p = self._min_p[index]
        if min_p.any():
            floor = floor.maximum(self._to_device(min_p).log())

        weights = scaled.masked_fill_(scaled < floor[:, None], float("-inf")).exp_()
        return _invert(weights, self._to_device(uniform))

    def _to_device(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def uniforms(seeds: npt.NDArray[np.uint64], positions: IntArray) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), one for each seed and output position.

    Position p of seed s has the upper 53 bits of output p + 1 of a SplitMix64 generator (Steele,
    Lea and Flood, OOPSLA'14) whose state starts at the first output for s. Started at s itself,
    seeds that lie an increment apart would share one stream, shifted.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = _mix(seeds + golden)
    mixed = _mix(start + (positions.astype(np.uint64) + np.uint64(1)) * golden)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _nucleus(scaled: Tensor, floor: Tensor, top_p: Tensor) -> Tensor:
    """Least logit of each row's nucleus (Holtzman et al., arXiv 1904.09751, section 3.1): [S].

    Args:
        scaled: [S, vocab_size], the largest of a row 0.
        floor: [S], least logit allowed so far.
        top_p: [S] float64.
    """
    weights = scaled.masked_fill(scaled < floor[:, None], float("-inf")).exp_()
    wanted = top_p * _chunk_sums(weights).sum(-1)

    def last_kept(best: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        mass = best.exp().cumsum(-1, dtype=torch.float64)
        last = (mass < wanted[:, None]).sum(-1, keepdim=True).clamp_(max=best.shape[1] - 1)
        return best.gather(1, last).squeeze(1), mass[:, -1] >= wanted

    candidates = min(_NUCLEUS_CANDIDATES, scaled.shape[1])
    kept, reached = last_kept(scaled.topk(candidates).values, wanted)
    if not reached.all():
        (rows,) = torch.nonzero(~reached, as_tuple=True)
        kept[rows] = last_kept(scaled[rows].sort(descending=True).values, wanted[rows])[0]
    return floor.maximum(kept)


def _chunk_sums(weights: Tensor) -> Tensor:
    """Sums of each row over chunks of the vocabulary, the last one shorter: [S, chunks] float64."""
    whole = weights.shape[1] // _CHUNK * _CHUNK
    sums = weights[:, :whole].view(len(weights), whole // _CHUNK, _CHUNK).sum(-1)
    return torch.cat((sums, weights[:, whole:].sum(-1, keepdim=True)), dim=1).double()


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """First token of each row at which the sum of weights passes `uniform` of their total: [S]."""

    def pass_at(parts: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        # Below the total, so that rounding cannot choose past the last weight above 0.
        sums = parts.cumsum(-1)
        target = target.minimum(sums[:, -1].nextafter(torch.zeros_like(target)))
        at = torch.searchsorted(sums, target[:, None], right=True).clamp_(max=parts.shape[1] - 1)
        before = (sums - parts).gather(1, at).squeeze(1)
        return at, (target - before).clamp_(min=0)

    sums = _chunk_sums(weights)
    chunk, rest = pass_at(sums, uniform * sums.sum(-1))
    tokens = chunk * _CHUNK + torch.arange(_CHUNK, device=weights.device)
    inside = weights.gather(1, tokens.clamp(max=weights.shape[1] - 1)).double()
    at, _ = pass_at(inside.masked_fill_(tokens >= weights.shape[1], 0), rest)
    return tokens.gather(1, at).squeeze(1)
