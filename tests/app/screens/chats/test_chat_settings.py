from __future__ import annotations

from dataclasses import fields

import pytest

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


def test_a_long_system_prompt_is_cut_and_thinking_is_a_word() -> None:
    settings = ChatSettings("word " * 40, {"chat_template_kwargs": {"enable_thinking": False}})
    assert (
        line(settings, card()) == "tiny · temp 1 · system: word word word word wor… · thinking off"
    )
    both = {"chat_template_kwargs": {"enable_thinking": True, "effort": 2}}
    shown = line(ChatSettings(sampling=both), card())
    assert shown == 'tiny · temp 1 · thinking on · chat_template_kwargs {"effort": 2}'


def test_each_default_says_where_it_comes_from() -> None:
    defaults = Defaults(card(top_k=20), {"temperature": 0.2})
    assert (defaults.value("temperature"), defaults.source("temperature")) == (0.2, STARTED)
    assert (defaults.value("top_k"), defaults.source("top_k")) == (20, "models.toml")
    assert (defaults.value("min_p"), defaults.source("min_p")) == (0.0, ENGINE)
    assert Defaults(None, {}).source("min_p") == ""
    assert Defaults(None, {}).line("tiny", ChatSettings()) == "tiny"


@pytest.mark.parametrize(
    "stated",
    [
        {"stop": ["a", "b"]},
        {"stop": ["END"]},
        {"stop": ["1"]},
        {"stop": [" x"]},
        {"logit_bias": {"5": -1.5}},
        {"temperature": 0.25},
        {"ignore_eos": True},
        {"stop_token_ids": [1, 2]},
        {"chat_template_kwargs": {"effort": "low"}},
        {"seed": 2**63},
    ],
)
def test_a_value_reads_as_it_is_shown(stated: dict[str, object]) -> None:
    ((name, value),) = stated.items()
    again = read(name, as_text(name, value))
    assert SamplingParams().override({name: again}) == SamplingParams().override(stated)


@pytest.mark.parametrize("name", [f.name for f in fields(SamplingParams)])
def test_every_default_can_be_shown(name: str) -> None:
    text = as_text(name, getattr(SamplingParams(), name))
    assert not text or SamplingParams().override({name: read(name, text)}) == SamplingParams()


def test_thinking_is_on_or_off() -> None:
    assert (read_thinking("on"), read_thinking("Off")) == (True, False)
    with pytest.raises(InvalidRequestError, match="thinking is 'maybe'; it must be on or off"):
        read_thinking("maybe")
