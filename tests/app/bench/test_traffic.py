from __future__ import annotations

from collections.abc import Iterator

from app.bench.traffic import Script, ScriptedTraffic, Turn
from engine.api.lifecycle import FinishReason, Timings
from engine.api.sampling import SamplingParams
from engine.api.stream import Usage
from engine.driving.traffic import Outcome, Task

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
    traffic = ScriptedTraffic(
        [script("a", 0.0), script("b", 1.0), script("c", 1.0), script("d", 5.0)]
    )
    assert traffic.next_arrival == 0.0
    assert names(traffic.due(0.5)) == ["a"]
    assert traffic.next_arrival == 1.0
    assert names(traffic.due(4.0)) == ["b", "c"]
    assert names(traffic.due(4.0)) == []
    assert [task.arrival for task in traffic.due(9.0)] == [5.0]
    assert traffic.next_arrival is None


def test_scripts_are_made_as_they_come_due() -> None:
    made = []

    def scripts() -> Iterator[Script]:
        for i in range(1000):
            made.append(i)
            yield script(str(i), float(i))

    traffic = ScriptedTraffic(scripts())
    traffic.due(10.0)
    assert len(made) == 12  # 0 to 10, and the one that comes next


def test_a_closed_loop_keeps_its_concurrency_and_arrivals_follow_the_ends() -> None:
    traffic = ScriptedTraffic([script(name, 0.0) for name in "abcd"], concurrency=2)
    a, b = traffic.due(0.0)
    assert traffic.next_arrival is None  # until one ends
    traffic.ended(end(b, 3.0))
    assert traffic.next_arrival == 3.0
    (c,) = traffic.due(3.5)
    assert (c.request_id, c.arrival) == ("c", 3.0)
    traffic.ended(end(a, 4.0, FinishReason.ERROR))
    traffic.ended(end(c, 4.0))
    (d,) = traffic.due(4.0)
    assert (d.request_id, d.arrival) == ("d", 4.0)
    traffic.ended(end(d, 5.0))
    assert traffic.next_arrival is None


def test_a_limit_that_is_not_reached_leaves_arrivals_as_they_are() -> None:
    traffic = ScriptedTraffic([script("a", 0.0), script("b", 7.0)], concurrency=1)
    (a,) = traffic.due(0.0)
    traffic.ended(end(a, 2.0))
    assert traffic.next_arrival == 7.0
    assert [task.arrival for task in traffic.due(8.0)] == [7.0]


def test_a_turn_goes_on_from_all_tokens_before_after_the_user_thought() -> None:
    turns = (Turn(2.5, [5, 6], SAMPLING), Turn(1.0, [7], SamplingParams(max_tokens=3)))
    traffic = ScriptedTraffic([script("a", 0.0, *turns)])
    (first,) = traffic.due(0.0)
    traffic.ended(end(first, 1.0))
    assert traffic.next_arrival == 3.5
    assert traffic.due(3.4) == []
    (second,) = traffic.due(3.6)
    assert second.arrival == 3.5
    assert list(second.prompt_token_ids) == [1, 8, 9, 5, 6]
    traffic.ended(end(second, 4.0))
    (third,) = traffic.due(5.0)
    assert list(third.prompt_token_ids) == [1, 8, 9, 5, 6, 8, 9, 7]
    assert third.sampling.max_tokens == 3
    assert len({first.request_id, second.request_id, third.request_id}) == 3
    traffic.ended(end(third, 6.0))
    assert traffic.next_arrival is None


def test_a_thinking_user_keeps_the_place_of_the_conversation() -> None:
    traffic = ScriptedTraffic([script("a", 0.0, Turn(10.0, [5], SAMPLING)), script("b", 0.0)], 1)
    (first,) = traffic.due(0.0)
    traffic.ended(end(first, 1.0))
    assert traffic.due(5.0) == []
    (second,) = traffic.due(11.0)
    traffic.ended(end(second, 12.0))
    assert [(t.request_id, t.arrival) for t in traffic.due(12.0)] == [("b", 12.0)]


def test_a_conversation_ends_with_a_turn_that_failed() -> None:
    traffic = ScriptedTraffic([script("a", 0.0, Turn(0.0, [5], SAMPLING))])
    (first,) = traffic.due(0.0)
    traffic.ended(end(first, 1.0, FinishReason.ERROR))
    assert traffic.next_arrival is None
