"""Processes that encode by a tokenizer of a test."""

from __future__ import annotations

from typing import Any, TypeVar

from engine.text.job import JOB_SECONDS, Job
from engine.text.pool import EncoderPool
from engine.text.vocabulary import Tokenizer

T = TypeVar("T")


class Here:
    """Runs jobs in this process.

    Args:
        encoder: a `ChatEncoder`, or an object with those of its methods that a test needs.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def run(self, job: Job[T]) -> T:
        return job.run(self._encoder)


def start_pool(tokenizer: Tokenizer, model_key: str, seconds: float = JOB_SECONDS) -> EncoderPool:
    """A pool that has begun; its first job waits until it is ready."""
    pool = EncoderPool()
    pool.begin(tokenizer, model_key, seconds)
    return pool
