"""Prompts: log-probabilities of prompt tokens, from the logits of the tokens before them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.api.logprobs import PromptLogprobs
from engine.batch.plan import NewSequence, Row
from engine.model.attention.batch import Batch, PackedRows
from engine.model.step.logprobs import columns_of, work_bytes
from engine.model.step.sending import fetch, send

IntArray = npt.NDArray[np.int64]

# Tokens whose logits are in memory at once. A chunk of 512 tokens has 311 MB of logits of 152,000
# words; these are 39 MB. With this many rows a product on a processor is bound by arithmetic, not
# by reading its matrix; and they use the buffer for the logits of sampling rows, which most
# envelopes size for as many.
MOST_LOGITS = 64


class _Asking(NamedTuple):
    """A sequence's request for log-probabilities of its prompt.

    Attributes:
        number: how many of the likeliest tokens to return.
        length: tokens of the prompt.
        num_sent: see `NewSequence.num_logprobs_sent`.
    """

    number: int
    length: int
    num_sent: int


class _Stretch(NamedTuple):
    """A segment of one prompt's tokens to report in a step.

    Attributes:
        row: row of the plan.
        first: position of the first token in the prompt.
        length, number: number of tokens, and of likeliest tokens for each.
    """

    row: int
    first: int
    length: int
    number: int


class Prompts:
    """The sequences that need log-probabilities of their prompts, by batch index, until all are
    computed.
    """

    def __init__(self) -> None:
        self._asking: dict[int, _Asking] = {}

    def add(self, index: int, new: NewSequence) -> None:
        """Add a sequence."""
        number, length = new.sampling.prompt_logprobs, new.num_prompt_tokens
        if number is not None and new.num_logprobs_sent < length:
            self._asking[index] = _Asking(number, length, new.num_logprobs_sent)

    def remove(self, index: int) -> None:
        """Remove the sequence at this index."""
        self._asking.pop(index, None)

    def asked(self, rows: Sequence[Row], step: PackedRows, batch: Batch) -> AskedPrompts | None:
        """The prompt tokens to report in a step; None if there are none.

        Args:
            rows: rows of the plan, which `batch` packed into `step`.
        """
        if not self._asking:
            return None
        begins = np.cumsum(step.counts) - step.counts
        begin_of = dict(zip(step.index.tolist(), begins.tolist(), strict=True))
        stretches, tokens, targets = [], [], []
        for at, row in enumerate(rows):
            index = batch.index_of(row.seq)
            asking = self._asking.get(index)
            if asking is None:
                continue
            end = min(row.start + row.count + 1, asking.length)
            if end > asking.num_sent:
                first = max(row.start + 1, asking.num_sent)
                stretches.append(_Stretch(at, first, end - first, asking.number))
                # A token's logits come from the token before it.
                shift = begin_of[index] - row.start - 1
                tokens.append(np.arange(first + shift, end + shift))
                targets.append(batch.token_ids(index, first, end))
            if end == asking.length:
                del self._asking[index]
        if not stretches:
            return None
        return AskedPrompts(stretches, np.concatenate(tokens), np.concatenate(targets))


@dataclass(frozen=True, slots=True)
class AskedPrompts:
    """The prompt tokens to report in a step.

    Attributes:
        tokens: [P], index in the packed step of the token before each target.
        targets: [P], the tokens to report.
    """

    stretches: Sequence[_Stretch]
    tokens: IntArray
    targets: IntArray

    def find(self, logits_of: Callable[[IntArray], Tensor]) -> FoundPrompts:
        """Compute their log-probabilities, without waiting for the device.

        Args:
            logits_of: returns the logits of at most `MOST_LOGITS` tokens of the step, by index:
                [tokens, vocab_size] float32. The next call may overwrite them.
        """
        number = max(stretch.number for stretch in self.stretches)
        parts = []
        for at in range(0, len(self.tokens), MOST_LOGITS):
            logits = logits_of(self.tokens[at : at + MOST_LOGITS])
            chosen = send(self.targets[at : at + MOST_LOGITS], logits.device)
            parts.append(columns_of(logits, chosen[:, None], number))
        # The last column, how many of the likeliest the model allows, shows in their numbers too.
        columns = [fetch(torch.cat(part)) for part in zip(*parts, strict=True)][:-1]
        return FoundPrompts(self, columns)


@dataclass(frozen=True, slots=True)
class FoundPrompts:
    """Computed log-probabilities of prompts, on the host once the device has got that far.

    Attributes:
        columns: log-probabilities, ranks, likeliest tokens and theirs, [P] and [P, n]; empty if no
            token is reported.
    """

    asked: AskedPrompts
    columns: Sequence[Tensor]

    def to_results(self) -> tuple[tuple[int, PromptLogprobs], ...]:
        """In the form of `StepResult.prompts`. The device must have got that far."""
        empty = np.empty((0, 0), np.float32)
        columns = [column.numpy() for column in self.columns] or [empty] * 4
        found, begin = [], 0
        for row, first, length, number in self.asked.stretches:
            part = slice(begin, begin + length)
            logprobs, ranks, likeliest, top = (column[part] for column in columns)
            begin += length
            packed = PromptLogprobs(
                first,
                _packed("I", self.asked.targets[part]),
                _packed("f", logprobs),
                _packed("I", ranks),
                min(number, likeliest.shape[1]),
                _packed("I", likeliest[:, :number]),
                _packed("f", top[:, :number]),
                not np.isnan(logprobs).any(),
            )
            found.append((row, packed))
        return tuple(found)


def slice_bytes(vocab_size: int, device: torch.device) -> int:
    """Most bytes of `AskedPrompts.find` beside its result, if the logits need memory of their own:
    in the model's type, in float32, and temporaries.
    """
    return MOST_LOGITS * vocab_size * 8 + work_bytes(MOST_LOGITS, vocab_size, device)


def _packed(code: str, values: npt.NDArray[Any]) -> array[Any]:
    packed: array[Any] = array(code)
    packed.frombytes(values.astype(np.uint32 if code == "I" else np.float32).tobytes())
    return packed
