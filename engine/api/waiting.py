"""Wait: why a request waits, as a value and in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum, auto


class Cause(StrEnum):
    """Why a request waits. `POLICY` stands for a policy's own rule."""

    NEXT = auto()
    PAUSED = auto()
    DRAINING = auto()
    LAST_STEP = auto()
    FORK = auto()
    PREEMPTION = auto()
    SLOT = auto()
    BUDGET = auto()
    WHOLE_PROMPT = auto()
    BLOCKS = auto()
    BATCH = auto()
    BATCH_OR_WINDOW = auto()
    BATCH_BEFORE = auto()
    RUN_BEFORE = auto()
    PARTIAL_PREFILLS = auto()
    PREFILLS = auto()
    DECODES = auto()
    INTERRUPTION = auto()
    TIMELY = auto()
    TIME = auto()
    POLICY = auto()


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a request waits.

    Attributes:
        numbers: as many as the cause's sentence has placeholders.
        of: for `FORK` the forked request, for `POLICY` the sentence.
        ahead: requests before it in the queue. If there are any, cause and numbers are those of the
            head.
    """

    cause: Cause
    numbers: tuple[int, ...] = ()
    of: str = ""
    ahead: int = 0


_SENTENCES = {
    Cause.NEXT: "it is next",
    Cause.PAUSED: "paused",
    Cause.DRAINING: "draining: nothing new is admitted",
    Cause.LAST_STEP: "its last step is still running",
    Cause.FORK: "the prompt it forks from, of {of}, is being computed",
    Cause.PREEMPTION: "the pool just ran out of blocks",
    Cause.SLOT: "no slot: {} of {} are taken",
    Cause.BUDGET: "no budget: the step's {} tokens are used up",
    Cause.WHOLE_PROMPT: "no budget: its {} tokens must run in one step, {} are left",
    Cause.BLOCKS: "no blocks: it needs {}, {} of {} are free for it",
    Cause.BATCH: "batch {}/{}",
    Cause.BATCH_OR_WINDOW: "batch {}/{}, or in {} ms",
    Cause.BATCH_BEFORE: "batch {}/{}, until the batch before has ended",
    Cause.RUN_BEFORE: "batch {}/{}, until the requests that run have ended",
    Cause.PARTIAL_PREFILLS: "{} of at most {} prompts are partly computed",
    Cause.PREFILLS: "decodes go on after the prompts that are being computed",
    Cause.DECODES: "decodes go on: prompts went before them in the last step",
    Cause.INTERRUPTION: (
        "decodes go on: {} wait, {} would interrupt the {} that run, else {} more steps"
    ),
    Cause.TIMELY: "those that can still meet the TTFT target go first",
    Cause.TIME: "no time: the step's {} tokens are used up",
    Cause.POLICY: "{of}",
}


def in_words(wait: Wait | None) -> str:
    """Why a request waits, as a sentence for people; empty if it does not."""
    if wait is None:
        return ""
    sentence = _SENTENCES[wait.cause].format(*wait.numbers, of=wait.of)
    if not wait.ahead:
        return sentence
    return f"behind {wait.ahead}" + ("" if wait.cause is Cause.NEXT else f": {sentence}")
