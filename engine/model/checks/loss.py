"""Loss: how quantized weights change a model's next tokens, over a fixed text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from engine.api.client import ChatMessage
from engine.api.config import EngineConfig
from engine.api.errors import EngineError
from engine.api.sampling import SamplingParams
from engine.api.status import QuantizationLoss
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.batch.shape import ModelShape
from engine.model.running.forward import Forward
from engine.model.running.runner import TorchRunner
from engine.text.job import Encoder, PromptJob

logger = logging.getLogger(__name__)

# For chats that the built-in model was not trained on.
_SEED = 1 << 40
# Upper bound of characters for each token of our text, for any vocabulary.
_CHARACTERS = 8


class Sample(NamedTuple):
    """Size of a comparison: number of chats, and tokens of each."""

    chats: int
    length: int

    @property
    def tokens(self) -> int:
        return self.chats * self.length


# The samples for loading a model, and for `tui doctor`.
AT_LOAD, THOROUGH = Sample(4, 64), Sample(16, 128)


def fixed_text(encoder: Encoder, sample: Sample) -> list[list[int]] | None:
    """Encode chats of ours in the model's own template; None if it does not accept them."""
    # Imported here: it takes 30 ms, and most models are not quantized.
    from engine.builtin.corpus import chats

    exchanges = (pair for chat in chats(_SEED) for pair in chat.exchanges)
    found: list[list[int]] = []
    for _ in range(sample.chats):
        messages: list[ChatMessage] = []
        while sum(len(one.content) for one in messages) < _CHARACTERS * sample.length:
            asked, reply = next(exchanges)
            messages += [ChatMessage("user", asked), ChatMessage("assistant", reply)]
        try:
            token_ids = encoder.run(PromptJob((*messages, ChatMessage("user", "Go on."))))
        except EngineError as error:
            logger.warning("what quantizing changes is not measured: %s", error.message)
            return None
        found.append(token_ids[: sample.length])
    if min(map(len, found)) < sample.length:
        logger.warning("what quantizing changes is not measured: its tokens are too long")
        return None
    return found


class LossProbe:
    """Records a model's logits before its weights are quantized, and compares.

    Args:
        token_ids: texts of equal length.
    """

    def __init__(self, model: PreTrainedModel, token_ids: Sequence[Sequence[int]]) -> None:
        self._token_ids = torch.tensor(token_ids)
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            self._logits: Tensor = model(input_ids=self._token_ids, use_cache=False).logits

    def compare(
        self, forward: Forward, config: EngineConfig, shape: ModelShape
    ) -> QuantizationLoss:
        """Compare a forward pass with quantized weights, and activations, on the same texts.

        It decodes them token by token, and writes to its own pool; another has to be attached
        afterwards.

        Args:
            config: the envelope of `forward`.
        """
        texts, length = self._token_ids.shape
        equal, divergence = 0, 0.0
        at_once = min(texts, config.max_num_seqs)
        for first in range(0, texts, at_once):
            rows = range(first, min(first + at_once, texts))
            envelope = replace(
                config,
                num_blocks=len(rows) * config.blocks_for(length),
                num_host_blocks=0,
                max_model_len=length,
            )
            runner = TorchRunner(forward, envelope, shape)
            for at, plan in enumerate(self._plans(rows, envelope)):
                own = self._logits[rows.start : rows.stop, at].float()
                got = runner.logits(plan)
                best = got.argmax(-1, keepdim=True)
                # In bfloat16 some tokens are equally likely.
                equal += int((own.gather(-1, best)[:, 0] == own.amax(-1)).sum())
                divergence += float(
                    functional.kl_div(
                        got.log_softmax(-1), own.log_softmax(-1), reduction="sum", log_target=True
                    )
                )
            runner.close()
        tokens = self._token_ids.numel()
        return QuantizationLoss(tokens, equal / tokens, divergence / tokens)

    def _plans(self, texts: range, config: EngineConfig) -> list[StepPlan]:
        """Steps of one token of each text, with consecutive blocks."""
        blocks = count()
        token_ids = self._token_ids.tolist()
        length = config.max_model_len
        new = tuple(
            NewSequence(text, tuple(token_ids[text]), length, SamplingParams(), 0, (), ())
            for text in texts
        )
        plans = []
        for at in range(length):
            begins = at % config.block_size == 0
            rows = (
                Row(text, at, 1, (next(blocks),) if begins else (), samples=True, prefill=False)
                for text in texts
            )
            plans.append(StepPlan(at + 1, tuple(rows), new=new if at == 0 else ()))
        return plans
