"""The files of a checkpoint that llama.cpp gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, Qwen2Config, Qwen3Config

gguf = pytest.importorskip("gguf")

from benchmarks.peers.engines.llama_model import convert  # noqa: E402

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("config", [Qwen2Config(**SIZES), Qwen3Config(**SIZES, head_dim=16)])
def test_every_tensor_comes_over_with_its_numbers(config: PreTrainedConfig, tmp_path: Path) -> None:
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    convert(tmp_path, tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert len(reader.tensors) == len(list(model.parameters()))
    head_dim = reader.get_field(f"{config.model_type}.attention.key_length")
    assert (head_dim and head_dim.contents()) == getattr(config, "head_dim", None)
    (table,) = (tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    assert table.tensor_type == gguf.GGMLQuantizationType.BF16
    wanted = model.get_input_embeddings().weight.detach().view(torch.uint8)
    assert table.data.tobytes() == wanted.numpy().tobytes()
