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
from engine.model.batch import Batch, PackedRows
from engine.model.logprobs import columns_of, work_bytes
from engine.model.sending import fetch, send

IntArray = npt.NDArray[np.int64]

# Tokens whose logits are there at once. A chunk of 512 tokens has 311 MB of logits of 152,000
# words; these are 39 MB. With so many rows a product takes longer to multiply than its matrix takes
# to be read, on a processor; and they lie where the logits of rows that sample do, of which most
# envelopes have as many.
MOST_LOGITS = 64


class _Asking(NamedTuple):
    """What the prompt of a sequence asks for.

    Attributes:
        number: how many of the likeliest tokens.
        length: tokens of the prompt.
        told: as `NewSequence.num_told`.
    """

    number: int
    length: int
    told: int


class _Stretch(NamedTuple):
    """Tokens of one prompt that a step tells of.

    Attributes:
        row: of the plan.
        first: place of the first of them in the prompt.
        length, number: how many they are, and how many of the likeliest are asked for of each.
    """

    row: int
    first: int
    length: int
    number: int


class Prompts:
    """The sequences that ask for log-probabilities of their prompts, by batch index, as long as
    any of these are to be computed.
    """

    def __init__(self) -> None:
        self._asking: dict[int, _Asking] = {}

    def add(self, index: int, new: NewSequence) -> None:
        """Learn a sequence."""
        number, length = new.sampling.prompt_logprobs, new.num_prompt_tokens
        if number is not None and new.num_told < length:
            self._asking[index] = _Asking(number, length, new.num_told)

    def remove(self, index: int) -> None:
        """Forget the sequence at this index."""
        self._asking.pop(index, None)

    def asked(self, rows: Sequence[Row], step: PackedRows, batch: Batch) -> AskedPrompts | None:
        """What a step is to tell of prompts; None if nothing.

        Args:
            rows: of the plan, which `step` was made of by `batch`.
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
            if end > asking.told:
                first = max(row.start + 1, asking.told)
                stretches.append(_Stretch(at, first, end - first, asking.number))
                # The logits of a token are those of the one before it.
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
    """What a step is to tell of prompts.

    Attributes:
        tokens: [P], index in the packed step of the token before each that is told of.
        targets: [P], the tokens that are told of.
    """

    stretches: Sequence[_Stretch]
    tokens: IntArray
    targets: IntArray

    def find(self, logits_of: Callable[[IntArray], Tensor]) -> FoundPrompts:
        """Compute it, without waiting for the device.

        Args:
            logits_of: gives the logits of at most `MOST_LOGITS` tokens of the step, by their
                indices: [tokens, vocab_size] float32. They may go with the next call.
        """
        number = max(stretch.number for stretch in self.stretches)
        parts = []
        for at in range(0, len(self.tokens), MOST_LOGITS):
            logits = logits_of(self.tokens[at : at + MOST_LOGITS])
            chosen = send(self.targets[at : at + MOST_LOGITS], logits.device)
            parts.append(columns_of(logits, chosen[:, None], number))
        # The last column says how many of the likeliest the model allows, as their numbers do too.
        columns = [fetch(torch.cat(part)) for part in zip(*parts, strict=True)][:-1]
        return FoundPrompts(self, columns)


@dataclass(frozen=True, slots=True)
class FoundPrompts:
    """What was computed of prompts, on the host once the device has come so far.

    Attributes:
        columns: of log-probabilities, ranks, likeliest tokens and theirs, [P] and [P, n]; none if
            no token is told of.
    """

    asked: AskedPrompts
    columns: Sequence[Tensor]

    def told(self) -> tuple[tuple[int, PromptLogprobs], ...]:
        """As `StepResult.prompts` has it. The device has come so far."""
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
    """Most bytes that `AskedPrompts.find` takes beside what it returns, if the logits are no memory
    that is there anyway: in the model's type, in float32, and what is made of them on the way.
    """
    return MOST_LOGITS * vocab_size * 8 + work_bytes(MOST_LOGITS, vocab_size, device)


def _packed(code: str, values: npt.NDArray[Any]) -> array[Any]:
    packed: array[Any] = array(code)
    packed.frombytes(values.astype(np.uint32 if code == "I" else np.float32).tobytes())
    return packed
