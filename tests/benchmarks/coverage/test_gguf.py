"""A GGUF file, read again as its description has it."""

from __future__ import annotations

import struct
from pathlib import Path

import torch

from benchmarks.coverage.gguf import interleaved, write_gguf
from benchmarks.coverage.packing import q8_blocks

CONFIG = {
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 5,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0},
}


def test_neighbours_turn_together() -> None:
    rows = torch.arange(8.0)[:, None].expand(8, 2)
    assert interleaved(rows, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_tensors_lie_where_the_header_says(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    matrix, norm = torch.randn(5, 64, generator=generator), torch.randn(64, generator=generator)
    weights = {"model.embed_tokens.weight": matrix, "model.norm.weight": norm}
    path = tmp_path / "model.gguf"
    write_gguf(path, CONFIG, ["<pad>", "<s>", "</s>", "a", "b"], weights)
    file = path.read_bytes()
    assert struct.unpack("<4sIQ", file[:16]) == (b"GGUF", 3, 2)

    at = file.index(b"token_embd.weight") + len(b"token_embd.weight")
    assert struct.unpack("<IQQIQ", file[at : at + 32]) == (2, 64, 5, 8, 0)
    at = file.index(b"output_norm.weight") + len(b"output_norm.weight")
    axes, side, kind, offset = struct.unpack("<IQIQ", file[at : at + 24])
    assert (axes, side, kind) == (1, 64, 0)
    start = -(-(at + 24) // 32) * 32
    assert offset % 32 == 0
    assert torch.frombuffer(bytearray(file[start + offset :][:256]), dtype=torch.float32).equal(
        norm
    )

    blocks = torch.frombuffer(bytearray(file[start : start + 5 * 2 * 34]), dtype=torch.uint8)
    blocks = blocks.view(10, 34)
    scales, values = blocks[:, :2].view(torch.float16).float(), blocks[:, 2:].view(torch.int8)
    assert torch.equal((scales * values).view(5, 64), q8_blocks(matrix)[1])
