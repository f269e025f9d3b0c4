"""The small chat model that comes with the package, and the text and script that made it."""

from __future__ import annotations

from pathlib import Path

MODEL_DIR: Path = Path(__file__).resolve().parent / "model"
"""Folder of the built-in checkpoint in Hugging Face layout (config, safetensors, tokenizer)."""
