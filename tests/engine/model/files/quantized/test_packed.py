"""Weights that are quantized on disk and stay packed, by the kernels that multiply codes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard
from engine.batch.plan import NewSequence, Row, StepPlan
from engine.model.checks import coding, gate
from engine.model.checks.loss import AT_LOAD
from engine.model.files.quantized import gguf as gguf_file
from engine.model.program import forward
from engine.model.program.coded import Coded
from engine.model.program.quantize import Recognized, recognize
from engine.model.program.verify import MismatchError
from engine.native import LEVELS
from engine.serving.loading import LoadedModel
from tests.engine.model.files.quantized.test_formats import PROMPTS
from tests.engine.native.test_blocks import random_blocks
from tests.support.checkpoints import save_checkpoint
from tests.support.gguf_files import save_gguf
from tests.support.loading import load
from tests.support.native import EACH_LEVEL, at_level, kernels_or_skip
from tests.support.quantized import save_quantized

native = kernels_or_skip()
pytestmark = pytest.mark.usefixtures("encodes_here")

# With how many bits a format's weights stay packed. FP4 has 13 numbers, on a lattice of 25.
BITS = {
    **dict.fromkeys(("compressed int4", "compressed int4 asymmetric", "awq", "gptq"), 4),
    **dict.fromkeys(("gptq symmetric", "auto-round", "auto-round of its own"), 4),
    **{"auto-round as awq": 4, "mxfp4": 5, "compressed nvfp4": 6, "modelopt nvfp4": 6},
    **dict.fromkeys(("compressed int8", "compressed int8 packed", "compressed w8a8"), 8),
    **dict.fromkeys(("gptq 8 bits symmetric", "bitsandbytes int8"), 8),
}
# FP8 and NF4 lie on no lattice; inputs in the order of activations share no scales with their
# neighbours; zeros of 8 bits are lost when a number is rounded.
ROUNDED = (
    *("fp8", "bitsandbytes nf4", "gptq in order of activations", "gptq 8 bits"),
    *("compressed float8", "modelopt nvfp4 awq"),
)


def loaded_with(
    monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any
) -> tuple[LoadedModel, Coded | None, Any]:
    """A loaded model, what was recognized, and a copy of the model before it became a program."""
    seen: list[Any] = []

    def watched(model: Any, config: Any, shape: Any, coded: Coded, origins: Any) -> Recognized:
        found = recognize(model, config, shape, coded, origins)
        # Where torch has no bfloat16, a model is loaded in float32, and has numbers only in use.
        own = type(model)(copy.deepcopy(model.config)).to(model.dtype).eval()
        with coded.compact.unpacked(model.parameters()):
            own.load_state_dict(model.state_dict())
        seen.extend((found.coded, own))
        return found

    monkeypatch.setattr(coding, "recognize", watched)
    return load(folder, **options), *seen


def logits(loaded: LoadedModel) -> Tensor:
    """Those after the first prompts, [2, vocab_size]."""
    new, rows, blocks = [], [], 0
    for seq, prompt in enumerate(PROMPTS):
        count = -(-len(prompt) // 16)
        new.append(NewSequence(seq, tuple(prompt), len(prompt), SamplingParams(), 0, (), ()))
        rows.append(Row(seq, 0, len(prompt), tuple(range(blocks, blocks + count)), True, True))
        blocks += count
    runner: Any = loaded.runner
    result: Tensor = runner.logits(StepPlan(1, tuple(rows), new=tuple(new)))
    return result.clone()


def check(loaded: LoadedModel, model: Any) -> None:
    """The program computes what the unpacked weights do, but for the rounding of activations."""
    model.set_attn_implementation("eager")
    found = logits(loaded)
    for got, prompt in zip(found, PROMPTS, strict=True):
        with torch.inference_mode():
            own = model(torch.tensor([prompt]), use_cache=False).logits[0, -1].float()
        assert float((got - own).norm() / own.norm()) < 0.12
    loaded.close()


def check_card(card: ModelCard) -> None:
    """The card says what the activations' rounding changes, which is little."""
    assert (card.quantize, bool(card.packed_as)) == ("none", True)
    assert card.loss is not None
    assert card.loss.tokens == AT_LOAD.tokens
    assert 0 < card.loss.divergence < 0.02


@pytest.mark.parametrize(
    ("format_name", "dtype"),
    [
        *((one, "float32") for one in BITS),
        *((one, "bfloat16") for one in ("compressed int4", "awq")),
    ],
)
def test_a_format_stays_packed(
    tmp_path: Path, format_name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_quantized(tmp_path, format_name, "gpt_oss" if format_name == "mxfp4" else "llama")
    loaded, coded, model = loaded_with(monkeypatch, tmp_path, dtype=dtype)
    assert coded is not None
    assert loaded.shape.saved_bytes == coded.saved_bytes > 0
    check_card(loaded.card)
    ways = {scales.how.bits for _, scales in coded._matrices.values()}
    assert ways == {BITS[format_name]}
    check(loaded, model)


@pytest.mark.parametrize(
    ("name", "format_name"), [*(("llama", one) for one in ROUNDED), ("qwen3_moe", "fp8")]
)
def test_what_no_kernel_multiplies_is_rounded_to_8_bits(
    tmp_path: Path, name: str, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it takes 8.5 bits a weight, and not those of a float; the card says what that changed.
    Experts are layers of their own in the checkpoint, and one tensor in the model.
    """
    of_type = {"moe_intermediate_size": 32, "head_dim": 16} if name == "qwen3_moe" else {}
    save_quantized(tmp_path, format_name, name, **of_type)
    loaded, _, model = loaded_with(monkeypatch, tmp_path)
    card = loaded.card
    assert (bool(card.packed_as), card.rounded_to, card.off_path) == (True, "int8", ())
    assert card.loss is not None
    assert 0 < card.loss.divergence < 0.02
    stored = [one for one in model.parameters() if one.ndim > 1][1:-1]  # without both embeddings
    assert loaded.shape.saved_bytes > 0.7 * sum(one.numel() * 4 for one in stored)
    check(loaded, model)


def test_floats_beside_codes_stay_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that was left out of it is not rounded."""
    save_quantized(tmp_path, "fp8", "llama")
    seen: list[Recognized] = []

    def watched(*args: Any) -> Recognized:
        seen.append(recognize(*args))
        return seen[-1]

    monkeypatch.setattr(coding, "recognize", watched)
    loaded = load(tmp_path)
    (found,) = seen
    assert found.coder is not None
    ways = [scales.way for _, scales in found.coder.coded._matrices.values()]
    assert ways == [(8, 32, False)] * 21  # seven of each of three layers
    loaded.close()


BLOCKS_OF_FILES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


@pytest.mark.parametrize("kind", BLOCKS_OF_FILES)
@pytest.mark.parametrize("level", EACH_LEVEL)
def test_blocks_of_a_gguf_file_are_packed_as_they_are(
    tmp_path: Path, kind: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No weight is looked at as numbers: blocks go from the file to the kernels, at every level and
    in every type, and no operation is left to torch. Of types and kinds of head each has both.
    """
    monkeypatch.setattr(coding, "recognize", None)
    file = tmp_path / "model.gguf"
    at, of_level = BLOCKS_OF_FILES.index(kind), LEVELS.index(level)
    dtype = ("bfloat16", "float32")[(at + of_level) % 2]
    save_gguf(file, "llama", kind, is_tied=(at + of_level // 2) % 2 == 1)
    with at_level(level):
        loaded = load(file, dtype=dtype)
        assert (loaded.card.off_path, loaded.card.off_kernels) == ((), "")
        check_packed(loaded, file, kind)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, "bfloat16") for kind in ("IQ1_S", "IQ2_XXS", "IQ2_S", "IQ3_S")),
        *((kind, "float32") for kind in ("IQ1_M", "IQ2_XS", "IQ3_XXS", "TQ1_0")),
    ],
)
def test_blocks_of_the_fewest_bits_are_packed_as_they_are(
    tmp_path: Path, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No library writes most of these, so their blocks are random."""

    def quantize(values: Any, stored: Any) -> Any:
        most = 0.02
        for _ in range(2):  # the second time so that the numbers have a size that models have
            blocks = random_blocks(stored.name, *values.shape, most).numpy()
            most *= 0.08 / float(gguf.dequantize(blocks, stored).std())
        return blocks

    monkeypatch.setattr(gguf, "quantize", quantize)
    monkeypatch.setattr(coding, "recognize", None)
    file = tmp_path / "model.gguf"
    save_gguf(file, "llama", kind, sides=256)
    loaded = load(file, dtype=dtype)
    assert (loaded.card.off_path, loaded.card.off_kernels) == ((), "")
    check_packed(loaded, file, kind)


def check_packed(loaded: LoadedModel, file: Path, kind: str) -> None:
    """A model whose blocks stay packed computes what transformers makes of the file."""
    assert loaded.shape.saved_bytes > 0
    assert (loaded.card.packed_as, loaded.card.attention[:3]) == (f"GGUF {kind}", "cpu")
    check_card(loaded.card)
    own: Any = AutoModelForCausalLM
    check(loaded, own.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32))


def test_numbers_of_a_gguf_file_are_packed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coding, "recognize", None)
    file = tmp_path / "model.gguf"
    save_gguf(file, "llama", "F16")
    loaded = load(file)
    assert (loaded.shape.saved_bytes, loaded.card.packed_as) == (0, "")
    own: Any = AutoModelForCausalLM
    check(loaded, own.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32))


@pytest.mark.parametrize("source", ["folder", "F16", "Q4_1"])
def test_a_host_without_bfloat16_in_torch_serves_it_by_kernels(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own modules compute in float32 while it is loaded, and the kernels in bfloat16
    then.
    """
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    if source == "folder":
        path = tmp_path
        save_checkpoint(path, dtype=torch.bfloat16)
        own: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    else:
        path = tmp_path / "model.gguf"
        save_gguf(path, "llama", source)
        known: Any = AutoModelForCausalLM
        own = known.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    loaded = load(path, dtype=None)
    assert (loaded.card.dtype, loaded.card.attention[:3]) == ("bfloat16", "cpu")
    check(loaded, own)


def test_a_host_without_bfloat16_in_torch_serves_float32_without_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})

    def differing(*args: Any) -> float:
        raise MismatchError("a kernel differs")

    monkeypatch.setattr(forward, "verify", differing)
    monkeypatch.setattr(gate, "_check_class", lambda *args: None)
    file = tmp_path / "model.gguf"
    save_gguf(file, "llama", "Q4_1")
    loaded = load(file)
    assert (loaded.card.dtype, loaded.card.attention) == ("float32", "torch")
    own: Any = AutoModelForCausalLM
    check(loaded, own.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32))


# Where a block of a type has its scales in float16, and how long it is.
BLOCKS = {"Q4_K": ((0, 2), 144), "Q6_K": ((208,), 210), "Q8_0": ((0,), 34), "Q5_0": ((0,), 22)}
WAYS = {
    "Q4_K": (4, 32, True),
    "Q6_K": (8, 16, False),
    "Q8_0": (8, 32, False),
    "Q5_0": (8, 32, False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", BLOCKS)
def test_all_blocks_of_a_type_are_recognized(kind: str, dtype: torch.dtype) -> None:
    """No library writes those with a K, so their blocks are random."""
    places, size = BLOCKS[kind]
    random = np.random.default_rng(1)
    blocks = random.integers(0, 256, (2000, size), dtype=np.uint8)
    for place in places:
        scales = (random.random((len(blocks), 1)) / 500 + 1e-4).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8)
    values = gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind])
    weight = torch.from_numpy(values).reshape(200, -1).to(dtype)
    bits, group, has_zeros = WAYS[kind]
    how = native.Quantization(bits, group, has_zeros)
    scales = torch.empty(200, weight.shape[1] // group, dtype=torch.float16)
    zeros = torch.empty_like(scales) if has_zeros else None
    assert native.recognize(weight, scales, zeros, how)
    packed = torch.empty(native.coded_size(*weight.shape, how), dtype=torch.uint8)
    native.pack_coded(weight, scales, zeros, how, packed)
    meant = torch.empty(weight.shape)
    native.embed(meant, torch.arange(200), packed, 200, True, how)
    # A number may have been rounded by as much as the greatest, and so may its fellow.
    greatest = weight.float().abs().view(200, -1, group).amax(-1).repeat_interleave(group, 1)
    assert ((meant - weight.float()).abs() <= greatest * 3.6 * 2.0**-8).all()
    assert (meant - weight.float()).norm() <= weight.float().norm() * 2.0**-8


@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q8_0"])
def test_experts_of_a_gguf_file_are_packed_as_they_are(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gates and ups are two tensors in the file, and one in the model."""
    file = tmp_path / "model.gguf"
    save_gguf(file, "qwen3_moe", kind)
    with monkeypatch.context() as patched:
        patched.setattr(gguf_file, "_order_of_rows", lambda *args: None)
        floats = load(file)
    expected = logits(floats)
    floats.close()
    monkeypatch.setattr(coding, "recognize", None)
    loaded = load(file)
    assert (loaded.card.off_path, loaded.card.packed_as) == ((), f"GGUF {kind}")
    assert loaded.shape.saved_bytes > 0
    assert float((logits(loaded) - expected).norm() / expected.norm()) < 0.01
    loaded.close()
