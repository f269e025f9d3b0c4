"""The built-in model goes on with a reply that was cut off."""

from __future__ import annotations

import pytest

from engine.api.client import ChatMessage, Submission
from engine.api.lifecycle import FinishReason
from engine.api.stream import Finish
from engine.serving.host import EngineHost

QUESTION = ChatMessage("user", "What is a KV cache? Tell me in detail.")
CUTS = (3, 9)


def _answer(host: EngineHost, submission: Submission) -> tuple[str, Finish]:
    text = ""
    for delta in host.submit(submission):
        text += delta.text
        if delta.finish is not None:
            return text, delta.finish
    raise AssertionError("the stream did not end")


@pytest.mark.parametrize("exact", [True, False])
def test_greedy_text_that_is_gone_on_with_is_that_of_one_go(
    built_in: EngineHost, exact: bool
) -> None:
    """From the ids of the reply, and from its text where these are not kept."""
    greedy = {"temperature": 0.0, "max_tokens": 40}
    whole, end = _answer(built_in, Submission(messages=(QUESTION,), sampling=greedy))
    for cut in CUTS:
        short = {**greedy, "max_tokens": cut}
        text, finish = _answer(built_in, Submission(messages=(QUESTION,), sampling=short))
        assert finish.reason is FinishReason.LENGTH, cut
        assert whole.startswith(text)
        assert len(text) < len(whole)
        messages = (QUESTION, ChatMessage("assistant", text))
        rest, ending = _answer(
            built_in,
            Submission(
                messages=messages,
                context=finish.context if exact else None,
                num_partial=cut if exact else 0,
                sampling={**greedy, "max_tokens": 40 - cut},
            ),
        )
        assert rest == whole, cut
        assert ending.reason is end.reason, cut
        assert ending.context == end.context, cut
        assert ending.usage.completion_tokens == end.usage.completion_tokens, cut
        assert ending.usage.prompt_tokens == end.usage.prompt_tokens, cut
    follows, its_end = _answer(
        built_in,
        Submission(
            messages=messages,
            num_partial=0,
            repeats_partial=False,
            sampling={**greedy, "max_tokens": 40 - cut},
        ),
    )
    assert text + follows == whole
    assert its_end.context == end.context
    assert its_end.usage.completion_tokens == end.usage.completion_tokens - cut
    assert its_end.usage.prompt_tokens == end.usage.prompt_tokens + cut
