"""A model with large scores of attention, where torch has no bfloat16 and loads it in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import save_checkpoint, tiny_tokenizer
from tests.support.loading import load
from tests.support.native import kernels_or_skip

pytestmark = pytest.mark.usefixtures("encodes_here")


def test_its_rounded_keys_are_no_fault_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Biases of keys in the hundreds (Qwen2.5) leave little of the tokens' own keys in bfloat16, as
    every cache of this type has them, so that attention weighs otherwise than in float32.
    """
    kernels_or_skip()
    monkeypatch.setattr("engine.model.machine.device._torch_has_bfloat16", lambda: False)
    model = save_checkpoint(tmp_path, "qwen2", dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, one in model.named_parameters():
            if name.endswith("k_proj.bias"):
                one.copy_(200 * torch.randn(one.shape, generator=generator))
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype="bfloat16")
    assert "differs from the model" not in caplog.text
    assert (loaded.card.dtype, loaded.card.off_path, loaded.card.off_kernels) == (
        "bfloat16",
        (),
        "",
    )
    loaded.close()
