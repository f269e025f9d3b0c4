from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.screens.chats.chat_settings import (
    ENGINE,
    OURS,
    STARTED,
    ChatSettings,
    Defaults,
    as_text,
    read,
    read_thinking,
)
from engine.api.errors import InvalidRequestError
from engine.api.sampling import SamplingParams
from engine.api.status import ModelCard


def card(**sampling: object) -> ModelCard:
    params = SamplingParams().override(sampling)
    sources = dict.fromkeys(sampling, "models.toml")
    named = {"sampling": params, "sampling_sources": sources, "switches_thinking": True}
    return ModelCard("tiny", "", 0, "", "cpu", "", 64, 0, 0, **named)  # type: ignore[arg-type]


def line(settings: ChatSettings, card: ModelCard | None = None, **started: object) -> str:
    return Defaults(card, started).line("tiny", settings)


THINKS_NOT = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("recommended", "started", "own", "shown"),
    [
        ({"temperature": 0.6}, {}, {}, "temp 0.6 (models.toml)"),
        (
            {"temperature": 0.6, "top_p": 0.95},
            {},
            {"temperature": 0.25, "stop": ["END"]},
            "temp 0.25, stop END (this chat) · top_p 0.95 (models.toml)",
        ),
        # A value that is stated is shown, though it is what would hold without.
        (
            {"temperature": 0.6},
            {},
            {"temperature": 0.6, "min_p": 0},
            "temp 0.6, min_p 0 (this chat)",
        ),
        # A model that recommends nothing of it is asked by our own in a chat.
        ({}, {}, {}, "temp 0.7, top_p 0.95, min_p 0.05 (batchdeck)"),
        (
            {"repetition_penalty": 1.1},
            {},
            {},
            "temp 0.7, top_p 0.95, min_p 0.05 (batchdeck) · repetition_penalty 1.1 (models.toml)",
        ),
        ({"top_k": 20}, {}, {}, "temp 1 (engine) · top_k 20 (models.toml)"),
        (
            {},
            {"temperature": 0.2},
            {"top_p": 1.0},
            "top_p 1 (this chat) · temp 0.2 (config) · min_p 0.05 (batchdeck)",
        ),
        ({"temperature": 0.6}, {"temperature": 0.2}, {"temperature": 1}, "temp 1 (this chat)"),
        ({"temperature": 0.6}, {}, THINKS_NOT, "thinking off (this chat) · temp 0.6 (models.toml)"),
        (
            {"temperature": 0.6},
            {"chat_template_kwargs": {"enable_thinking": True, "effort": 2}},
            {},
            'thinking on, chat_template_kwargs {"effort": 2} (config) · temp 0.6 (models.toml)',
        ),
        (
            {"temperature": 0.6},
            {},
            {"structure": {"regex": "a+"}},
            'structure {"regex": "a+"} (this chat) · temp 0.6 (models.toml)',
        ),
    ],
)
def test_the_line_says_what_holds_and_by_whom(
    recommended: dict[str, object],
    started: dict[str, object],
    own: dict[str, object],
    shown: str,
) -> None:
    settings = ChatSettings(sampling=own)
    assert line(settings, card(**recommended), **started) == f"tiny · {shown}"


def test_the_line_before_there_is_a_model_has_what_is_stated() -> None:
    assert line(ChatSettings()) == "tiny"
    assert line(ChatSettings(), temperature=1.0) == "tiny · temp 1 (config)"
    own = ChatSettings(sampling={"temperature": 0.5})
    assert line(own, temperature=0.2) == "tiny · temp 0.5 (this chat)"


def test_the_system_prompt_comes_last_and_whole() -> None:
    settings = ChatSettings("word\n " * 20)
    words = " ".join(["word"] * 20)
    assert line(settings, card(top_p=0.5)) == (
        f"tiny · temp 1 (engine) · top_p 0.5 (models.toml) · system: {words}"
    )


def test_each_default_says_where_it_comes_from() -> None:
    defaults = Defaults(card(top_k=20), {"temperature": 0.2})
    assert (defaults.value("temperature"), defaults.source("temperature")) == (0.2, STARTED)
    assert (defaults.value("top_k"), defaults.source("top_k")) == (20, "models.toml")
    assert (defaults.value("min_p"), defaults.source("min_p")) == (0.0, ENGINE)
    ours = Defaults(card(), {})
    assert (ours.value("min_p"), ours.source("min_p")) == (0.05, OURS)
    assert (ours.value("top_k"), ours.source("top_k")) == (0, ENGINE)
    assert Defaults(None, {}).source("min_p") == ""


NUMBERS = {"min_value": 0.0, "max_value": 1.0, "exclude_min": True}
TOKEN_IDS = st.integers(0, 200_000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
VALUES: dict[str, st.SearchStrategy[object]] = {
    "temperature": st.floats(0.0, 100.0) | st.sampled_from([0.123456789, 0.25]),
    "top_k": st.integers(0, 2**31 - 1),
    "top_p": st.floats(**NUMBERS),  # type: ignore[arg-type]
    "min_p": st.floats(0.0, 1.0),
    "repetition_penalty": st.floats(**NUMBERS),  # type: ignore[arg-type]
    "presence_penalty": st.floats(-2.0, 2.0),
    "frequency_penalty": st.floats(-2.0, 2.0),
    "logit_bias": st.dictionaries(TOKEN_IDS.map(str), st.floats(-100.0, 100.0)),
    "logprobs": st.none() | st.integers(0, 20),
    "prompt_logprobs": st.none() | st.integers(0, 20),
    "seed": st.none() | st.integers(0, 2**64 - 1),
    "min_tokens": st.integers(0, 2**31 - 1),
    "max_tokens": st.none() | st.integers(1, 2**31 - 1),
    "stop": st.lists(
        st.text(min_size=1) | st.sampled_from(["\n\n", '"\\n"', "1", " x", "a\nb", '["a"]']),
        max_size=16,
    ),
    "stop_token_ids": st.lists(TOKEN_IDS),
    "ignore_eos": st.booleans(),
    "chat_template_kwargs": st.dictionaries(st.text(), JSON, max_size=3),
    "tools": st.lists(
        st.fixed_dictionaries({"type": st.just("function"), "function": JSON}), max_size=3
    ),
    "structure": st.none() | st.sampled_from([{"regex": "a\n"}, {"json_schema": {"const": "ä"}}]),
}


@pytest.mark.parametrize("name", [f.name for f in fields(SamplingParams)])
@given(data=st.data())
def test_a_value_reads_as_it_is_shown(name: str, data: st.DataObject) -> None:
    value = data.draw(VALUES[name])
    text = as_text(name, value)
    assert read(name, text.strip()) == value
    assert "\n" not in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"\\n\\n"', ["\n\n"]),
        ("END", ["END"]),
        ("1", ["1"]),
        ('["a", "b"]', ["a", "b"]),
        ('"a', ['"a']),
    ],
)
def test_a_stop_is_json_where_it_is_that(text: str, value: list[str]) -> None:
    assert read("stop", text) == value


@pytest.mark.parametrize("name", [f.name for f in fields(SamplingParams)])
def test_every_default_can_be_shown(name: str) -> None:
    text = as_text(name, getattr(SamplingParams(), name))
    assert SamplingParams().override({name: read(name, text)}) == SamplingParams()


def test_thinking_is_on_or_off() -> None:
    assert (read_thinking("on"), read_thinking("Off")) == (True, False)
    with pytest.raises(InvalidRequestError, match="thinking is 'maybe'; it must be on or off"):
        read_thinking("maybe")
