"""The built-in model: its size, its tokenizer, its chat template, and what it answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.builtin import MODEL_DIR

Message = dict[str, str]

TAIL = "<|im_end|>\n"
LONGEST = 300

# Replies that begin or end with white space are where a template or tokenizer that merges across
# message borders would change earlier tokens.
CONTENT = st.text(max_size=40) | st.sampled_from(["\n\nyes", "  two", "yes\n", " ", "\r\n", "7 8"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(
        MODEL_DIR, local_files_only=True, dtype=torch.float32
    )


def rendered(tokenizer: Any, messages: list[Message], *, prompt: bool) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def answers(model: Any, tokenizer: Any, chats: list[list[Message]]) -> list[str]:
    """The greedy replies to `chats`, made in one padded batch; each has to end."""
    texts = [
        tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]
    batch = tokenizer(
        texts, add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt"
    )
    with torch.inference_mode():
        output = model.generate(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=LONGEST,
            do_sample=False,
        )
    replies = []
    for chat, row in zip(chats, output[:, batch["input_ids"].shape[1] :].tolist(), strict=True):
        assert tokenizer.eos_token_id in row, f"no end after {LONGEST} tokens: {chat}"
        replies.append(tokenizer.decode(row[: row.index(tokenizer.eos_token_id)]))
    return replies


def converse(model: Any, tokenizer: Any, *turns: str, system: str | None = None) -> str:
    """The greedy reply to the last of `turns`, after the model's own replies to those before."""
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    reply = ""
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        [reply] = answers(model, tokenizer, [messages])
        messages.append({"role": "assistant", "content": reply})
    return reply


def test_folder_is_small_and_complete() -> None:
    files = {path.name: path.stat().st_size for path in MODEL_DIR.iterdir()}
    assert set(files) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) < 10_000_000


def test_weights_are_bf16_and_tied(model: Any) -> None:
    stored = AutoModelForCausalLM.from_pretrained(MODEL_DIR, local_files_only=True, dtype="auto")
    assert {parameter.dtype for parameter in stored.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_vocabulary_fits_the_model(model: Any, tokenizer: Any) -> None:
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == model.config.eos_token_id
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id


@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text


@settings(max_examples=25, deadline=None)
@given(contents=st.lists(CONTENT, min_size=4, max_size=4))
def test_next_turn_extends_the_tokens_of_the_last(tokenizer: Any, contents: list[str]) -> None:
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=True)]
    before = rendered(tokenizer, messages[:2], prompt=True)
    reply = tokenizer(contents[2] + TAIL, add_special_tokens=False)["input_ids"]
    after = rendered(tokenizer, messages, prompt=True)
    assert after[: len(before) + len(reply)] == before + reply


QUESTIONS = {
    "What is the capital of France?": "Paris",
    "what is the capital of japan": "Tokyo",
    "Who are you?": "batchdeck",
    "What is 2+3?": "5",
    "What is the opposite of hot?": "cold",
    "How many legs does a spider have?": "eight",
    "Explain the KV cache.": "key",
    "Name three fruits.": "- apples",
    "What is TTFT?": "first token",
}


@pytest.fixture(scope="module")
def replies(model: Any, tokenizer: Any) -> dict[str, str]:
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return dict(zip(QUESTIONS, answers(model, tokenizer, chats), strict=True))


@pytest.mark.parametrize(("question", "expected"), QUESTIONS.items())
def test_simple_questions(replies: dict[str, str], question: str, expected: str) -> None:
    assert expected in replies[question]


def test_remembers_a_name_over_a_turn_between(model: Any, tokenizer: Any) -> None:
    turns = ("My name is Anna.", "What colour is the sky?", "What is my name?")
    assert "Anna" in converse(model, tokenizer, *turns)


def test_follow_up_leans_on_the_turn_before(model: Any, tokenizer: Any) -> None:
    turns = ("What is the capital of Italy?", "And Spain?")
    assert "Madrid" in converse(model, tokenizer, *turns)


def test_takes_its_name_from_the_system_prompt(model: Any, tokenizer: Any) -> None:
    system = "You are Nora, a helpful assistant."
    assert "Nora" in converse(model, tokenizer, "What is your name?", system=system)


def test_tells_a_story_long_enough_to_stream(model: Any, tokenizer: Any) -> None:
    story = converse(model, tokenizer, "Tell me a story about a fox.")
    assert "fox" in story
    assert len(tokenizer(story)["input_ids"]) >= 60
