"""Encoders of a test's tokenizer and template, in this process and in others."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerFast

from engine.text.encoder import ChatEncoder
from engine.text.job import JOB_SECONDS, Job
from engine.text.pool import EncoderPool
from engine.text.vocabulary import Tokenizer

T = TypeVar("T")

KEY = "model@revision:float32"
CHATML = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


def encoder_of(
    tokenizer: PreTrainedTokenizerFast, template: str | None
) -> tuple[ChatEncoder, PreTrainedTokenizerFast]:
    """An encoder, and its copy of the tokenizer, which has this template."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = template
    return ChatEncoder(tokenizer, KEY), tokenizer


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def text_of(tokenizer: PreTrainedTokenizerFast, token_ids: list[int]) -> str:
    return tokenizer.decode(
        token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


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
