"""Rows: what the table has a line for, and the models that matter most, as they lie on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.coverage.formats import FORMATS, FP8_BLOCKS, MXFP4, Format, quantized_as
from benchmarks.coverage.texts import TEXTS
from benchmarks.coverage.wrappers import WRAPPERS


class Kind(StrEnum):
    """The kind of a row: a type of text model, one with towers, a form of checkpoints, or a type in
    the form that its checkpoints have."""

    TEXT = "text"
    WRAPPER = "wrapper"
    FORMAT = "format"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Row:
    kind: Kind
    name: str


_ON_DISK = {
    "deepseek_v3 in fp8-block": quantized_as("deepseek_v3", FP8_BLOCKS),
    "minimax_m2 in fp8-block": quantized_as("minimax_m2", FP8_BLOCKS),
}

NAMES: Mapping[Kind, Sequence[str]] = {
    Kind.TEXT: tuple(TEXTS),
    Kind.WRAPPER: tuple(WRAPPERS),
    Kind.FORMAT: tuple(FORMATS),
    Kind.DISK: tuple(_ON_DISK),
}


def rows(kinds: Sequence[Kind]) -> list[Row]:
    """The rows of some kinds, in the table's order."""
    return [Row(kind, name) for kind in kinds for name in NAMES[kind]]


def format_of(row: Row) -> Format:
    """The form of a row of the kinds `format` and `disk`."""
    return (FORMATS | _ON_DISK)[row.name]


def _texts(*names: str) -> tuple[Row, ...]:
    return tuple(Row(Kind.TEXT, name) for name in names)


def _wrappers(*names: str) -> tuple[Row, ...]:
    return tuple(Row(Kind.WRAPPER, name) for name in names)


MODELS: Mapping[str, tuple[Row, ...]] = {
    "Qwen3.5, Qwen3.6 dense": _wrappers("qwen3_5"),
    "Qwen3.5, Qwen3.6 MoE": _wrappers("qwen3_5_moe"),
    "Qwen3 dense": _texts("qwen3"),
    "Gemma 4": _wrappers("gemma4"),
    "Gemma 4 12B": _wrappers("gemma4_unified"),
    "gpt-oss": (Row(Kind.FORMAT, MXFP4),),
    "Llama 3.x, R1 distills": _texts("llama", "llama@llama3-rope"),
    "Qwen3-VL": _wrappers("qwen3_vl", "qwen3_vl_moe"),
    "Qwen3-30B-A3B, Qwen3-Coder": _texts("qwen3_moe"),
    "Qwen2.5": _texts("qwen2"),
    "GLM-4.7-Flash": _texts("glm4_moe_lite"),
    "Qwen3-Next, Qwen3-Coder-Next": _texts("qwen3_next"),
    "Nemotron 3": _texts("nemotron_h"),
    "Gemma 3 from 4B": _wrappers("gemma3"),
    "Mistral Small 3, Ministral 3": _wrappers("mistral3"),
    "Mistral 7B, Nemo": _texts("mistral"),
    "MiniMax M2": (Row(Kind.DISK, "minimax_m2 in fp8-block"),),
    "GLM-4.5 to 4.7": _texts("glm4_moe"),
    "GLM-5": (*_texts("glm_moe_dsa"), *_wrappers("glm5_next")),
    "DeepSeek V3, R1, V4": (
        Row(Kind.DISK, "deepseek_v3 in fp8-block"),
        *_texts("deepseek_v4"),
    ),
    "Phi-4": _texts("phi3"),
    "LFM2, LFM3": _texts("lfm2", "lfm3"),
    "Granite 4": _texts("granitemoehybrid", "granitemoehybrid@attention-only"),
    "Kimi K2.5, K2.6": _wrappers("kimi_k25"),
    "SmolLM3, OLMo 3": _texts("smollm3", "olmo3"),
}
"""The 25 that people run most, and the rows that must all be served for one of them."""
