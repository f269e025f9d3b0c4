"""The fair order: virtual token counters, and what they promise (Sheng et al., OSDI'24)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api.knobs import Knobs
from engine.api.origin import Origin
from engine.batch.plan import Request
from engine.scheduling.orders import ORDERS, OUTPUT_TOKEN, PROMPT_TOKEN, Fair, reorder
from engine.scheduling.shares import RECENT_SECONDS
from tests.support.harness import CoreHarness, make_request


def make_queue(weights: str = "") -> Fair:
    return Fair(Knobs(order="fair", user_weights=weights))


def ask(ordinal: int, user: str, prompt: int = 1, **fields: object) -> Request:
    return make_request(ordinal, [1] * prompt, origin=Origin(user=user), **fields)


def push(queue: Fair, *requests: Request) -> None:
    for request in requests:
        queue.push(request)


def admit(queue: Fair) -> Request:
    """Take the next one out, as an admission does."""
    request = queue.first()
    assert request is not None
    queue.remove(request)
    queue.admitted(request, 0)
    return request


class TestOrder:
    def test_users_take_turns_by_the_tokens_of_their_prompts(self) -> None:
        """a's prompts cost 3, b's 1: after each of a's come three of b's, ties to the older."""
        queue = make_queue()
        push(queue, *(ask(i, "a", 3) for i in range(3)), *(ask(i, "b") for i in range(3, 10)))
        taken = [admit(queue).origin.user for _ in range(10)]
        #         a  b: 3 0 | 3 3 | 6 3 | 6 6 | 9 6 | 9 7, a has none left
        assert "".join(taken) == "abbbabbbab"

    def test_output_tokens_cost_more_than_those_of_the_prompt(self) -> None:
        queue = make_queue()
        push(queue, ask(1, "a"), ask(2, "a"), ask(3, "b", 2), ask(4, "b"))
        runs = admit(queue)
        queue.served([runs])  # a: 1 + 2
        assert OUTPUT_TOKEN == 2 * PROMPT_TOKEN == 2.0
        assert [admit(queue).ordinal for _ in range(3)] == [3, 4, 2]

    def test_preempted_ones_go_first_and_are_not_charged_again(self) -> None:
        queue = make_queue()
        push(queue, ask(1, "a", 50), ask(2, "b", 10), ask(3, "b", 10))
        victim = admit(queue)
        victim.num_preemptions = 1
        push(queue, victim)
        assert (len(queue), queue.first(), queue.head(1)) == (3, victim, [victim])
        assert admit(queue) is victim
        push(queue, ask(4, "a"))
        # a was charged 50 once: b's two go first, then b has 20.
        assert [r.ordinal for r in queue.head(9)] == [2, 3, 4]

    def test_a_share_of_two_is_twice_as_much(self) -> None:
        queue = make_queue("a=2, b=1")
        push(queue, *(ask(i, "ab"[i % 2], 6) for i in range(40)))
        taken = [admit(queue).origin.user for _ in range(18)]
        assert (taken.count("a"), taken.count("b")) == (12, 6)
        assert max(map(len, "".join(taken).split("b"))) == 2

    def test_one_that_gives_up_is_not_charged(self) -> None:
        queue = make_queue()
        gone = ask(1, "a", 100)
        push(queue, gone, ask(2, "a"), ask(3, "b"))
        queue.remove(gone)
        assert admit(queue).ordinal == 2


class TestLift:
    """Idleness saves up no credit."""

    def test_one_who_comes_back_is_lifted_to_the_least_of_those_who_wait(self) -> None:
        queue = make_queue()
        push(queue, ask(1, "idle", 1), *(ask(i, "a", 10) for i in range(2, 30)))
        push(queue, *(ask(i, "b", 10) for i in range(30, 60)))
        for _ in range(21):
            admit(queue)  # idle has 1; a and b have 100 each
        push(queue, *(ask(i, "idle", 10) for i in range(60, 70)))
        taken = [admit(queue).origin.user for _ in range(9)]
        assert sorted(taken) == ["a"] * 3 + ["b"] * 3 + ["idle"] * 3

    def test_one_who_was_served_more_keeps_that(self) -> None:
        queue = make_queue()
        push(queue, ask(1, "greedy", 50), ask(2, "a", 5))
        admit(queue)
        push(queue, *(ask(i, "greedy", 5) for i in (3, 4)), *(ask(i, "a", 5) for i in range(5, 20)))
        taken = [admit(queue).origin.user for _ in range(12)]
        assert taken[:10] == ["a"] * 10

    def test_when_nobody_waits_to_what_the_last_who_waited_has_now(self) -> None:
        """Not to what that one had when it was admitted: its output since then counts."""
        queue = make_queue()
        push(queue, ask(1, "a", 5))
        runs = admit(queue)
        for _ in range(100):
            queue.served([runs])  # 5 + 200
        push(queue, *(ask(i, "new", 5) for i in range(2, 9)))
        push(queue, *(ask(i, "a", 5) for i in range(9, 16)))
        taken = [admit(queue).origin.user for _ in range(8)]
        assert taken == ["new", "a"] * 4


class TestCountersSurvive:
    """A change of weights, or of anything else, takes nobody's counter away."""

    @pytest.mark.parametrize("weights", ["", "a=3", "b=0.5,c=9"])
    def test_a_change_of_weights(self, weights: str) -> None:
        """a has 40 when b, who came later, has 10: three prompts that cost b 10 still go first."""
        before = make_queue()
        push(before, ask(1, "a", 40), ask(2, "a", 10), ask(3, "b", 10))
        push(before, *(ask(i, "b", 5 if "b" in weights else 10) for i in range(4, 9)))
        assert [admit(before).ordinal for _ in range(2)] == [1, 3]
        after = reorder(Knobs(order="fair", user_weights=weights), before)
        assert isinstance(after, Fair)
        assert [admit(after).ordinal for _ in range(3)] == [4, 5, 6]
        assert admit(after).ordinal == 2

    def test_weights_hold_for_what_is_served_from_then_on(self) -> None:
        before = make_queue()
        push(before, *(ask(i, "ab"[i % 2], 6) for i in range(40)))
        for _ in range(8):
            admit(before)  # 24 each
        after = reorder(Knobs(order="fair", user_weights="a=3"), before)
        assert isinstance(after, Fair)
        taken = [admit(after).origin.user for _ in range(16)]
        assert (taken.count("a"), taken.count("b")) == (12, 4)

    def test_another_knob_does_not_sort_anew(self) -> None:
        engine = CoreHarness(order="fair")
        engine.submit("a", [1], 2)
        queue = engine.scheduler.waiting
        engine.core.change_knobs({"max_num_seqs": 3, "policy": "orca"}, "test")
        engine.step()
        assert engine.scheduler.waiting is queue
        engine.core.change_knobs({"user_weights": "a=2"}, "test")
        engine.submit("b", [1], 2)
        engine.step()
        assert engine.scheduler.waiting is not queue
        engine.finish()

    def test_counters_of_those_who_never_come_back_are_forgotten(self) -> None:
        """Anybody may name a user: what is kept is bounded."""
        queue = make_queue()
        for i in range(5000):
            push(queue, ask(i, f"u{i}"))
            admit(queue)
        assert len(queue._served) < 2000


REQUESTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 30), st.integers(0, 9)),
    min_size=1,
    max_size=40,
)


@given(
    REQUESTS,
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), max_size=5),
    st.sampled_from(("", "a=2,c=0.3")),
    st.integers(0, 50),
)
@settings(max_examples=200)
def test_the_head_is_what_comes_when_only_prompts_are_charged(
    requests: list[tuple[str, int, int]],
    service: Iterable[tuple[str, int]],
    weights: str,
    count: int,
) -> None:
    queue = make_queue(weights)
    for user, tokens in service:
        queue.served([ask(0, user)] * tokens)
    for ordinal, (user, prompt, preempted) in enumerate(requests, 1):
        push(queue, ask(ordinal, user, prompt, num_preemptions=int(preempted == 0)))
    head = queue.head(count)
    assert len(queue) == len(list(queue)) == len(requests)
    assert head == [admit(queue) for _ in range(min(count, len(requests)))]


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "pop", "serve", "quit", "reweigh"]), st.integers(0, 5)),
        max_size=80,
    )
)
def test_the_first_is_the_oldest_of_the_user_served_least(moves: list[tuple[str, int]]) -> None:
    queue, waiting = make_queue(), []
    for ordinal, (move, number) in enumerate(moves):
        if move == "push":
            waiting.append(ask(ordinal, "abcdef"[number], 1 + number))
            queue.push(waiting[-1])
        elif move == "serve":
            queue.served([ask(ordinal, "abcdef"[number])])
        elif move == "reweigh":
            queue = reorder(Knobs(order="fair", user_weights=f"a={1 + number}"), queue)
        elif move == "quit" and waiting:
            queue.remove(waiting.pop(number % len(waiting)))
        elif move == "pop" and waiting:
            waiting.remove(admit(queue))
        counters = queue._served
        by_rank = sorted(waiting, key=lambda r: (counters[r.origin.user], r.ordinal))
        assert queue.first() is (by_rank[0] if by_rank else None)
        assert queue.head(1) == by_rank[:1]
        assert len(queue) == len(waiting)


def test_ranks_of_those_who_gave_up_are_forgotten() -> None:
    queue = make_queue()
    queue.push(ask(0, "patient"))
    for i in range(1, 5000):
        gone = ask(i, f"user{i}")
        queue.push(gone)
        queue.remove(gone)
    assert len(queue._ranks) < 1100
    assert queue.first() is not None


def served(engine: CoreHarness) -> dict[str, float]:
    """The users' services, counted from outside: prompts at admission, tokens at output. A
    request's user is the first letter of its name.
    """
    total = dict.fromkeys("abc", 0.0)
    for name in {name for record in engine.records for name in record.admitted}:
        total[name[0]] += PROMPT_TOKEN * len(engine._prompts[name][0])
    for name, tokens in engine.tokens.items():
        total[name[0]] += OUTPUT_TOKEN * len(tokens)
    return total


def backlog(engine: CoreHarness, requests: list[tuple[str, int, int]]) -> None:
    """Submit (user, prompt, outputs) at once."""
    for i, (user, prompt, outputs) in enumerate(requests):
        tokens = [(7 * i + j) % 1000 for j in range(prompt)]
        engine.submit(f"{user}{i}", tokens, outputs, origin=Origin(user=user))


def widest_gap(engine: CoreHarness, users: str, weights: dict[str, float]) -> float:
    """Over all intervals in which all of `users` wait, the largest difference in what two of them
    were served over their weights."""
    seen: list[dict[str, float]] = []
    while users_waiting(engine) >= set(users):
        seen.append(served(engine))
        engine.step()
    gap = 0.0
    for one, other in itertools.combinations(users, 2):
        lead = [w[one] / weights.get(one, 1) - w[other] / weights.get(other, 1) for w in seen]
        gap = max(gap, max(lead, default=0.0) - min(lead, default=0.0))
    return gap


def users_waiting(engine: CoreHarness) -> set[str]:
    return {request.origin.user for request in engine.scheduler.waiting}


SLOTS, LONGEST_PROMPT, MOST_OUTPUTS = 4, 24, 6


def bound(weights: dict[str, float]) -> float:
    """Theorem 4.4: twice the larger of a prompt and of all that a full batch may still put out
    after the counters last decided. With weights, over the least of them (section 4.3)."""
    batch = SLOTS * MOST_OUTPUTS
    most = max(PROMPT_TOKEN * LONGEST_PROMPT, OUTPUT_TOKEN * batch)
    return 2 * most / min([1.0, *weights.values()])


def make_engine(order: str, depth: int = 1, **knobs: object) -> CoreHarness:
    return CoreHarness(
        order=order, depth=depth, max_num_seqs=SLOTS, max_num_batched_tokens=40, **knobs
    )


@given(
    seed=st.integers(0, 2**32),
    policy=st.sampled_from(("stall_free", "prefill_first", "orca", "static")),
    num_blocks=st.sampled_from((12, 64)),
    weights=st.sampled_from(({}, {}, {"a": 2.0}, {"a": 3.0, "b": 1.5, "c": 1.0})),
    depth=st.sampled_from((1, 2)),
)
@settings(max_examples=40)
def test_the_bound_holds_while_all_wait(
    seed: int, policy: str, num_blocks: int, weights: dict[str, float], depth: int
) -> None:
    """Loads of any shape: one user may ask little and often, another much and seldom."""
    rng = random.Random(seed)
    requests = []
    for user in "abc":
        longest, most = rng.randint(1, LONGEST_PROMPT), rng.randint(1, MOST_OUTPUTS)
        requests += [
            (user, rng.randint(1, longest), rng.randint(1, most)) for _ in range(rng.randint(5, 40))
        ]
    if rng.random() < 0.5:
        rng.shuffle(requests)
    engine = make_engine(
        "fair",
        depth,
        policy=policy,
        num_blocks=num_blocks,
        user_weights=",".join(f"{user}={weight}" for user, weight in weights.items()),
    )
    backlog(engine, requests)
    assert widest_gap(engine, "abc", weights) <= bound(weights)


def test_the_bound_says_something() -> None:
    """First come, first served goes far beyond it on a workload that fair order keeps within."""
    requests = [(user, 12, 3) for user in "ab" for _ in range(60)]
    gaps = {}
    for order in ("fcfs", "fair"):
        engine = make_engine(order)
        backlog(engine, requests)
        gaps[order] = widest_gap(engine, "ab", {})
    assert gaps["fcfs"] > 10 * bound({})
    assert gaps["fair"] < bound({}) / 2


@pytest.mark.parametrize("policy", ["stall_free", "prefill_first", "orca"])
@pytest.mark.parametrize(("outputs", "prompt"), [((9, 23), 4), ((4, 60), 4), ((16, 16), 16)])
def test_five_requests_beside_five_hundred(
    policy: str, outputs: tuple[int, int], prompt: int
) -> None:
    """a has 500 requests, 8 of them running, when b brings 5.

    Every slot that comes free is b's, so that each of its requests waits for one that ends. Where
    the counters are equal the older request goes first: that is one of a's when b has just come,
    and one of a's for each of b's where all end at once, for then nothing was put out in between.
    """
    engine = CoreHarness(
        order="fair", policy=policy, num_blocks=256, max_num_seqs=8, max_num_batched_tokens=64
    )
    rng = random.Random(3)
    for i in range(500):
        tokens = [i, *range(prompt - 1)]
        engine.submit(f"a{i}", tokens, rng.randint(*outputs), origin=Origin(user="a"))
    while len(engine.ends) < 30:
        engine.step()
    for i in range(5):
        engine.submit(f"b{i}", [i, *range(7, 6 + prompt)], 16, origin=Origin(user="b"))
    slots = ""
    while slots.count("b") < 5:
        engine.step()
        slots += "".join(name[0] for name in engine.records[-1].admitted)
    ahead = slots[: slots.rindex("b")]
    assert "aa" not in ahead
    if outputs[0] < outputs[1]:
        assert ahead.count("a") <= 1


POLICIES_AT_ONCE = ("stall_free", "prefill_first", "orca", "slo")


def crowd(policy: str, order: str = "fair", size: int = 100, **knobs: object) -> CoreHarness:
    """32 slots, and many long requests of a, of which as many run as may."""
    engine = CoreHarness(
        order=order,
        policy=policy,
        num_blocks=600,  # 16 for each of 32 requests
        max_num_seqs=32,
        max_num_batched_tokens=256,
        **knobs,
    )
    for i in range(size):
        engine.submit(f"a{i}", [i, 1, 2], 60, origin=Origin(user="a"))
    for _ in range(8):
        engine.step()
    return engine


def running(engine: CoreHarness) -> str:
    return "".join(sorted(one.request_id[0] for one in engine.scheduler.running))


@pytest.mark.parametrize("policy", POLICIES_AT_ONCE)
def test_the_last_slots_are_for_users_who_have_none(policy: str) -> None:
    engine = crowd(policy)
    assert running(engine) == "a" * 30
    assert engine.ends == {}
    for user in "bc":
        for i in range(3):
            engine.submit(f"{user}{i}", [7, i], 30, origin=Origin(user=user))
        engine.step()
        engine.step()
        assert running(engine).count(user) == 1
    engine.submit("d", [9], 4, origin=Origin(user="d"))
    engine.step()
    assert running(engine) == "a" * 30 + "bc"
    engine.finish()
    assert len(engine.ends) == 100 + 6 + 1


@pytest.mark.parametrize("policy", POLICIES_AT_ONCE)
def test_who_is_alone_leaves_no_slots_in_other_orders(policy: str) -> None:
    assert running(crowd(policy, "fcfs")) == "a" * 32


@pytest.mark.parametrize("policy", POLICIES_AT_ONCE)
def test_who_has_no_slot_goes_before_who_has_some(policy: str) -> None:
    """Though the former was served more."""
    engine = crowd(policy)
    engine.submit("b0", [1] * 40, 2, origin=Origin(user="b"))
    while not engine.ends:
        engine.step()
    engine.submit("b1", [5], 2, origin=Origin(user="b"))
    while len(engine.ends) < 2:
        engine.step()
    assert list(engine.ends) == ["b0", "b1"]


def chats_beside(engine: CoreHarness, num_steps: int) -> list[int]:
    """How many steps the requests of 8 chats of b took, each of which pauses for some steps after
    a reply of 8 tokens."""
    begun: dict[str, int] = {}
    took: list[int] = []
    resting = {n: n for n in range(8)}
    for step in range(num_steps):
        for chat, until in list(resting.items()):
            if step >= until:
                del resting[chat]
                begun[f"b{chat}-{step}"] = step
                engine.submit(f"b{chat}-{step}", [7, chat, step], 8, origin=Origin(user="b"))
        engine.step()
        for name in [name for name in begun if name in engine.ends]:
            took.append(step - begun.pop(name))
            resting[int(name[1])] = step + 5 + int(name[1])
    return took


@pytest.mark.parametrize("policy", POLICIES_AT_ONCE)
def test_chats_that_pause_keep_their_slots(policy: str) -> None:
    """Long replies of another user got them one by one, and eight chats queued for the last."""
    engine = crowd(policy, size=300)
    # The first ones wait until some of the long replies have ended.
    took = chats_beside(engine, 400)[20:]
    assert sum(took) / len(took) <= 15


@pytest.mark.parametrize("policy", POLICIES_AT_ONCE)
def test_slots_that_were_left_are_taken_again_after_a_while(policy: str) -> None:
    engine = crowd(policy, size=300)
    chats_beside(engine, 200)
    most = 0
    for seconds in (0.0, RECENT_SECONDS + 1.0):
        engine.clock.advance(seconds)
        before, most = most, 0
        for _ in range(30):
            engine.step()
            most = max(most, running(engine).count("a"))
    assert before < most == 30


def test_what_users_asked_for_is_kept_when_a_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed step has no time of its own: its requests are preempted at the last plan's."""
    moments: list[float] = []

    class Watched(Fair):
        def step_begins(
            self, running: Sequence[Request], free: int, slots: int, now: float
        ) -> None:
            moments.append(now)

    monkeypatch.setitem(ORDERS, "fair", Watched)
    engine = CoreHarness(order="fair")
    engine.submit("a", [1, 2, 3], 4)
    engine.step()
    engine.runner.fail_steps.add(2)
    engine.step()
    assert len(engine.ends) == 1
    assert moments == sorted(moments)
    assert moments[-2] == moments[-1] > 0  # planned, and preempted when it had failed
