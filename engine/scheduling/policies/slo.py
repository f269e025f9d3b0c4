"""Goodput under latency targets."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.api.knobs import Knobs
from engine.api.lifecycle import RequestState
from engine.api.telemetry import StepRecord
from engine.api.waiting import Cause, Wait
from engine.batch.plan import Request
from engine.scheduling.composer import Policy, StepComposer
from engine.scheduling.steptime import StepTime, Work
from engine.scheduling.triage import Job, on_time

# The share of a target to aim at. The rest covers the errors of predictions.
_AIM = 0.97
# A request that is behind its pace by more than the time of this many tokens counts as hopeless.
_GRACE = 16
# Steps over which a request that is behind its pace catches up.
_REPAY = 8
# Prompts are paced to end within this share of their TTFT target.
_PATIENCE = 0.9
# Prompt tokens that make a step longer by no more than this share are not worth delaying.
_FREE = 0.1
# Late prompts get one token for this many tokens of prompts in time.
_OVERTAKING = 32
# How many waiting requests are examined: the first of those that may be in time, and the first of
# the queue.
_WINDOW, _HEAD = 128, 16


class Slo(Policy):
    """As many requests a second as possible that meet `ttft_target_ms` and `tpot_target_ms`.

    This is DistServe's goodput (OSDI'24, section 2.1), on one device. An online model of step time
    (`engine.scheduling.steptime`) determines three things for a step that starts at s. T is the
    TPOT target.

    1. The longest time that the step may take. TPOT is a mean, so token g + 1 of a request is due
       at f + g T, where f is the time of its first token, and an early request may spend its lead.
       After a step of T it is ahead by b = f + g T - (s + T). The limit is T + b for the smallest
       b. A negative b counts for an eighth, so that it is made up over several steps. Requests that
       can no longer meet their targets do not count. Nor may a step outlast the deadlines of the
       prompts that it completes.
    2. The prompts and their order. The deadline of a prompt is its arrival plus the TTFT target. Of
       the prompts whose deadline is ahead, `engine.scheduling.triage.on_time` selects the most that
       can be in time, earliest deadline first, at the tokens a second that steps of T leave.
       Prompts that resume after a preemption go before them.
    3. How many prompt tokens the step computes. Step time is convex in its tokens, so an even pace
       is the cheapest: the largest mean rate up to any deadline ("optimal available", Yao, Demers,
       Shenker, FOCS'95, section 5). If prompt tokens came at a larger rate over the last TTFT
       target, that rate is the pace. Tokens that are nearly free beside the decodes are always
       computed.

    Decodes run in every step. Prompts that are late, or would make others late, go last, in the
    queue's order. They get at least one token for 32 of the others. When a late prompt is due but
    cannot be admitted, no other is admitted, so that none starves.

    Until the model has learned from eight steps, a step is limited by the knob
    `max_num_batched_tokens` alone. Later the limit is also twice the tokens of the largest step so
    far.
    """

    name = "slo"

    def __init__(self) -> None:
        self._model = StepTime()
        self._flights: deque[_Flight] = deque()
        self._ended = 0.0
        # Waiting requests that may still be in time, by arrival.
        self._fresh: deque[Request] = deque()
        # How many tokens of each of them, by ordinal, were cached when it was first examined.
        self._cached: dict[int, int] = {}
        # Tokens owed to late prompts, which get them before other prompts get any.
        self._owed = 0.0
        # Recent arrival rate of prompt tokens, a second, and when it was computed.
        self._flow = self._flow_at = 0.0
        self._ttft = math.inf

    def observe(self, record: StepRecord) -> None:
        flights = self._flights
        while flights and flights[0].planned < record.start:
            flights.popleft()
        if flights and flights[0].planned == record.start:
            flight = flights.popleft()
            if not record.error:
                self._model.learn(flight.work, record.duration)
        self._ended = record.end

    def repeats(self, *, num_waiting: int, num_slots: int) -> bool:
        return not num_waiting

    def repeated(
        self, requests: Sequence[Request], starts: Sequence[float], ends: Sequence[float]
    ) -> None:
        count = len(requests)
        read = sum([request.num_computed_tokens for request in requests]) - count * len(ends)
        for start, end in zip(starts, ends, strict=True):
            self._decay(start)
            read += count
            self._model.learn(Work(count, count, read), end - start)
        self._owed, self._ended = 0.0, ends[-1]

    def compose(self, step: StepComposer) -> None:
        self._fresh.extend(step.arrived)
        aim = _Aim.of(step.knobs, self._begins(step.now))
        self._ttft = aim.ttft
        self._decay(step.now)
        self._flow += sum(request.num_tokens for request in step.arrived) / aim.ttft
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
            elif not is_barred and not step.is_barred(job.request):
                is_barred = not step.admit(job.request)
        head = step.next_waiting
        if head is not None and not is_barred:
            passed = timely and all(job.request is not head for job in timely)
            step.hold(Wait(Cause.TIMELY) if passed else Wait(Cause.TIME, (step.max_budget,)))
        self._account(step, timely, late)

    def _decay(self, now: float) -> None:
        """Let the recent arrivals count less."""
        self._flow *= math.exp((self._flow_at - now) / self._ttft)
        self._flow_at = now

    def _begins(self, now: float) -> float:
        """The expected start of the step: now, or after the steps in flight."""
        if not self._flights:
            return now
        started = max(self._flights[0].planned, self._ended)
        return max(now, started + sum(flight.seconds for flight in self._flights))

    def _rate(self, step: StepComposer, work: Work, aim: _Aim) -> float:
        """Prompt tokens a second that can be computed beside these decodes."""
        model = self._model
        if not model.ready:
            return math.inf
        seconds = max(aim.tpot, (1 + _FREE) * model.seconds(work))
        count = max(model.fit(work, 0, step.knobs.max_num_batched_tokens, seconds), 1)
        return count / model.seconds(work.prefill(0, count))

    def _sorted(
        self, step: StepComposer, prompts: list[Request], rate: float, aim: _Aim
    ) -> tuple[list[Job], list[Job]]:
        """Split prompts into those that can be in time and late ones, each in computing order."""
        resumed, jobs, late = [], [], []
        others, window = prompts, []
        if step.num_slots:
            others, window = [*prompts, *step.waiting(_HEAD)], self._window(step, aim)
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
                # A late prompt is paced as if it had arrived now. A partly computed one is paced as
                # if it had arrived early enough to have got that far.
                done = request.num_computed_tokens / request.num_tokens
                deadline = aim.begins + aim.ttft * (1 - _PATIENCE * done)
                late.append(Job(deadline, request.ordinal, request.gap, request))
        return timely, late

    def _window(self, step: StepComposer, aim: _Aim) -> list[Request]:
        """The first of the waiting requests that may still be in time, by arrival."""
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
        """The step's time limit, in seconds."""
        tpot = aim.tpot
        aheads = [ahead for r in decodes if (ahead := aim.ahead(r)) >= -_GRACE * tpot]
        if aheads:
            least = min(aheads)
            return tpot + (least if least >= 0 else least / _REPAY)
        # No decode can miss its target in this step. A target too short for the decodes beside one
        # prompt token cannot be met at all, so it sets no limit.
        return tpot if self._model.seconds(work.prefill(0, 1)) <= tpot else math.inf

    def _tokens(
        self, knobs: Knobs, work: Work, order: Sequence[Job], limit: float, aim: _Aim
    ) -> int:
        """The step's number of prompt tokens."""
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
        """Prompt tokens that an even pace needs of a step; at least the nearly free ones."""
        seconds = self._model.seconds
        total, rate = 0, self._flow if order else 0.0
        for job in order:
            total += job.tokens
            left = job.deadline - aim.begins - (1 - _PATIENCE) * aim.ttft
            rate = max(rate, total / left if left > 0 else math.inf)
        low = self._model.fit(work, 0, room, (1 + _FREE) * seconds(work))
        if low >= rate * seconds(work.prefill(0, low)):
            return low
        # Search for the fewest tokens that achieve this rate.
        high = room
        while high - low > 1:
            middle = (low + high) // 2
            if middle >= rate * seconds(work.prefill(0, middle)):
                high = middle
            else:
                low = middle
        return high

    def _account(self, step: StepComposer, timely: Sequence[Job], late: Sequence[Job]) -> None:
        """Record the planned work, and update the debt to late prompts."""
        rows = step.rows
        work = Work.of_decodes([row.start for row in rows.values() if not row.prefill])
        work = work._replace(moved=step.moved)
        for row in rows.values():
            if row.prefill:
                work = work.prefill(row.start, row.count)
        in_time, behind = (
            sum(rows[job.request].count for job in jobs if job.request in rows)
            for jobs in (timely, late)
        )
        # The debt to late prompts is at most the need of one of them. While none is known, as when
        # no slot is free and the queue is not examined, it is at most the budget of a step.
        most = max([job.tokens for job in late] or [step.knobs.max_num_batched_tokens])
        earned = min(in_time / _OVERTAKING, max(0.0, most - self._owed))
        self._owed = max(0.0, self._owed + earned - behind) if late or step.num_waiting else 0.0
        if rows:
            self._flights.append(_Flight(step.now, work, self._model.seconds(work)))


@dataclass(frozen=True, slots=True)
class _Flight:
    """A planned step that has not ended: its planning time, work and expected seconds."""

    planned: float
    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class _Aim:
    """Targets of a step, in seconds; `begins` is its start."""

    begins: float
    ttft: float
    tpot: float

    @staticmethod
    def of(knobs: Knobs, begins: float) -> _Aim:
        return _Aim(begins, _AIM * knobs.ttft_target_ms / 1e3, _AIM * knobs.tpot_target_ms / 1e3)

    def ahead(self, request: Request) -> float:
        """Seconds that a decode is ahead of its pace after a step of `tpot`; -inf if hopeless."""
        first, gaps = request.timings.first_token, request.num_tokens - request.num_prompt_tokens
        if first is None:  # Its first token is in flight.
            first = self.begins
        if first - request.timings.arrival > self.ttft / _AIM:
            return -math.inf
        return first + gaps * self.tpot - (self.begins + self.tpot)
