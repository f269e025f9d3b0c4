"""Which ids a model looks up is known of every token, not only of those that were recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api.config import EngineConfig
from engine.api.sampling import SamplingParams
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.program.find import find_graph
from engine.model.program.forward import ProgramForward
from engine.model.program.unreadable import UnreadableError
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.support.native import kernels_or_skip
from tests.support.zoo import MAX_LEN, VOCAB_SIZE, tiny_model

kernels_or_skip()
CONFIG = EngineConfig(num_blocks=8, max_model_len=MAX_LEN, max_num_seqs=8)
PICTURE, SOUND, PADDING = 72, 75, 4


def chosen(ids: Tensor) -> Tensor:
    return torch.where((ids == PICTURE) | (ids == SOUND), PADDING, ids.clone())


def stored(ids: Tensor) -> Tensor:
    ids = ids.clone()
    ids[ids == PICTURE] = PADDING
    ids[ids == SOUND] = PADDING
    return ids


def none_that_is_served(ids: Tensor) -> Tensor:
    return ids.masked_fill(ids >= VOCAB_SIZE, PADDING)


def by_those_before(ids: Tensor) -> Tensor:
    return torch.where(ids.cumsum(-1) < 0, PADDING, ids)


def looking_up(change: Any) -> PreTrainedModel:
    model = tiny_model("llama")
    kind = type(model.model)

    class Changed(kind):  # type: ignore[valid-type, misc]
        def forward(self, input_ids: Tensor, **kwargs: Any) -> Any:
            return super().forward(input_ids=change(input_ids), **kwargs)

    model.model.__class__ = Changed
    return model


@pytest.mark.parametrize("change", [chosen, stored])
def test_a_token_may_be_looked_up_by_the_id_of_another(change: Any) -> None:
    model = looking_up(change)
    shape = trace(type(model), model.config, model.dtype).shape
    graph, recorded = find_graph(model, shape, MAX_LEN)
    assert not {PICTURE, SOUND} & set(recorded.input_ids.tolist())
    assert graph.looked_up is not None
    assert graph.looked_up.tolist() == [
        PADDING if one in (PICTURE, SOUND) else one for one in range(VOCAB_SIZE)
    ]
    tokens = (5, PICTURE, 9, SOUND, 31)
    with torch.inference_mode():
        expected = looking_up(change)(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    forward = make_forward(model, CONFIG, shape, "cpu")
    assert isinstance(forward, ProgramForward)
    new = NewSequence(0, tokens, len(tokens), SamplingParams(), 0, (), ())
    plan = StepPlan(1, (Row(0, 0, len(tokens), (0,), True, True),), new=(new,))
    logits = TorchRunner(forward, CONFIG, shape).logits(plan)
    torch.testing.assert_close(logits[0], expected, atol=1e-4, rtol=1e-4)


def test_tokens_that_are_never_served_change_nothing() -> None:
    model = looking_up(none_that_is_served)
    shape = trace(type(model), model.config, model.dtype).shape
    assert find_graph(model, shape, MAX_LEN)[0].looked_up is None


def test_ids_that_depend_on_other_tokens_are_not_read() -> None:
    model = looking_up(by_those_before)
    shape = trace(type(model), model.config, model.dtype).shape
    with pytest.raises(UnreadableError, match="Embedding"):
        find_graph(model, shape, MAX_LEN)
