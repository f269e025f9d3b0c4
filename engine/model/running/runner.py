"""TorchRunner: computes step plans with a model's forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from engine.api.config import EngineConfig
from engine.api.telemetry import PhaseTimes
from engine.batch.plan import StepPlan, StepResult
from engine.batch.shape import ModelShape
from engine.cache.parts import PoolParts
from engine.cache.storage import cache_shapes
from engine.model.attention.batch import Batch, PackedStep
from engine.model.machine.device import noticing_loss
from engine.model.running.forward import Forward, KeepsStates
from engine.model.step.prompts import FoundPrompts, Prompts
from engine.model.step.sampler import Sampled, Sampler
from engine.model.step.sending import synchronize


@dataclass(frozen=True, slots=True)
class _Handle:
    """A step whose forward pass has started.

    Attributes:
        prompts: log-probabilities of prompts; None if none are needed.
    """

    step: PackedStep | None
    logits: Tensor
    started: float
    prepared: float
    prompts: FoundPrompts | None = None


class TorchRunner:
    """A `Runner` (`engine.batch.plan`) that computes one step at a time.

    The forward pass runs in `start_step`, and sampling in `result`.

    Args:
        forward: the model's forward pass. From now on only this runner may use it, because it
            writes to the runner's pool.
        shape: the model's dimensions.

    Attributes:
        forward: the model's forward pass, until it is closed.
        swap_rate: bytes a second at which blocks are swapped, measured once; 0 without host blocks.
    """

    def __init__(self, forward: Forward, config: EngineConfig, shape: ModelShape) -> None:
        self.forward = forward
        self._device = torch.device(config.device)
        self._batch = Batch(config)
        self._max_num_seqs = config.max_num_seqs
        self._prompts = Prompts()
        self._sampler = Sampler(
            max_num_seqs=config.max_num_seqs, vocab_size=shape.vocab_size, device=self._device
        )
        parts = [forward.storage(one) for one in cache_shapes(config, shape)]
        forward.attach(*parts)
        self._storage = PoolParts(parts)
        # The system allocates the pool's memory at first touch, in huge pages. Those of the first
        # blocks took 136 ms of the first request's step.
        self._storage.clear_blocks([0])
        self.swap_rate = self._storage.swap_rate()

    @property
    def depth(self) -> int:
        return 1

    def start_step(self, plan: StepPlan) -> _Handle:
        """Start a step: apply the plan's sequences and blocks, and run the forward pass."""
        with noticing_loss(self._device):
            return self._start(plan)

    def result(self, handle: object) -> StepResult:
        """Sample the step's tokens, and store them where the next step reads them."""
        assert isinstance(handle, _Handle)
        with noticing_loss(self._device):
            return self._result(handle)

    def _result(self, handle: _Handle) -> StepResult:
        synchronize(self._device)
        computed = perf_counter()
        sampled = Sampled(np.empty(0, np.int64), ())
        if handle.step is not None and len(handle.step.sampling):
            with torch.inference_mode():
                sampled = self._sampler.sample(
                    handle.logits, handle.step.sampling, handle.step.lengths
                )
            self._batch.append(handle.step, sampled.token_ids)
        times = PhaseTimes(
            prepare=handle.prepared - handle.started,
            forward=computed - handle.prepared,
            sample=perf_counter() - computed - sampled.waited,
            mask=sampled.waited,
        )
        prompts = () if handle.prompts is None else handle.prompts.to_results()
        return StepResult(tuple(sampled.token_ids.tolist()), times, sampled.logprobs, prompts)

    def logits(self, plan: StepPlan) -> Tensor:
        """Compute a step without sampling, for comparisons.

        Returns:
            [S, vocab_size] float32, for each row that samples, in the plan's order; valid until the
            next step.
        """
        return self._start(plan).logits

    def close(self) -> None:
        """Free the model and the pool; the runner cannot be used again."""
        del self.forward, self._storage

    @torch.inference_mode()
    def _start(self, plan: StepPlan) -> _Handle:
        started = perf_counter()
        self._apply(plan)
        if not plan.rows:
            return _Handle(None, torch.empty(0), started, perf_counter())
        step = self._batch.pack(plan.rows)
        prepared = perf_counter()
        asked = self._prompts.asked(plan.rows, step, self._batch)
        found: FoundPrompts | None = None
        if asked is None:
            logits = self.forward(step)
        else:
            self.forward.start(step)
            found = asked.find(self.forward.logits_of)
            logits = self.forward.logits_of(step.last_tokens)
        if plan.saves:
            self._copy_states(
                [(self._batch.index_of(seq), self._snapshot(one)) for seq, one in plan.saves]
            )
        return _Handle(step, logits, started, prepared, found)

    def _copy_states(self, pairs: list[tuple[int, int]]) -> None:
        assert isinstance(self.forward, KeepsStates)
        self.forward.copy_states(pairs)

    def _snapshot(self, snapshot: int) -> int:
        """The slot of a snapshot, after those of the sequences."""
        return self._max_num_seqs + snapshot

    def _apply(self, plan: StepPlan) -> None:
        for seq in plan.released:
            index = self._batch.release(seq)
            if index is not None:
                self._sampler.remove(index)
                self._prompts.remove(index)
        self._storage.swap_out(plan.swaps_out)
        self._storage.copy_blocks(plan.copies)
        self._storage.swap_in(plan.swaps_in)
        for new in plan.new:
            index = self._batch.add(new)
            self._sampler.add(index, new)
            self._prompts.add(index, new)
        if plan.restores:
            self._copy_states(
                [(self._snapshot(one), self._batch.index_of(seq)) for one, seq in plan.restores]
            )
        # A block keeps its last owner's content, and a NaN there would get past the mask, because
        # masked scores weigh 0, and 0 * NaN is NaN.
        copied = {target for _, target in plan.copies}
        unfilled = [given.block for given in self._batch.extend(plan.rows) if not given.is_filled]
        self._storage.clear_blocks([block for block in unfilled if block not in copied])
