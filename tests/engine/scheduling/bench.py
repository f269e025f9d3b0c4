"""Bench: the parts that a composer works on, for tests of one step."""

from __future__ import annotations

from engine.api.config import EngineConfig
from engine.api.knobs import Knobs
from engine.api.lifecycle import RequestState
from engine.batch.plan import Request
from engine.cache.manager import KVCache, Reclaim
from engine.scheduling.composer import Books, StepComposer
from engine.scheduling.forks import Forks
from engine.scheduling.groups import Groups
from engine.scheduling.queue import Priority
from engine.scheduling.swap_cost import SwapCost
from engine.scheduling.swaps import Swaps
from tests.support.harness import make_request, say


class Bench:
    """The parts that a composer works on."""

    def __init__(self, num_blocks: int = 8, num_host_blocks: int = 0, **knobs: object) -> None:
        config = EngineConfig(
            num_blocks=num_blocks, block_size=4, num_host_blocks=num_host_blocks, max_model_len=64
        )
        self.knobs = Knobs(**({"watermark": 0.0} | knobs))  # type: ignore[arg-type]
        self.cache = KVCache(config, "key")
        self.running: list[Request] = []
        self.waiting = Priority(self.knobs)
        self.groups = Groups()
        self.reclaim = Reclaim(self.cache)
        swaps = Swaps(self.cache, SwapCost())
        self.books = Books(
            self.cache,
            self.running,
            self.waiting,
            self.groups,
            self.reclaim,
            swaps,
            Forks(self.cache),
            None,
        )

    def composer(self) -> StepComposer:
        return StepComposer(self.knobs, self.books)

    def run(self, ordinal: int, computed: int, prompt: int, **fields: object) -> Request:
        """A request that runs, `computed` of whose tokens are computed."""
        request = make_request(ordinal, range(ordinal * 100, ordinal * 100 + prompt), **fields)
        request.state = RequestState.RUNNING
        request.num_computed_tokens = computed
        self.cache.extend(request, computed)
        if computed >= prompt:
            say(request, range(computed + 1 - prompt))
        self.running.append(request)
        return request

    def wait(self, ordinal: int, prompt: int, **fields: object) -> Request:
        request = make_request(ordinal, range(ordinal * 100, ordinal * 100 + prompt), **fields)
        self.waiting.push(request)
        return request
