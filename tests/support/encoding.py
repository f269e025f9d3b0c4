"""Processes that encode by a tokenizer of a test."""

from __future__ import annotations

from engine.text.job import JOB_SECONDS
from engine.text.pool import EncoderPool
from engine.text.vocabulary import Tokenizer


def start_pool(tokenizer: Tokenizer, model_key: str, seconds: float = JOB_SECONDS) -> EncoderPool:
    """A pool that has begun; its first job waits until it is ready."""
    pool = EncoderPool()
    pool.begin(tokenizer, model_key, seconds)
    return pool
