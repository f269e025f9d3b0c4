"""Stop texts that are names of special tokens end a reply where the token stands."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from transformers import PreTrainedTokenizerFast

from engine.api.client import ChatMessage
from tests.engine.text.test_thinking import PLAIN, Model


class Case(NamedTuple):
    report: str
    reply: str  # behind it comes <|im_end|>, at which the engine stops
    stop: tuple[str, ...]
    text: str
    stopped_by: str | None


CASES = {
    "the end itself": Case(
        "LostRuins/koboldcpp#791", "the mat.", ("<|im_end|>",), "the mat.", "<|im_end|>"
    ),
    "another special token": Case(
        "vllm-project/vllm#2123",
        "the cat<|eot_id|>the mat",
        ("<|eot_id|>",),
        "the cat",
        "<|eot_id|>",
    ),
    "a name and the text behind it": Case(
        "LostRuins/koboldcpp#812",
        "the cat<|im_start|>user is not",
        ("<|im_start|>user",),
        "the cat",
        "<|im_start|>user",
    ),
    "text and the name behind it": Case(
        "", "the cat is<|eot_id|> on", (" is<|eot_id|>",), "the cat", " is<|eot_id|>"
    ),
    "a part of a name": Case("", "the cat<|eot_id|>is", ("|eot_", "<", ">is"), "the catis", None),
    "a name that goes on otherwise": Case(
        "", "the cat<|im_start|>is", ("<|im_start|>user",), "the catis", None
    ),
    "the name of another one": Case("", "the cat<|eot_id|>is", ("</s>",), "the catis", None),
    "the name as text": Case("", "the <| eot_id |> is", ("<| eot_id |>",), "the ", "<| eot_id |>"),
    "text before the end": Case("", "the cat is", ("is", "<|im_end|>"), "the cat ", "is"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_special_token_is_matched_by_its_name(
    byte_level: PreTrainedTokenizerFast, case: str
) -> None:
    _, written, stop, text, stopped_by = CASES[case]
    _, delta = Model(byte_level, PLAIN).reply(written, ChatMessage("user", "?"), stop=stop)
    assert delta.finish is not None
    assert (delta.text, delta.finish.stop) == (text, stopped_by)
    assert delta.finish.reason.value == "stop"
