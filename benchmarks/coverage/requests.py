"""Requests: what each model is asked, and how a core is made to serve it the hard way."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.coverage.tiny import VOCAB_SIZE
from engine.api.client import LoadRequest, Submission
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.sampling import SamplingParams
from engine.core.core import EngineCore
from engine.serving.loading import LoadedModel

OUTPUT_TOKENS = 32
MAX_LEN = 256
# The first six take 403 tokens together. The pool holds 256, so that one of them must give way.
_POOL_BLOCKS = 16
_SEQS, _STEP_TOKENS = 6, 24
_MOST_STEPS = 4000

_SHARED, _OWN = 48, (12, 30)
_BETWEEN, _AFTER = (1, 7, 20), (45, 110)


class BadEndError(Exception):
    """A request ended otherwise than by its length, or never; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Served:
    """The core's replies to the requests.

    Attributes:
        tokens: the output of each request.
        missed: what was to happen on the way, and did not.
    """

    tokens: tuple[tuple[int, ...], ...]
    missed: tuple[str, ...]


def load_request(folder: str, dtype: str) -> LoadRequest:
    """How a row's model is loaded."""
    return LoadRequest(
        model=folder,
        device="cpu",
        dtype=dtype,
        num_blocks=_POOL_BLOCKS,
        max_model_len=MAX_LEN,
        max_num_seqs=_SEQS,
        max_num_batched_tokens=_STEP_TOKENS,
    )


def make_prompts() -> list[list[int]]:
    """Mixed lengths. The first begins with the same three blocks as one that comes when they are
    computed, and while they are still there."""
    rng = random.Random(11)

    def some(count: int) -> list[int]:
        return [rng.randrange(3, VOCAB_SIZE) for _ in range(count)]

    shared = some(_SHARED)
    first, again = (shared + some(count) for count in _OWN)
    return [first, *map(some, _BETWEEN), again, *map(some, _AFTER)]


def serve(loaded: LoadedModel, prompts: list[list[int]]) -> Served:
    """Greedy outputs of prompts that arrive one a step, cut into steps of 24 tokens, in a pool too
    small for all of them.

    Raises:
        BadEndError: a request was refused, failed, or did not finish.
    """
    steps = 0
    core = EngineCore(
        config=loaded.config,
        runner=loaded.runner,
        shape=loaded.shape,
        card=loaded.card,
        key=loaded.key,
        eos_token_ids=frozenset(),
        knobs=Knobs(max_num_seqs=_SEQS, max_num_batched_tokens=_STEP_TOKENS, watermark=0.0),
        clock=lambda: float(steps),
        swap_rate=loaded.swap_rate,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS)
    tokens: list[list[int]] = [[] for _ in prompts]
    ended: set[str] = set()
    while len(ended) < len(prompts):
        if steps < len(prompts):
            core.add_request(Submission(request_id=str(steps)), prompts[steps], sampling)
        for output in core.step():
            tokens[int(output.request_id)].extend(output.token_ids)
            if output.end is not None:
                ended.add(output.request_id)
                if output.end.reason is not FinishReason.LENGTH:
                    why = output.end.error.message if output.end.error else output.end.reason
                    raise BadEndError(f"request {output.request_id} ended: {why}")
        core.check()
        steps += 1
        if steps > _MOST_STEPS:
            raise BadEndError(f"{len(prompts) - len(ended)} requests do not come to an end")
    return Served(tuple(map(tuple, tokens)), _missed(core))


def _missed(core: EngineCore) -> tuple[str, ...]:
    totals = core.snapshot().totals
    mixed = any(one.prefill_rows and one.decode_rows for one in core.records.since(0))
    happened = {
        "no step with prompts and decodes": mixed,
        "no preemption": totals.preemptions > 0,
        "no prefix hit": totals.prefix_hit_tokens > 0,
    }
    return tuple(what for what, did in happened.items() if not did)
