"""Swaps: victims whose computed tokens are in host memory, and the copies made for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from engine.api.knobs import Knobs
from engine.batch.plan import Request
from engine.cache.manager import KVCache
from engine.scheduling.swap_cost import SwapCost

Pairs = list[tuple[int, int]]


class Copies(NamedTuple):
    """A plan's copies to host memory or back: their requests, and the blocks."""

    requests: tuple[Request, ...]
    pairs: tuple[tuple[int, int], ...]


NO_COPIES = Copies((), ())


class Swaps:
    """Preemption by swapping (PagedAttention, SOSP'23, section 4.5): a victim's blocks are copied
    to host memory, and back when it is admitted again.

    Plans run in the order in which they were made. So the plan after the one that writes a host
    block may read it, and the block can be reallocated as soon as the plan that reads it is made.

    Attributes:
        exist: whether there is a host pool.
        cost: cost of either way of preemption.
        out: (block, host block) that the next plan copies, by victim.
        back: (host block, block) that the next plan copies, by readmitted request.
    """

    def __init__(self, cache: KVCache, cost: SwapCost) -> None:
        self.cost = cost
        self.out: dict[Request, Pairs] = {}
        self.back: dict[Request, Pairs] = {}
        self._cache = cache
        self._host = cache.host
        self.exist = cache.host.num_blocks > 0
        # For the last victim: the requested way, the way used, and why.
        self._last = ("", "", "")

    @property
    def moved(self) -> int:
        """Bytes that the next plan copies."""
        pairs = (*self.out.values(), *self.back.values())
        return self.cost.block_bytes * sum(map(len, pairs))

    def swap_out(self, victim: Request, running: Collection[Request], knobs: Knobs) -> bool:
        """Copy a victim's computed tokens to host memory if that is worth it; False if they are
        recomputed.

        Call this while it still has its block table.
        """
        count = self._cache.blocks_for(victim.num_computed_tokens)
        if not self.exist or not count or knobs.preemption == "recompute":
            return False
        if count > self._host.num_free:
            free = f"{self._host.num_free} blocks of host memory were free"
            self._note(knobs, "recompute", f"{free}, the last victim needed {count}")
            return False
        if not self._is_worth_it(victim, count, running, knobs):
            return False
        victim.host_blocks = self._host.allocate(count, victim.ordinal)
        self.out[victim] = list(zip(victim.block_table[:count], victim.host_blocks, strict=True))
        return True

    def _is_worth_it(
        self, victim: Request, num_blocks: int, running: Collection[Request], knobs: Knobs
    ) -> bool:
        """Whether to copy: the knob says so, or it says auto and copying is cheaper."""
        if knobs.preemption == "swap":
            self._note(knobs, "swap", "")
            return True
        budget = knobs.max_num_batched_tokens
        seconds = self.cost.compare(victim, num_blocks, running, budget)
        if seconds is None:
            self._note(knobs, "recompute", "too few steps were measured yet")
            return False
        copying, computing = seconds
        costs = f"{_ms(copying)} ms to swap the last victim, {_ms(computing)} ms to recompute it"
        self._note(knobs, "swap" if copying < computing else "recompute", costs)
        return copying < computing

    def _note(self, knobs: Knobs, way: str, why: str) -> None:
        self._last = (knobs.preemption, way, why)

    def recall(self, victim: Request) -> bool:
        """Cancel a request's copy back if no plan has it yet; the request stays swapped out."""
        return self.back.pop(victim, None) is not None

    def restore(self, request: Request, hit: list[int]) -> None:
        """Start the table of a request that is admitted with its cached prefix, and with blocks for
        the rest of its tokens, which the next plan copies back. The caller has checked that the
        pool has the blocks.
        """
        num_tokens, away = request.num_computed_tokens, request.host_blocks[len(hit) :]
        self._cache.adopt(request, hit)
        blocks = self._cache.pool.allocate(len(away), request.ordinal)
        request.block_table += blocks
        # The copied tokens are there only after the step that copies them, as after a fork.
        request.num_computed_tokens = num_tokens
        self.back[request] = list(zip(away, blocks, strict=True))

    def drop(self, request: Request) -> None:
        """Free the host blocks of a swapped-out request: it ends, or starts anew."""
        self.out.pop(request, None)
        self.back.pop(request, None)
        self._host.free(request.host_blocks)
        request.host_blocks = []
        request.num_computed_tokens = 0

    def drain(self) -> tuple[Copies, Copies]:
        """Remove and return the next plan's copies. Host blocks copied back are free then."""
        out, back = _copies(self.out), _copies(self.back)
        for request in back.requests:
            self._host.free(request.host_blocks)
            request.host_blocks = []
        self.out, self.back = {}, {}
        return out, back

    def effective(self, knobs: Knobs) -> tuple[str, str] | None:
        """The effective value of the knob `preemption`, and why; None if as requested."""
        if knobs.preemption == "recompute":
            return None
        if not self.exist:
            return "recompute", "no host memory is set aside for it (swap_memory)"
        asked, way, why = self._last
        return (way, why) if why and asked == knobs.preemption else None

    def check(self, running: Collection[Request], waiting: Collection[Request]) -> None:
        """Compare the accounting of the host pool with the blocks that requests hold.

        Raises:
            AssertionError: it does not balance.
        """
        holders = [request for request in (*running, *waiting) if request.host_blocks]
        self._host.check((request.ordinal, request.host_blocks) for request in holders)
        assert set(self.out) <= set(holders), "a copy for a request that is not swapped out"
        assert {request for request in running if request.host_blocks} == set(self.back)
        for request in holders:
            kept = self._cache.blocks_for(request.num_computed_tokens)
            assert len(request.host_blocks) == kept, "host blocks do not match the computed tokens"


def _copies(by_request: dict[Request, Pairs]) -> Copies:
    pairs = tuple(pair for pairs in by_request.values() for pair in pairs)
    return Copies(tuple(by_request), pairs)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g}"
