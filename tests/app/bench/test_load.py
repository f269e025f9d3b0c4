from __future__ import annotations

from collections.abc import Iterator

from app.bench.load import Script, ScriptLoad, Turn
from engine.load import Outcome, Task
from engine.request import FinishReason, SamplingParams
from engine.stream import Timings, Usage

SAMPLING = SamplingParams(max_tokens=2)


def script(name: str, arrival: float, *later: Turn) -> Script:
    return Script(
        Task(request_id=name, arrival=arrival, prompt_token_ids=[1], sampling=SAMPLING), later
    )


def names(tasks: object) -> list[str]:
    return [task.request_id for task in tasks]  # type: ignore[attr-defined]


def end(task: Task, at: float, reason: FinishReason = FinishReason.STOP) -> Outcome:
    ids = (*task.prompt_token_ids, 8, 9)
    return Outcome(task, at, reason, Usage(1, 2, 0), Timings(), ids)


def test_an_open_loop_gives_tasks_at_their_arrival_and_waits_for_nobody() -> None:
    load = ScriptLoad([script("a", 0.0), script("b", 1.0), script("c", 1.0), script("d", 5.0)])
    assert load.next_arrival == 0.0
    assert names(load.due(0.5)) == ["a"]
    assert load.next_arrival == 1.0
    assert names(load.due(4.0)) == ["b", "c"]
    assert names(load.due(4.0)) == []
    assert [task.arrival for task in load.due(9.0)] == [5.0]
    assert load.next_arrival is None


def test_scripts_are_made_as_they_come_due() -> None:
    made = []

    def scripts() -> Iterator[Script]:
        for i in range(1000):
            made.append(i)
            yield script(str(i), float(i))

    load = ScriptLoad(scripts())
    load.due(10.0)
    assert len(made) == 12  # 0 to 10, and the one that comes next


def test_a_closed_loop_keeps_its_concurrency_and_arrivals_follow_the_ends() -> None:
    load = ScriptLoad([script(name, 0.0) for name in "abcd"], concurrency=2)
    a, b = load.due(0.0)
    assert load.next_arrival is None  # until one ends
    load.ended(end(b, 3.0))
    assert load.next_arrival == 3.0
    (c,) = load.due(3.5)
    assert (c.request_id, c.arrival) == ("c", 3.0)
    load.ended(end(a, 4.0, FinishReason.ERROR))
    load.ended(end(c, 4.0))
    (d,) = load.due(4.0)
    assert (d.request_id, d.arrival) == ("d", 4.0)
    load.ended(end(d, 5.0))
    assert load.next_arrival is None


def test_a_limit_that_is_not_reached_leaves_arrivals_as_they_are() -> None:
    load = ScriptLoad([script("a", 0.0), script("b", 7.0)], concurrency=1)
    (a,) = load.due(0.0)
    load.ended(end(a, 2.0))
    assert load.next_arrival == 7.0
    assert [task.arrival for task in load.due(8.0)] == [7.0]


def test_a_turn_goes_on_from_all_tokens_before_after_the_user_thought() -> None:
    turns = (Turn(2.5, [5, 6], SAMPLING), Turn(1.0, [7], SamplingParams(max_tokens=3)))
    load = ScriptLoad([script("a", 0.0, *turns)])
    (first,) = load.due(0.0)
    load.ended(end(first, 1.0))
    assert load.next_arrival == 3.5
    assert load.due(3.4) == []
    (second,) = load.due(3.6)
    assert second.arrival == 3.5
    assert list(second.prompt_token_ids) == [1, 8, 9, 5, 6]
    load.ended(end(second, 4.0))
    (third,) = load.due(5.0)
    assert list(third.prompt_token_ids) == [1, 8, 9, 5, 6, 8, 9, 7]
    assert third.sampling.max_tokens == 3
    assert len({first.request_id, second.request_id, third.request_id}) == 3
    load.ended(end(third, 6.0))
    assert load.next_arrival is None


def test_a_thinking_user_keeps_the_place_of_the_conversation() -> None:
    load = ScriptLoad([script("a", 0.0, Turn(10.0, [5], SAMPLING)), script("b", 0.0)], 1)
    (first,) = load.due(0.0)
    load.ended(end(first, 1.0))
    assert load.due(5.0) == []
    (second,) = load.due(11.0)
    load.ended(end(second, 12.0))
    assert [(t.request_id, t.arrival) for t in load.due(12.0)] == [("b", 12.0)]


def test_a_conversation_ends_with_a_turn_that_failed() -> None:
    load = ScriptLoad([script("a", 0.0, Turn(0.0, [5], SAMPLING))])
    (first,) = load.due(0.0)
    load.ended(end(first, 1.0, FinishReason.ERROR))
    assert load.next_arrival is None
