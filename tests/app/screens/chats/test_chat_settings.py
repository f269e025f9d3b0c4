from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.screens.chats.chat_settings import (
    ENGINE,
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
    named = {"sampling": params, "sampling_source": "models.toml", "switches_thinking": True}
    return ModelCard("tiny", "", 0, "", "cpu", "", 64, 0, 0, **named)  # type: ignore[arg-type]


def line(settings: ChatSettings, card: ModelCard | None = None, **started: object) -> str:
    return Defaults(card, started).line("tiny", settings)


def test_the_line_has_the_temperature_and_what_differs_from_the_model() -> None:
    model = card(temperature=0.6, top_p=0.95)
    assert line(ChatSettings(), model) == "tiny · temp 0.6"
    settings = ChatSettings(sampling={"temperature": 0.25, "top_p": 0.9, "stop": ["END"]})
    assert line(settings, model) == "tiny · temp 0.25 · top_p 0.9 · stop END"
    assert line(ChatSettings(sampling={"top_p": 0.95}), model) == "tiny · temp 0.6"


def test_the_line_has_what_the_program_was_started_with() -> None:
    """Finding 6: neither --system nor --temperature was on the screen."""
    settings = ChatSettings("You are\na pirate.")
    assert line(settings, card(), temperature=0.2) == "tiny · temp 0.2 · system: You are a pirate."
    assert line(settings, None, temperature=0.2).startswith("tiny · temp 0.2")
    own = ChatSettings(sampling={"temperature": 0.5})
    assert line(own, card(), temperature=0.2) == "tiny · temp 0.5"


def test_the_system_prompt_comes_last_and_whole_and_thinking_is_a_word() -> None:
    settings = ChatSettings("word " * 20, {"chat_template_kwargs": {"enable_thinking": False}})
    words = " ".join(["word"] * 20)
    assert line(settings, card()) == f"tiny · temp 1 · thinking off · system: {words}"
    both = {"chat_template_kwargs": {"enable_thinking": True, "effort": 2}}
    shown = line(ChatSettings(sampling=both), card())
    assert shown == 'tiny · temp 1 · thinking on · chat_template_kwargs {"effort": 2}'


def test_a_structure_is_shown_as_it_was_stated() -> None:
    shown = line(ChatSettings(sampling={"structure": {"regex": "a+"}}), card())
    assert shown == 'tiny · temp 1 · structure {"regex": "a+"}'


def test_each_default_says_where_it_comes_from() -> None:
    defaults = Defaults(card(top_k=20), {"temperature": 0.2})
    assert (defaults.value("temperature"), defaults.source("temperature")) == (0.2, STARTED)
    assert (defaults.value("top_k"), defaults.source("top_k")) == (20, "models.toml")
    assert (defaults.value("min_p"), defaults.source("min_p")) == (0.0, ENGINE)
    assert Defaults(None, {}).source("min_p") == ""
    assert Defaults(None, {}).line("tiny", ChatSettings()) == "tiny"


NUMBERS = {"min_value": 0.0, "max_value": 1.0, "exclude_min": True}
TOKEN_IDS = st.integers(0, 200_000)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
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
    "chat_template_kwargs": st.dictionaries(st.text(), JSON),
    "tools": st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": JSON})),
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
