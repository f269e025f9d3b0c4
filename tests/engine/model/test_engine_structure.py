"""Structures on a whole engine with a tiny real model."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from engine.api.client import Submission
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.batch.plan import End
from engine.core.core import EngineCore
from engine.structure.lead import behind_tags
from tests.support.structures import (
    CLOSE,
    ENDS,
    NOTHING,
    OPEN,
    SPECIAL,
    check,
    grammar,
    ids_of,
    text_of,
)
from tests.support.swapping import AMPLE, swapping_core
from tests.support.zoo import VOCAB_SIZE

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "minItems": 3, "maxItems": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
ASKED: dict[str, dict[str, Any] | None] = {
    "schema": {"json_schema": SCHEMA},
    "free": None,
    "choice": {"choice": ["yes", "no", "maybe"]},
    "expression": {"regex": "[a-f]{30}-[0-9]{10}"},
    "other": None,
    "again": {"json_schema": SCHEMA},
}


class Run:
    """Requests with and without structures, until all have ended."""

    def __init__(self, core: EngineCore, names: Mapping[str, dict[str, Any] | None]) -> None:
        self.tokens: dict[str, list[int]] = {name: [] for name in names}
        self.ends: dict[str, End] = {}
        self.core = core
        for name, stated in names.items():
            self.submit(name, stated)
        self.go()

    def submit(self, name: str, stated: dict[str, Any] | None, **options: Any) -> None:
        rng = random.Random(name)
        prompt = [rng.randrange(VOCAB_SIZE) for _ in range(30)]
        limits = {} if stated else {"max_tokens": 40}
        sampling = SamplingParams(seed=7, ignore_eos=True, **limits).override(
            {"structure": stated, **options}
        )
        made = None if stated is None else grammar(stated)
        self.core.add_request(Submission(request_id=name), prompt, sampling, None, made)

    def go(self) -> None:
        for _ in range(2_000):
            if not self.core.num_unfinished:
                return
            for output in self.core.step():
                self.tokens[output.request_id].extend(output.token_ids)
                if output.end is not None:
                    self.ends[output.request_id] = output.end
            self.core.check()
        raise AssertionError("the requests do not end")


@cache
def with_room(backend: str) -> Run:
    """All that is asked, in a pool that is large enough."""
    return Run(swapping_core("llama", backend, AMPLE), ASKED)


def test_structured_replies_end_with_their_structure(backend: str) -> None:
    run = with_room(backend)
    for name, stated in ASKED.items():
        if stated is not None:
            assert run.ends[name].reason is FinishReason.STOP
            assert run.tokens[name][-1] in ENDS
            check(stated, text_of(run.tokens[name]))
    records = run.core.records.since(0)
    assert max(record.structured_rows for record in records) == 4
    assert sum(record.structured_rows for record in records) == sum(
        len(run.tokens[name]) for name, stated in ASKED.items() if stated is not None
    )
    assert all(record.times.mask >= 0 for record in records)


def test_the_others_say_what_they_say_alone(backend: str) -> None:
    free = {name: None for name, stated in ASKED.items() if stated is None}
    alone = Run(swapping_core("llama", backend, AMPLE), free)
    beside = with_room(backend)
    for name in free:
        assert alone.tokens[name] == beside.tokens[name]
        assert len(alone.tokens[name]) == 40
    assert not any(record.structured_rows for record in alone.core.records.since(0))
    assert not any(record.times.mask for record in alone.core.records.since(0))


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_replies_are_those_of_one_go(backend: str, preemption: str) -> None:
    short = Run(swapping_core("llama", backend, 14, preemption=preemption), ASKED)
    totals = short.core.snapshot().totals
    assert totals.preemptions > 1
    assert (totals.swaps > 0) == (preemption == "swap")
    assert short.tokens == with_room(backend).tokens


def test_a_fork_has_a_structure_of_its_own(backend: str) -> None:
    core = swapping_core("llama", backend, AMPLE)
    run = Run(core, {})
    run.tokens = {"source": [], "fork": []}
    prompt = list(range(20, 50))
    free = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    bound = free.override({"structure": {"regex": "[ab]{9}"}})
    core.add_request(Submission(request_id="source"), prompt, free)
    while len(run.tokens["source"]) < 5:
        for output in core.step():
            run.tokens["source"].extend(output.token_ids)
    branch = [*prompt, *run.tokens["source"][:4]]
    made = grammar({"regex": "[ab]{9}"})
    core.add_request(Submission(request_id="fork", fork_of="source"), branch, bound, None, made)
    run.go()
    assert run.ends["fork"].usage.cached_tokens > len(prompt)
    check({"regex": "[ab]{9}"}, text_of(run.tokens["fork"]))
    assert len(run.tokens["source"]) == 12


def test_a_failed_step_is_made_good(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Run(swapping_core("llama", backend, AMPLE), {"expression": ASKED["expression"]})
    core = swapping_core("llama", backend, AMPLE)
    run = Run(core, {})
    run.tokens = {"expression": [], "choice": []}
    run.submit("expression", ASKED["expression"])
    while len(run.tokens["expression"]) < 10:
        for output in core.step():
            run.tokens["expression"].extend(output.token_ids)
    run.submit("choice", ASKED["choice"])
    runner = core._runner
    forward = runner.forward  # type: ignore[attr-defined]

    def fail(*_: object) -> None:
        monkeypatch.setattr(runner, "forward", forward)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runner, "forward", fail)
    run.go()
    assert run.ends["choice"].reason is FinishReason.ERROR
    assert run.tokens["expression"] == whole.tokens["expression"]


def test_what_cannot_be_followed_any_more_ends_with_the_reason(backend: str) -> None:
    stated = {"regex": r"(\p{L}{0,1000}\w{0,1000}){0,1000}"}
    run = Run(swapping_core("llama", backend, AMPLE), {"hard": stated, "choice": ASKED["choice"]})
    check({"choice": ["yes", "no", "maybe"]}, text_of(run.tokens["choice"]))
    end = run.ends["hard"]
    assert end.reason is FinishReason.ERROR
    assert end.error is not None
    assert (end.error.type, end.error.param) == ("invalid_request_error", "structure")
    assert end.error.message == (
        "structure is too complex to follow: the next allowed tokens were not found within "
        "10 ms and 8,000 items of its grammar, of which an optional property has 4"
    )


def test_thinking_is_what_it_is_without_a_structure(backend: str) -> None:
    """Up to the closing tag; what is said then is bound."""
    never = {*ENDS, NOTHING, *SPECIAL} - {CLOSE}
    bias = (*((token, -100.0) for token in sorted(never)), (CLOSE, 3.0))
    sampling = SamplingParams(seed=11, logit_bias=bias, max_tokens=100)
    lead = behind_tags("[T]", "[/T]", OPEN, CLOSE, is_open=True)
    bound = sampling.override({"structure": {"regex": "[a-f]{5}"}})
    made = grammar({"regex": "[a-f]{5}"}, lead)
    said: dict[bool, list[int]] = {}
    for is_bound in (False, True):
        core = swapping_core("llama", backend, AMPLE)
        run = Run(core, {})
        run.tokens = {"it": []}
        params, followed = (bound, made) if is_bound else (sampling, None)
        core.add_request(Submission(request_id="it"), list(range(20, 50)), params, None, followed)
        run.go()
        said[is_bound] = run.tokens["it"]
    end = said[True].index(CLOSE)
    assert end > 3
    assert said[True][: end + 1] == said[False][: end + 1]
    check({"regex": "[a-f]{5}"}, text_of(said[True][end + 1 :]).lstrip("\n"))
    assert said[True][-1] in ENDS


def test_the_length_still_ends_a_reply(backend: str) -> None:
    core = swapping_core("llama", backend, AMPLE)
    run = Run(core, {})
    run.tokens = {"schema": []}
    run.submit("schema", ASKED["schema"], max_tokens=5)
    run.go()
    assert run.ends["schema"].reason is FinishReason.LENGTH
    assert len(run.tokens["schema"]) == 5


def test_a_structure_that_nothing_has_compiled_is_refused(backend: str) -> None:
    core = swapping_core("llama", backend, AMPLE)
    sampling = SamplingParams().override({"structure": {"regex": "a"}})
    core.add_request(Submission(request_id="it"), ids_of("abc"), sampling)
    (output,) = core.step()
    assert output.end is not None
    assert output.end.error is not None
    assert (output.end.error.type, output.end.error.param) == ("invalid_request_error", "structure")
