"""Each form of quantized checkpoints, at each level of instructions and in each type."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import native
from engine.model.attention.cpu_backend import CpuAttention
from tests.engine.model.files.quantized.test_formats import PROMPTS
from tests.engine.model.files.quantized.test_packed import logits
from tests.support.loading import load, weights_of
from tests.support.native import LEVELS, at_level, kernels_or_skip
from tests.support.quantized import FORMATS, save_quantized

kernels_or_skip()
DTYPES = ("bfloat16", "float32")
# Those that stand for other numbers than another one does. Each is read as its library reads it:
# see test_formats.py.
NAMES = sorted(
    {*FORMATS}
    - {"auto-round", "auto-round of its own", "auto-round as awq", "fp8 with cut blocks"}
    - {"modelopt fp8", "modelopt fp8 of outputs", "bitsandbytes nf4 nested"}
)
# The levels between are for the long tests.
BEST_AND_LEAST = [
    pytest.param(level, marks=[pytest.mark.needs(level)] + [pytest.mark.long] * is_between)
    for level in native.LEVELS
    for is_between in [level in LEVELS[1:-1]]
]
pytestmark = pytest.mark.usefixtures("encodes_here")


@functools.cache
def saved(format_name: str, is_tied: bool, base: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=base))
    of_type: dict[str, Any] = {"num_hidden_layers": 1}
    name = "llama"
    if format_name == "mxfp4":
        name, of_type["layer_types"] = "gpt_oss", ["full_attention"]
    save_quantized(folder, format_name, name, tie_word_embeddings=is_tied, **of_type)
    return folder


@functools.cache
def expected(folder: Path) -> Tensor:
    """The logits after the prompts of the numbers that a checkpoint stands for, by the model's own
    modules in float32: [2, vocab_size].
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CpuAttention, "why_not", lambda shape: "the test asks for modules")
        loaded = load(folder)
    model = weights_of(loaded)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        own = [model(torch.tensor([one]), use_cache=False).logits[0, -1] for one in PROMPTS]
    loaded.close()
    return torch.stack(own).float()


@pytest.mark.parametrize("format_name", NAMES)
@pytest.mark.parametrize("level", BEST_AND_LEAST)
def test_a_format_is_computed_by_our_kernels(
    format_name: str, level: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """All pairs of a format, a level, a type and a kind of head, but not all fours of them: the
    kernels of each level compute all codings in both types in tests/engine/native/test_codes.py.
    """
    at = NAMES.index(format_name)
    dtype = DTYPES[(at // 2 + (level == LEVELS[-1])) % 2]
    folder = saved(format_name, at % 2 == 0, tmp_path_factory.getbasetemp())
    with at_level(level):
        loaded = load(folder, dtype=dtype)
        assert (loaded.card.off_path, loaded.card.off_kernels) == ((), "")
        assert (loaded.card.dtype, loaded.card.attention) == (dtype, f"cpu ({level})")
        got = logits(loaded)
        loaded.close()
    wanted = expected(folder)
    # A group's scale is rounded to float16, and activations to 15 bits; or all to bfloat16, or
    # weights to 8 bits.
    most = 0.01 if dtype == "float32" and not loaded.card.rounded_to else 0.12
    assert float(((got - wanted).norm(dim=1) / wanted.norm(dim=1)).max()) < most
