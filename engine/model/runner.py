"""TorchRunner: computes step plans with a transformers model."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.cache.storage import KVStorage
from engine.config import EngineConfig
from engine.errors import ModelError
from engine.model.attention.base import StepContext
from engine.model.attention.interface import ATTENTION_NAME
from engine.model.attention.torch_backend import TorchAttention
from engine.model.batch import Batch, PackedStep
from engine.model.sampler import Sampled, Sampler
from engine.plan import PhaseTimes, StepPlan, StepResult
from engine.shape import ModelShape

BACKENDS = {"torch": TorchAttention}


@dataclass(frozen=True, slots=True)
class _Handle:
    """A step whose forward pass has been started."""

    step: PackedStep | None
    logits: Tensor
    started: float
    prepared: float


class TorchRunner:
    """An `engine.plan.Runner`: forward pass in `submit`, sampling in `result`, one step at a time.

    The whole step is one packed row of tokens; nothing but attention knows of sequences (selective
    batching, Orca, OSDI'22, section 3).

    Args:
        model: in `config`'s dtype and on its device. From now on it computes through this runner
            only, for its attention needs the step.
        shape: the model's.
        backend: attention backend, a key of `BACKENDS`.

    Raises:
        ModelError: the model does not let its attention be chosen.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: EngineConfig,
        shape: ModelShape,
        backend: str = "torch",
    ) -> None:
        model.eval()  # type: ignore[no-untyped-call]
        model.set_attn_implementation(ATTENTION_NAME)
        if model.config._attn_implementation != ATTENTION_NAME:
            raise ModelError(f"{type(model).__name__} does not let its attention be chosen")
        self._model = model
        self._device = torch.device(config.device)
        self._attention = BACKENDS[backend]()
        self._batch = Batch(config)
        self._sampler = Sampler(
            max_num_seqs=config.max_num_seqs, vocab_size=shape.vocab_size, device=self._device
        )
        self._storage = KVStorage(
            num_layers=shape.num_layers,
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            value_dim=shape.value_dim,
            dtype=getattr(torch, config.dtype),
            device=self._device,
        )

    @property
    def depth(self) -> int:
        return 1

    def submit(self, plan: StepPlan) -> _Handle:
        """Start a step: what the plan says of sequences and blocks, and the forward pass."""
        return self._forward(plan)

    def result(self, handle: object) -> StepResult:
        """Sample the step's tokens, which also wait where the next step reads them."""
        assert isinstance(handle, _Handle)
        self._synchronise()
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
            sample=perf_counter() - computed,
        )
        return StepResult(tuple(sampled.token_ids.tolist()), times, sampled.logprobs)

    def logits(self, plan: StepPlan) -> Tensor:
        """A step without sampling, for comparisons.

        Returns:
            [S, vocab_size] float32, for each row that samples, in the plan's order.
        """
        return self._forward(plan).logits

    def close(self) -> None:
        """Let go of the model, the cache and the masks; the runner cannot be used again."""
        del self._model, self._storage, self._attention

    @torch.inference_mode()
    def _forward(self, plan: StepPlan) -> _Handle:
        started = perf_counter()
        self._apply(plan)
        if not plan.rows:
            return _Handle(None, torch.empty(0), started, perf_counter())
        step = self._batch.pack(plan.rows)
        input_ids, position_ids, slots, last_tokens = (
            torch.from_numpy(array).to(self._device)
            for array in (step.input_ids, step.position_ids, step.slots, step.last_tokens)
        )
        context = StepContext(
            backend=self._attention,
            storage=self._storage,
            slots=slots,
            starts=step.starts,
            counts=step.counts,
            block_tables=step.block_tables,
        )
        prepared = perf_counter()
        output = self._model(
            input_ids=input_ids[None],
            position_ids=position_ids[None],
            use_cache=False,
            logits_to_keep=last_tokens,
            step_context=context,
        )
        return _Handle(step, output.logits[0].float(), started, prepared)

    def _apply(self, plan: StepPlan) -> None:
        for seq in plan.released:
            index = self._batch.release(seq)
            if index is not None:
                self._sampler.remove(index)
        self._storage.copy_blocks(plan.copies)
        for new in plan.new:
            self._sampler.add(self._batch.add(new), new)
        # A block keeps what its last owner left, and a NaN there would get past the mask: masked
        # scores weigh 0, and 0 * NaN is NaN.
        copied = {target for _, target in plan.copies}
        unfilled = self._batch.extend(plan.rows)
        self._storage.clear_blocks([block for block in unfilled if block not in copied])

    def _synchronise(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
