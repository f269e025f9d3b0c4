"""The loss by quantizing is measured during a load, and shown on the model's card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.api.client import ChatMessage, LoadRequest
from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError, InvalidRequestError, ModelError
from engine.batch.shape import ModelShape
from engine.model.catalog.registry import Registry
from engine.model.checks.loss import AT_LOAD, LossProbe, Sample, fixed_text
from engine.model.loading import loader
from engine.model.loading.loader import load_model
from engine.model.loading.losses import measure_losses
from engine.model.program.verify import MismatchError
from engine.model.running.forward import make_forward
from engine.model.tracing.trace import trace
from tests.support.checkpoints import save_checkpoint
from tests.support.encoding import Here
from tests.support.loading import SMALL, Recorded
from tests.support.native import kernels_or_skip
from tests.support.zoo import MAX_LEN, VOCAB_SIZE, tiny_model

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("encodes_here")

CONFIG = EngineConfig(
    num_blocks=40, max_model_len=MAX_LEN, max_num_seqs=3, max_num_batched_tokens=24
)
TEXTS = torch.randint(VOCAB_SIZE, (5, 33), generator=torch.Generator().manual_seed(1)).tolist()


def silent(detail: str, done: int = 0, total: int = 0) -> None:
    pass


class Words:
    """An encoder by which each word, and each message's role, is a token."""

    def __init__(self) -> None:
        self.asked: list[Sequence[ChatMessage]] = []

    def encode(self, messages: Sequence[ChatMessage], *_: object) -> list[int]:
        self.asked.append(messages)
        return [len(word) for one in messages for word in (one.role, *one.content.split())]


def shape_of(name: str) -> ModelShape:
    model = tiny_model(name)
    return trace(type(model), model.config, torch.float32).shape


@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_a_model_that_is_not_quantized_loses_nothing(name: str) -> None:
    model = tiny_model(name)
    probe = LossProbe(model, TEXTS)
    loss = probe.compare(make_forward(model, CONFIG, shape_of(name)), CONFIG, shape_of(name))
    assert (loss.tokens, loss.equal_best) == (5 * 33, 1.0)
    assert abs(loss.divergence) < 1e-6


def test_another_model_says_other_things() -> None:
    probe = LossProbe(tiny_model("llama"), TEXTS)
    other = tiny_model("llama")
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight *= 2
    loss = probe.compare(make_forward(other, CONFIG, shape_of("llama")), CONFIG, shape_of("llama"))
    own, got = (
        one(input_ids=torch.tensor(TEXTS), use_cache=False).logits.double().log_softmax(-1)
        for one in (tiny_model("llama"), copy_of(other))
    )
    same = (own.argmax(-1) == got.argmax(-1)).double().mean()
    assert loss.equal_best == pytest.approx(float(same), abs=0.007)
    divergence = (own.exp() * (own - got)).sum(-1).mean().detach()
    assert loss.divergence == pytest.approx(float(divergence), rel=1e-3)
    assert loss.equal_best < 0.9


def copy_of(changed: object) -> torch.nn.Module:
    again = tiny_model("llama")
    with torch.no_grad():
        again.model.layers[1].mlp.down_proj.weight *= 2
    return again


def test_the_text_is_the_same_each_time_and_has_its_size() -> None:
    first, second = Words(), Words()
    sample = Sample(3, 50)
    text = fixed_text(Here(first), sample)
    assert text == fixed_text(Here(second), sample)
    assert text is not None
    assert [len(row) for row in text] == [50, 50, 50]
    assert {one.role for one in first.asked[0]} == {"user", "assistant"}
    assert first.asked[0][-1].role == "user"


def test_a_template_that_does_not_take_it_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(Words):
        def encode(self, messages: Sequence[ChatMessage], *_: object) -> list[int]:
            raise InvalidRequestError("roles must alternate", "messages")

    assert fixed_text(Here(Refusing()), AT_LOAD) is None
    assert "what quantizing changes is not measured: roles must alternate" in caplog.text


@pytest.mark.parametrize("width", ["int8", "int4"])
def test_a_loaded_model_says_what_it_was_quantized_to(tmp_path: Path, width: str) -> None:
    save_checkpoint(tmp_path, "llama")
    plain = load_model(LoadRequest(str(tmp_path), **SMALL), silent)
    progress = Recorded()
    loaded = load_model(LoadRequest(str(tmp_path), quantize=width, **SMALL), progress)
    assert (plain.card.quantize, plain.card.loss) == ("none", None)
    assert loaded.card.quantize == loaded.config.quantize == width
    assert loaded.key != plain.key
    assert loaded.card.weight_bytes == loaded.shape.weight_bytes < plain.card.weight_bytes
    assert loaded.card.loss is not None
    assert loaded.card.loss.tokens == AT_LOAD.tokens
    assert 0.1 < loaded.card.loss.equal_best <= 1
    assert loaded.card.loss.divergence > 0
    assert f"quantizing to {width}" in [detail for detail, _, _ in progress.calls]
    plain.close()
    loaded.close()


def test_the_built_in_model_loses_no_more_than_it_may() -> None:
    losses = measure_losses(Registry.read().find("builtin"), LoadRequest("builtin"), silent)
    assert list(losses) == ["int8", "int4"]
    assert losses["int8"].tokens == losses["int4"].tokens == 2048
    assert losses["int8"].equal_best >= 0.985
    assert losses["int4"].equal_best >= 0.89
    assert losses["int8"].divergence < 0.01 < losses["int4"].divergence < 0.1


def test_what_is_asked_for_comes_before_the_registry(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "m", "llama")
    models = tmp_path / "models.toml"
    models.write_text('[m]\nsource = "./m"\nquantize = "int4"\n')
    for asked, expected in ((None, "int4"), ("int8", "int8"), ("none", "none")):
        request = LoadRequest("m", models_file=str(models), quantize=asked, **SMALL)
        loaded = load_model(request, silent)
        assert loaded.card.quantize == expected
        loaded.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantize": "int2"}, r"quantize is 'int2'; allowed are none, int8, int4"),
        ({"quantize": "int8", "dtype": "float16"}, r"quantize is 'int8'; allowed is 'none' here"),
    ],
)
def test_what_cannot_be_is_refused_before_weights_are_read(
    tmp_path: Path, changes: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, "llama")
    monkeypatch.setattr(loader, "load_weights", None)
    with pytest.raises(InvalidConfigError, match=message) as caught:
        load_model(LoadRequest(str(tmp_path), **{**SMALL, **changes}), silent)
    assert caught.value.param == "quantize"


def test_a_kernel_that_differs_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch alone would compute it in more memory than was planned."""

    def wrong(*args: object, **kwargs: object) -> object:
        raise MismatchError("the kernel for linear differs from the model by 0.3")

    save_checkpoint(tmp_path, "llama")
    monkeypatch.setattr(loader, "checked_forward", wrong)
    with pytest.raises(ModelError, match="cannot be quantized to int8: the kernel for linear"):
        load_model(LoadRequest(str(tmp_path), quantize="int8", **SMALL), silent)


def test_memory_is_planned_for_quantized_weights(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "llama", hidden_size=256, intermediate_size=512)
    entry = Registry.read().find(str(tmp_path))
    plain, eight, four = (
        loader.examine_entry(entry, tmp_path, LoadRequest(str(tmp_path), quantize=width))
        for width in ("none", "int8", "int4")
    )
    assert plain.served_bytes == plain.weight_bytes == eight.weight_bytes
    assert four.served_bytes < eight.served_bytes < plain.served_bytes
    loaded = load_model(LoadRequest(str(tmp_path), quantize="int4", **SMALL), silent)
    # Whole panels and groups, and what is too small to be quantized, are not in the estimate.
    assert loaded.shape.weight_bytes == pytest.approx(four.served_bytes, rel=0.15)
    assert replace(loaded.shape, saved_bytes=0).weight_bytes == plain.weight_bytes
    loaded.close()
