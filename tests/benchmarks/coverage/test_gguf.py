"""A GGUF file, read again by its library."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from transformers import LlamaConfig

from benchmarks.coverage.gguf import as_stored, interleaved, write_gguf


def test_neighbours_turn_together() -> None:
    rows = torch.arange(8.0)[:, None].expand(8, 2)
    assert interleaved(rows, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_file_has_the_weights_as_they_are_left(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=5,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    generator = torch.Generator().manual_seed(3)
    weights = {
        "model.embed_tokens.weight": torch.randn(5, 64, generator=generator),
        "model.norm.weight": torch.randn(64, generator=generator),
        "model.layers.0.self_attn.k_proj.weight": torch.randn(32, 64, generator=generator),
    }
    path = tmp_path / "model.gguf"
    tokens = ["<pad>", "<s>", "</s>", "a", "b"]
    write_gguf(path, config, tokens, weights, "Q8_0", ends={"eos": 2}, more={"said": "so"})
    reader = gguf.GGUFReader(path)
    found = {
        one.name: torch.tensor(gguf.dequantize(one.data, one.tensor_type)) for one in reader.tensors
    }
    table, norm, keys = (as_stored(weight, "Q8_0") for weight in weights.values())
    assert torch.equal(norm, weights["model.norm.weight"])
    assert 0 < (table - weights["model.embed_tokens.weight"]).abs().max() < 0.02
    assert torch.equal(found["token_embd.weight"], table)
    assert torch.equal(found["output_norm.weight"], norm)
    assert torch.equal(found["blk.0.attn_k.weight"], interleaved(keys, 16))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert (fields["llama.attention.head_count_kv"], fields["said"]) == (2, "so")
    assert fields["tokenizer.ggml.token_type"] == [3, 3, 3, 1, 1]
