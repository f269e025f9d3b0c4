"""Quantized models against what their codes mean, computed by their own eager attention.

A program rounds the inputs of its products to 8 bits, a scale for each group, and the small models
of the zoo make much of little: so their logits differ by some hundredths, where quantizing to 4
bits changes them by tenths.
"""

from __future__ import annotations

import gc
import statistics
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.api.errors import InvalidConfigError, ModelError
from engine.batch.shape import ModelShape
from engine.model.program.coded import Coded
from engine.model.program.forward import ProgramForward
from engine.model.program.operations.linear import Gated
from engine.model.program.pack import Packer, Product
from engine.model.program.quantize import quantize
from engine.model.program.verify import MismatchError
from engine.model.running.forward import make_forward
from engine.model.running.runner import TorchRunner
from engine.model.tracing.trace import trace
from tests.engine.model.test_parity import CONFIG, NUM_OUTPUTS, PROMPT_LENGTHS, logits_by
from tests.support.native import kernels_or_skip
from tests.support.zoo import (
    BY_MODULES,
    LATENT,
    MIXED,
    OTHERS,
    SERVED,
    STATEFUL,
    VOCAB_SIZE,
    tiny_model,
)

native = kernels_or_skip()
WIDTHS = ("int8", "int4")
REFUSED = tuple(LATENT)
# Mamba 1 is run by torch between products that are quantized. The dynamic RoPE of one is frozen
# when it is loaded, which does not matter here.
NAMES = sorted(
    {*SERVED, *OTHERS, *STATEFUL, *MIXED, *BY_MODULES} - {*REFUSED, "llama_dynamic_rope"}
)


def shape_of(model: PreTrainedModel) -> ModelShape:
    return trace(type(model), model.config, model.dtype).shape


def texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    lengths = (length + NUM_OUTPUTS for length in PROMPT_LENGTHS)
    return [
        [int(i) for i in torch.randint(VOCAB_SIZE, (length,), generator=generator)]
        for length in lengths
    ]


def own_logits(model: PreTrainedModel) -> list[Tensor]:
    """The model's own logits of each output position."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return [
            model(torch.tensor([text]), use_cache=False).logits[0, length - 1 : -1].float()
            for text, length in zip(texts(), PROMPT_LENGTHS, strict=True)
        ]


def quantized(name: str, width: str, dtype: torch.dtype) -> tuple[PreTrainedModel, Coded]:
    model = tiny_model(name, dtype=dtype)
    config = replace(CONFIG, quantize=width, dtype=str(dtype).removeprefix("torch."))
    coded = quantize(model, config, shape_of(model))
    assert coded is not None
    return model, coded


def program_logits(model: PreTrainedModel, coded: Coded) -> list[Tensor]:
    config = replace(CONFIG, dtype=str(model.dtype).removeprefix("torch."))
    shape = shape_of(model)
    forward = make_forward(model, config, shape, "cpu", coded)
    assert isinstance(forward, ProgramForward)
    return logits_by(TorchRunner(forward, config, shape), texts())


def median_difference(got: list[Tensor], expected: list[Tensor]) -> float:
    return statistics.median(
        float((one - wanted).norm() / wanted.norm())
        for rows, own in zip(got, expected, strict=True)
        for one, wanted in zip(rows, own, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "width"),
    [(name, width) for name in NAMES for width in WIDTHS if width == "int4" or name in SERVED],
)
def test_a_program_computes_what_the_codes_mean(name: str, width: str) -> None:
    plain = own_logits(tiny_model(name))
    model, coded = quantized(name, width, torch.float32)
    expected = own_logits(model)
    lost = median_difference(expected, plain)
    found = median_difference(program_logits(model, coded), expected)
    assert 0 < lost < (0.12 if width == "int8" else 1)
    assert found < 0.1
    if width == "int4":
        assert found < lost / 2
    assert coded.saved_bytes > 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gpt2"])
def test_so_it_does_in_bfloat16(name: str, width: str) -> None:
    model, coded = quantized(name, width, torch.bfloat16)
    expected = own_logits(model)
    assert median_difference(program_logits(model, coded), expected) < 0.15


def test_a_tied_head_and_its_embeddings_stay_one_table() -> None:
    model = tiny_model("gemma2", tie_word_embeddings=True)
    embeddings = model.get_input_embeddings().weight
    assert embeddings is model.get_output_embeddings().weight
    before = embeddings.clone()
    coded = quantize(model, replace(CONFIG, quantize="int4"), shape_of(model))
    assert coded is not None
    found = coded.of(embeddings)
    assert found is not None
    assert found.how.bits == 8  # the head is kept wider than the layers
    assert not torch.equal(embeddings, before)
    expected = own_logits(model)
    assert median_difference(program_logits(model, coded), expected) < 0.1
    assert embeddings.numel() == 0  # it was let go


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_kernel_would_multiply_is_refused(name: str) -> None:
    model = tiny_model(name)
    shape = shape_of(model)
    with pytest.raises(ModelError, match=r"cannot be quantized to int8: .*module by module"):
        quantize(model, replace(CONFIG, quantize="int8"), shape)


def test_a_device_without_our_kernels_is_refused() -> None:
    model = tiny_model("llama")
    shape = shape_of(model)
    with pytest.raises(InvalidConfigError, match="allowed is 'none' here") as caught:
        quantize(model, replace(CONFIG, quantize="int4", device="cuda:0"), shape)
    assert caught.value.param == "quantize"


def test_a_program_lets_go_of_the_weights_that_it_packed() -> None:
    model = tiny_model("llama")
    weight = model.model.layers[0].mlp.down_proj.weight
    array = weight.detach().numpy().copy()
    gone: list[bool] = []
    weakref.finalize(array, gone.append, True)
    weight.data = torch.from_numpy(array)
    del array
    coded = quantize(model, replace(CONFIG, quantize="int8"), shape_of(model))
    assert coded is not None
    gc.collect()
    assert not gone
    forward = make_forward(model, CONFIG, shape_of(model), "cpu", coded)
    gc.collect()
    assert gone  # while both what was made of it and what knows of it are there
    assert isinstance(forward, ProgramForward)


def test_unasked_nothing_is_quantized() -> None:
    model = tiny_model("llama")
    before = [parameter.clone() for parameter in model.parameters()]
    assert quantize(model, CONFIG, shape_of(model)) is None
    assert all(map(torch.equal, before, model.parameters()))


def test_wrong_codes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = Gated.pack

    def wrong(self: Gated, packer: Packer) -> tuple[Product, ...]:
        products = packed(self, packer)
        products[0].weight[::5] ^= 0x55
        return products

    monkeypatch.setattr(Gated, "pack", wrong)
    model, coded = quantized("llama", "int4", torch.float32)
    with pytest.raises(MismatchError, match="the kernel for gated differs"):
        program_logits(model, coded)
