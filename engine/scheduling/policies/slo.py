"""Goodput under latency targets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.knobs import Knobs
from engine.request import Request, RequestState
from engine.scheduling.composer import StepComposer
from engine.scheduling.policy import Policy
from engine.scheduling.steptime import StepTime, Work
from engine.scheduling.triage import Job, on_time
from engine.telemetry import StepRecord

# Share of a target that is aimed at: the rest covers what predictions are off by.
_AIM = 0.97
# A request further behind its pace than this many tokens' time is given up.
_GRACE = 16
# Steps over which a request that is behind its pace catches up.
_REPAY = 8
# Prompts are paced to end within this share of their TTFT target.
_PATIENCE = 0.9
# Prompt tokens that make a step longer by no more than this share are not worth delaying.
_FREE = 0.1
# Late prompts get one token for so many of the others.
_OVERTAKING = 32
# Waiting requests that are looked at: of those that may be in time, and of the queue's head.
_WINDOW, _HEAD = 128, 16


class Slo(Policy):
    """As many requests a second as possible that meet `ttft_target_ms` and `tpot_target_ms`.

    DistServe's goodput (OSDI'24, section 2.1), on one device. From an online model of step time
    (`engine.scheduling.steptime`) come, for a step that starts at s, with T the TPOT target:

    1. Its longest time. TPOT is a mean, so token g + 1 of a request is due at f + g T, f being the
       time of its first, and what was early may be spent: after a step of T it is ahead by
       b = f + g T - (s + T). The limit is T + b for the smallest b; a negative one counts an
       eighth, to be made up over steps. Requests that can no longer meet their targets do not
       count. Nor may a step outlast the deadlines of the prompts that it completes.
    2. The prompts and their order. Of those whose deadline, arrival plus TTFT target, is ahead,
       `engine.scheduling.triage.on_time` takes the most that can be in time, earliest deadline
       first, at the tokens a second that steps of T leave. Those that resume after a preemption go
       before them.
    3. How many prompt tokens. Step time is convex in its tokens, so an even pace is the cheapest:
       the largest mean rate up to any deadline ("optimal available", Yao, Demers, Shenker, FOCS'95,
       section 5), or that at which prompt tokens came over the last TTFT target, if it is larger;
       and what is nearly free beside the decodes in any case.

    Decodes run in every step. Prompts that are late, or would make others late, go last, in the
    queue's order. They get at least one token for 32 of the others, and when it is the turn of
    one that cannot be admitted, nothing else is, so that none starves.

    Until the model has seen eight steps, a step takes what the knob `max_num_batched_tokens`
    allows; later at most that, and at most twice the tokens of the largest step seen.
    """

    name = "slo"

    def __init__(self) -> None:
        self._model = StepTime()
        self._flights: deque[_Flight] = deque()
        self._ended = 0.0
        # Those that wait and may be in time, by arrival; and what was cached of them at first.
        self._fresh: deque[Request] = deque()
        self._cached: dict[int, int] = {}
        # Tokens that late prompts are to get before others.
        self._owed = 0.0
        # Prompt tokens a second that came of late.
        self._flow = self._flow_at = 0.0

    def observe(self, record: StepRecord) -> None:
        flights = self._flights
        while flights and flights[0].planned < record.start:
            flights.popleft()
        if flights and flights[0].planned == record.start:
            flight = flights.popleft()
            if not record.error:
                # One that was planned ahead began when the one before it ended.
                self._model.learn(flight.work, record.end - max(record.start, self._ended))
        self._ended = record.end

    def compose(self, step: StepComposer) -> None:
        self._fresh.extend(step.arrived)
        aim = _Aim.of(step.knobs, self._begins(step.now))
        self._flow *= math.exp((self._flow_at - step.now) / aim.ttft)
        self._flow += sum(request.num_tokens for request in step.arrived) / aim.ttft
        self._flow_at = step.now
        wanting = [request for request in step.running if request.wants_tokens]
        prompts = [request for request in wanting if request.is_prefill]
        decodes = [request for request in wanting if not request.is_prefill]
        work = Work.of_decodes([request.num_computed_tokens for request in decodes])
        timely, late = self._sorted(step, prompts, self._rate(step, work, aim), aim)
        is_due = bool(late) and self._owed >= late[0].tokens
        order = [late[0], *timely, *late[1:]] if is_due else timely + late
        limit = self._limit(decodes, work, aim)
        step.limit_budget(len(decodes) + self._tokens(step.knobs, work, order, limit, aim))
        for request in decodes:
            step.schedule(request)
        is_barred = not step.num_slots
        for job in order:
            if step.budget <= 0:
                break
            if job.request.state is RequestState.RUNNING:
                step.schedule(job.request)
            elif not is_barred:
                is_barred = not step.admit(job.request)
        head = step.next_waiting
        if head is not None and not is_barred:
            passed = timely and all(job.request is not head for job in timely)
            step.hold(
                "those that can still meet the TTFT target go first"
                if passed
                else f"no time: the step's {step.max_budget} tokens are given"
            )
        self._account(step, timely, late)

    def _begins(self, now: float) -> float:
        """When the step is expected to start: at once, or after those in flight."""
        if not self._flights:
            return now
        started = max(self._flights[0].planned, self._ended)
        return max(now, started + sum(flight.seconds for flight in self._flights))

    def _rate(self, step: StepComposer, work: Work, aim: _Aim) -> float:
        """Prompt tokens a second, beside these decodes."""
        model = self._model
        if not model.ready:
            return math.inf
        seconds = max(aim.tpot, (1 + _FREE) * model.seconds(work))
        count = max(model.fit(work, 0, step.knobs.max_num_batched_tokens, seconds), 1)
        return count / model.seconds(work.prefill(0, count))

    def _sorted(
        self, step: StepComposer, prompts: list[Request], rate: float, aim: _Aim
    ) -> tuple[list[Job], list[Job]]:
        """The prompts to compute in time, and late ones, each in their order."""
        resumed, jobs, late = [], [], []
        others, window = prompts, []
        if step.num_slots:
            others, window = [*prompts, *step.waiting(_HEAD)], self._look(step, aim)
        for request in dict.fromkeys([*others, *window]):
            tokens = request.gap
            if request.state is RequestState.WAITING:
                tokens -= self._cached.get(request.ordinal, 0)
            deadline = request.timings.arrival + aim.ttft
            if request.timings.first_token is not None:
                resumed.append(Job(aim.begins + aim.ttft, request.ordinal, tokens, request))
            elif deadline > aim.begins:
                jobs.append(Job(deadline, request.ordinal, tokens, request))
        timely = resumed + on_time(jobs, aim.begins, rate)
        kept = {job.ordinal for job in timely}
        for request in others:
            if request.ordinal not in kept:
                # Paced as if it had come now, or when it would have had to be begun.
                done = request.num_computed_tokens / request.num_tokens
                deadline = aim.begins + aim.ttft * (1 - _PATIENCE * done)
                late.append(Job(deadline, request.ordinal, request.gap, request))
        return timely, late

    def _look(self, step: StepComposer, aim: _Aim) -> list[Request]:
        """The first of those that wait and may be in time."""
        fresh = self._fresh
        window: list[Request] = []
        while fresh and len(window) < _WINDOW:
            request = fresh.popleft()
            ahead = request.timings.arrival + aim.ttft > aim.begins
            if ahead and request.state is RequestState.WAITING:
                window.append(request)
                if request.ordinal not in self._cached:
                    self._cached[request.ordinal] = step.num_cached(request)
            else:
                self._cached.pop(request.ordinal, None)
        fresh.extendleft(reversed(window))
        return window

    def _limit(self, decodes: Sequence[Request], work: Work, aim: _Aim) -> float:
        """Longest time of the step, in seconds."""
        tpot = aim.tpot
        aheads = [ahead for r in decodes if (ahead := aim.ahead(r)) >= -_GRACE * tpot]
        if aheads:
            least = min(aheads)
            return tpot + (least if least >= 0 else least / _REPAY)
        # Nothing to lose; and no use in targets below what a step of one token takes.
        return tpot if self._model.seconds(work.prefill(0, 1)) <= tpot else math.inf

    def _tokens(
        self, knobs: Knobs, work: Work, order: Sequence[Job], limit: float, aim: _Aim
    ) -> int:
        """Prompt tokens of the step."""
        model = self._model
        most = knobs.max_num_batched_tokens
        if model.ready:
            most = min(most, 2 * model.largest)
        room = max(most - work.tokens, 0)
        if not model.ready:
            return room
        given = 0
        beside = work
        for job in order:
            start = job.request.num_tokens - job.tokens
            count = model.fit(beside, start, min(job.tokens, room - given), limit)
            given += count
            if count < job.tokens:
                break
            beside = beside.prefill(start, count)
            limit = min(limit, max(job.deadline - aim.begins, model.seconds(beside)))
        else:
            given += model.fit(beside, 0, room - given, limit)
        if not work.tokens:
            return max(given, 1)
        return min(given, self._pace(work, order, room, aim))

    def _pace(self, work: Work, order: Sequence[Job], room: int, aim: _Aim) -> int:
        """Prompt tokens that an even pace asks of a step, or that are nearly free beside `work`."""
        seconds = self._model.seconds
        total, rate = 0, self._flow if order else 0.0
        for job in order:
            total += job.tokens
            left = job.deadline - aim.begins - (1 - _PATIENCE) * aim.ttft
            rate = max(rate, total / left if left > 0 else math.inf)
        low = self._model.fit(work, 0, room, (1 + _FREE) * seconds(work))
        if low >= rate * seconds(work.prefill(0, low)):
            return low
        # The fewest tokens that are computed at this rate.
        high = room
        while high - low > 1:
            middle = (low + high) // 2
            if middle >= rate * seconds(work.prefill(0, middle)):
                high = middle
            else:
                low = middle
        return high

    def _account(self, step: StepComposer, timely: Sequence[Job], late: Sequence[Job]) -> None:
        """Take down what the step was given."""
        rows = step.rows
        work = Work.of_decodes([row.start for row in rows.values() if not row.prefill])
        for row in rows.values():
            if row.prefill:
                work = work.prefill(row.start, row.count)
        in_time, behind = (
            sum(rows[job.request].count for job in jobs if job.request in rows)
            for jobs in (timely, late)
        )
        # No more than one of them may need; a step's, while no slot is free and nobody looks.
        most = max([job.tokens for job in late] or [step.knobs.max_num_batched_tokens])
        earned = min(in_time / _OVERTAKING, max(0.0, most - self._owed))
        self._owed = max(0.0, self._owed + earned - behind) if late or step.num_waiting else 0.0
        if rows:
            self._flights.append(_Flight(step.now, work, self._model.seconds(work)))


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was planned and has not ended."""

    planned: float
    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class _Aim:
    """Targets of a step, in seconds; `begins` is when it starts."""

    begins: float
    ttft: float
    tpot: float

    @staticmethod
    def of(knobs: Knobs, begins: float) -> _Aim:
        return _Aim(begins, _AIM * knobs.ttft_target_ms / 1e3, _AIM * knobs.tpot_target_ms / 1e3)

    def ahead(self, request: Request) -> float:
        """By how much a decode is ahead of its pace after a step of `tpot`; -inf without hope."""
        first, gaps = request.timings.first_token, request.num_tokens - request.num_prompt_tokens
        if first is None:  # In flight.
            first = self.begins
        if first - request.timings.arrival > self.ttft / _AIM:
            return -math.inf
        return first + gaps * self.tpot - (self.begins + self.tpot)
