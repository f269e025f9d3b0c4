"""Streams: a host's replies, from before there is a model to the last delta."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.lifecycle import FinishReason
from engine.api.sampling import CHAT_SAMPLING, SamplingParams
from engine.api.status import EnginePhase
from engine.api.stream import Delta
from engine.serving.host import EngineHost
from engine.serving.loading import LoadedModel, Progress
from engine.text.arguments import context_key
from tests.support.asking import ask, error_of, read, say, snapshot_when
from tests.support.scripted_loader import TIMEOUT, Loader
from tests.support.scripted_runner import reference


class TestServing:
    def test_before_a_model_is_wanted(self, host: EngineHost) -> None:
        assert host.status().phase is EnginePhase.EMPTY
        assert host.snapshot() is None
        assert host.step_records(0) == ()

    def test_a_reply_streams(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        stream = ask(host, "1 2 3", max_tokens=7)
        text, finish = read(stream)
        assert text == say("a", [1, 2, 3], 7)
        assert finish.reason is FinishReason.LENGTH
        assert (finish.usage.prompt_tokens, finish.usage.completion_tokens) == (3, 7)
        assert finish.context is not None
        assert finish.context.model_key == "a"
        assert [*finish.context.token_ids] == [1, 2, 3, *reference([1, 2, 3], 7)]
        assert finish.context.num_messages == 2
        assert finish.timings.ttft is not None
        assert host.status().phase is EnginePhase.READY
        assert host.status().model == "a"

    def test_the_model_s_defaults_hold_unless_overridden(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        assert read(ask(host))[1].usage.completion_tokens == 5
        assert read(ask(host, max_tokens=2))[1].usage.completion_tokens == 2

    @pytest.mark.parametrize("recommended", [{}, {"repetition_penalty": 1.1}, {"top_k": 3}])
    def test_a_chat_has_defaults_of_its_own_where_nothing_is_recommended(
        self, loader: Loader, recommended: dict[str, object]
    ) -> None:
        seen: list[SamplingParams] = []
        loader.before_step = lambda plan: seen.extend(new.sampling for new in plan.new)
        plain = SamplingParams(max_tokens=1, ignore_eos=True).override(recommended)

        def load(request: LoadRequest, progress: Progress) -> LoadedModel:
            model, sources = loader(request, progress), dict.fromkeys(recommended, "models.toml")
            return replace(
                model, card=replace(model.card, sampling=plain, sampling_sources=sources)
            )

        host = EngineHost(load)
        host.load(LoadRequest("a"))
        try:
            for stated in ({}, {"temperature": 0.2}):
                for in_chat in (False, True):
                    chat = (ChatMessage("user", "1 2 3"),)
                    asked = Submission(messages=chat, sampling=stated, chat_defaults=in_chat)
                    read(host.submit(asked))
                    ours = in_chat and "top_k" not in recommended
                    expected = plain.override({**(CHAT_SAMPLING if ours else {}), **stated})
                    assert replace(seen[-1], seed=None) == expected
        finally:
            host.shutdown()

    def test_arguments_of_the_chat_template_mark_the_context(
        self, host: EngineHost, loader: Loader
    ) -> None:
        host.load(LoadRequest("a"))
        arguments = {"enable_thinking": False}
        refused = ask(host, chat_template_kwargs={"refused": True})
        plain, changed = ask(host), ask(host, chat_template_kwargs=arguments)
        contexts = [read(stream)[1].context for stream in (plain, changed)]
        assert [context and context.model_key for context in contexts] == [
            "a",
            context_key("a", arguments),
        ]
        assert error_of(refused).message == "the chat template refuses it"
        assert list(map(dict, loader.codecs["a"].arguments)) == [{"refused": True}, {}, arguments]

    def test_a_prompt_of_token_ids(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        stream = host.submit(Submission(prompt=(7, 8)))
        assert read(stream)[0] == say("a", [7, 8], 5)
        assert (stream.num_prompt_tokens, stream.num_output_tokens) == (2, 5)

    def test_a_prompt_of_text_that_no_template_is_put_around(
        self, host: EngineHost, loader: Loader
    ) -> None:
        host.load(LoadRequest("a"))
        stream = host.submit(Submission(prompt="7 8"))
        assert read(stream)[0] == say("a", [7, 8], 5)
        assert loader.codecs["a"].arguments == []

    def test_submitted_before_there_is_a_model(self, host: EngineHost, loader: Loader) -> None:
        early = ask(host, "1")
        gate = loader.gate("a")
        host.load(LoadRequest("a"))
        assert loader.entered.wait(TIMEOUT)
        loading = ask(host, "2")
        assert host.status().phase is EnginePhase.LOADING
        assert (host.status().loaded_bytes, host.status().total_bytes) == (1, 2)
        assert early.drain() is None
        gate.set()
        assert read(early)[0] == say("a", [1], 5)
        assert read(loading)[0] == say("a", [2], 5)

    def test_many_at_once(self, host: EngineHost) -> None:
        host.load(LoadRequest("a"))
        streams = [ask(host, f"{i} 5 6 7 8 9", max_tokens=3 + i % 20) for i in range(60)]
        for i, stream in enumerate(streams):
            assert read(stream)[0] == say("a", [i, 5, 6, 7, 8, 9], 3 + i % 20)

    def test_a_stop_string_ends_the_request(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        tokens = reference([1, 2, 3], 30)
        stream = ask(host, "1 2 3", max_tokens=30, stop=[f"a{tokens[4]}"])
        text, finish = read(stream)
        assert text == say("a", [1, 2, 3], 4)
        assert finish.reason is FinishReason.STOP
        assert finish.usage.completion_tokens == 5
        assert finish.context is not None
        assert [*finish.context.token_ids] == [1, 2, 3, *tokens[:5]]
        assert read(ask(host, "4"))[1].reason is FinishReason.LENGTH

    def test_a_reader_is_woken_at_most_once_a_step(self, host: EngineHost, loader: Loader) -> None:
        wakes: list[str] = []
        host.load(LoadRequest("a"))

        class Owner:
            def wake(self) -> None:
                wakes.append(threading.current_thread().name)

        owner = Owner()
        streams = [ask(host, f"{i}", max_tokens=9, wake=owner.wake) for i in range(6)]
        for stream in streams:
            read(stream)
        assert 1 <= len(wakes) <= len(loader.runners["a"].plans)
        assert set(wakes) == {"engine-text"}

    def test_snapshot_and_records(self, host: EngineHost, loader: Loader) -> None:
        host.load(LoadRequest("a"))
        read(ask(host, max_tokens=6))
        loader.runners["a"].fail_steps = {7}
        assert error_of(ask(host)).type == "engine_error"
        read(ask(host, max_tokens=4))
        records = host.step_records(0)
        assert [record.step for record in records] == list(range(1, len(records) + 1))
        for since in range(len(records) + 2):
            assert host.step_records(since) == records[since:]
        snapshot = host.snapshot()
        assert snapshot is not None
        assert snapshot.model.name == "a"


def test_a_fork_shares_what_its_source_has(host: EngineHost, loader: Loader) -> None:
    """Ten tokens: two full blocks shared, the third copied, one token computed."""
    loader.knobs = {"prefix_caching": False, "paused": True}
    host.load(LoadRequest("a"))
    prompt = tuple(range(10))
    first = Submission(prompt=prompt)
    fork = Submission(prompt=prompt, fork_of=first.request_id)
    streams = [host.submit(first), host.submit(fork)]
    snapshot_when(host, lambda found: found.num_waiting == 2)
    host.set_knobs({"paused": False}, "me")
    finishes = [read(stream)[1] for stream in streams]
    assert [finish.usage.cached_tokens for finish in finishes] == [0, 9]
    assert [len(plan.copies) for plan in loader.runners["a"].plans[:3]] == [0, 1, 0]
    assert {finish.reason for finish in finishes} == {FinishReason.LENGTH}


def test_deltas_add_up(host: EngineHost) -> None:
    """Counts in deltas are those of the usage."""
    host.load(LoadRequest("a"))
    deltas: list[Delta] = list(ask(host, max_tokens=9))
    assert sum(delta.num_tokens for delta in deltas) == 9
    assert [delta.finish is not None for delta in deltas][:-1] == [False] * (len(deltas) - 1)
