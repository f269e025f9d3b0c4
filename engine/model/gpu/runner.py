"""GpuRunner: computes step plans on a GPU, while the host prepares the next one."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from engine.api.config import EngineConfig
from engine.api.errors import cause_of
from engine.api.sampling import MAX_LOGPROBS
from engine.api.telemetry import PhaseTimes
from engine.batch.plan import NOT_FOLLOWED, StepPlan, StepResult
from engine.batch.shape import ModelShape
from engine.cache.parts import PoolParts
from engine.cache.storage import cache_shapes
from engine.model.attention.base import IntArray
from engine.model.attention.batch import Batch, PackedRows
from engine.model.gpu.forward import GpuForward
from engine.model.gpu.inputs import UPDATE, InputLayout, Int32Array, StepInputs, StepSize
from engine.model.gpu.ladder import Rungs
from engine.model.gpu.sampler import ROW_FIELDS, DeviceSampler
from engine.model.gpu.stream import Mark, Stream
from engine.model.machine.device import is_out_of_memory, noticing_loss
from engine.model.step.logprobs import Logprobs, RawLogprobs, columns_of
from engine.model.step.prompts import MOST_LOGITS, AskedPrompts, FoundPrompts, Prompts
from engine.model.step.sending import send
from engine.serving.loading import Progress
from engine.triton.overlap import overlapping
from engine.triton.tables import update

logger = logging.getLogger(__name__)

DEPTH = 2


@dataclass(slots=True, eq=False)
class _Handle:
    """A step that has been started.

    Attributes:
        step: None if the plan had no rows.
        marks: its pieces of work.
        tokens: [S] int32 on the host, once all `marks` have been waited for.
        asking: rows that need log-probabilities, as returned by `DeviceSampler.asking`.
        logprobs: empty if no row asks for them.
        prompts: log-probabilities of prompts; empty if no row asks for them.
        prepare: seconds that the host took to start it.
        bound: the sampler's words for the rows with structures whose tokens are still to be chosen;
            None if there are none.
        failed: rows whose structure cannot be followed.
        failure: the exception raised when their tokens were to be chosen.
    """

    step: PackedRows | None
    marks: list[Mark]
    tokens: Tensor
    asking: Sequence[tuple[int, int]] = ()
    logprobs: list[Logprobs] = field(default_factory=list)
    prompts: list[FoundPrompts] = field(default_factory=list)
    prepare: float = 0.0
    bound: Int32Array | None = None
    failed: Sequence[int] = ()
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Rung:
    """A size of steps, ready to be started."""

    layout: InputLayout
    start: Callable[[], None]


class GpuRunner:
    """A `Runner` (`engine.batch.plan`) of depth 2.

    The host packs a step while the device computes the one before. A step is one copy to the
    device, one graph, and one copy back. Sampled tokens stay on the device, where the next step
    reads them, and their host copies are read a step later. Steps that are larger than the largest
    graph are launched kernel by kernel, which takes the host less time than the device.

    The mask of a structure is known only when the host has read the token before. So in a step with
    structures, the graph chooses the tokens of all other rows. Launches after the graph choose
    theirs: the host makes these launches when it has read the tokens of the step before and
    computed the masks, while the device runs the graph. Steps without structures are not affected.

    A step with log-probabilities of prompts runs without a graph: its logits are computed in
    several slices.

    Args:
        forward: the model's forward pass. From now on it computes for this runner only.
        stream: of the forward pass's device.

    Attributes:
        swap_rate: bytes a second at which blocks are swapped, measured once; 0 without host blocks.
    """

    def __init__(
        self,
        forward: GpuForward,
        config: EngineConfig,
        shape: ModelShape,
        stream: Stream,
    ) -> None:
        self._forward = forward
        self._stream = stream
        self._batch = Batch(config)
        self._device = device = torch.device(config.device)
        self._sampler = DeviceSampler(
            max_num_seqs=config.max_num_seqs, vocab_size=shape.vocab_size, device=device
        )
        parts = [forward.storage(one) for one in cache_shapes(config, shape)]
        forward.attach(*parts)
        self._storage = PoolParts(parts)
        self.swap_rate = self._storage.swap_rate()
        self._largest = StepSize(config.max_num_batched_tokens, config.max_num_seqs, chunks=True)
        num_words = forward.layout(self._largest, ROW_FIELDS).num_words
        self._words = torch.full((num_words,), -1, dtype=torch.int32, device=device)
        self._tokens = torch.zeros(config.max_num_seqs, dtype=torch.int32, device=device)
        # A step's host memory is used again two steps later. The step before it has ended by then.
        self._staged = [stream.pinned(num_words) for _ in range(DEPTH)]
        self._taken = [stream.pinned(config.max_num_seqs) for _ in range(DEPTH)]
        self._prompts = Prompts()
        self._num_submitted = 0
        self._unread: deque[_Handle] = deque()
        self._rungs: dict[StepSize, _Rung] = {}
        self._fit = Rungs(()).fit

    @property
    def depth(self) -> int:
        return DEPTH

    @property
    def num_graphs(self) -> int:
        """Graphs that were captured."""
        return len(self._rungs)

    def capture(self, sizes: Sequence[StepSize], progress: Progress | None = None) -> None:
        """Capture graphs for steps of these sizes. If a module of the model cannot be captured,
        there are none.

        Args:
            progress: called after each.
        """
        for number, size in enumerate(sizes, 1):
            if progress is not None:
                progress(f"capturing CUDA graph {number} of {len(sizes)}")
            rung = self._padding(size)
            try:
                start = self._stream.capture(rung.start)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self._rungs.clear()
                logger.warning("steps run without CUDA graphs: %s", cause_of(error))
                break
            self._rungs[size] = _Rung(rung.layout, start)
        self._fit = Rungs(self._rungs).fit

    def try_largest(self) -> None:
        """Launch the largest step, all of it padding, and wait for its end. All rows ask for
        log-probabilities, of their prompts too, and have structures, as requests may.
        """
        step = self._padding(self._largest)
        asking = [(row, MAX_LOGPROBS) for row in range(len(self._tokens))]

        def work() -> None:
            step.start()
            # So the kernels of these launches are compiled before a request waits for them.
            self._launch_bound(np.full((len(asking), ROW_FIELDS), -1, np.int32))
            RawLogprobs(self._forward.logits[: len(asking)], asking).start(self._tokens)
            logits = self._forward.logits[:MOST_LOGITS]
            nothing = torch.zeros(len(logits), 1, dtype=torch.int64, device=logits.device)
            columns_of(logits, nothing, MAX_LOGPROBS)

        self._stream.enqueue(work).wait()

    def start_step(self, plan: StepPlan) -> _Handle:
        """Start a step; see `Runner.start_step`."""
        with noticing_loss(self._device):
            return self._submit(plan)

    def _submit(self, plan: StepPlan) -> _Handle:
        started = perf_counter()
        appended = self._learn(plan)
        appended += [one[:3] for one in self._batch.extend(plan.rows)]
        updates = np.array(appended, np.int32).reshape(-1, len(UPDATE))
        if not plan.rows:
            mark = self._stream.enqueue(lambda: self._update_tables(updates))
            handle = _Handle(None, [mark], self._tokens[:0], prepare=perf_counter() - started)
            self._unread.append(handle)
            return handle
        step = self._batch.rows(plan.rows)
        asked = self._prompts.asked(plan.rows, step, self._batch)
        found: list[FoundPrompts] = []
        size = self._forward.size_of(step)
        rung = self._rung(size) if asked is None else self._telling(size, asked, found)
        turn = self._num_submitted % DEPTH
        words = self._staged[turn][: rung.layout.num_words]
        room = rung.layout.num_updates
        sampling = self._sampler.pack(step.sampling, step.lengths)
        bound = self._sampler.part(sampling)
        rung.layout.fill(words.numpy(), step, step.index, sampling, updates[:room])
        asking = self._sampler.asking(step.sampling)
        handle = _Handle(
            step, [], self._taken[turn][: len(sampling)], asking, prompts=found, bound=bound
        )

        def work() -> None:
            self._update_tables(updates[room:])
            self._words[: len(words)].copy_(words, non_blocking=True)
            rung.start()
            if bound is None:
                self._fetch(handle)

        handle.marks.append(self._stream.enqueue(work))
        self._batch.expect(step)
        self._num_submitted += 1
        handle.prepare = perf_counter() - started
        if not self._unread:
            # The tokens of the step before are known by now, and the device is busy meanwhile.
            self._bind(handle)
        self._unread.append(handle)
        return handle

    def result(self, handle: object) -> StepResult:
        """Wait for a step's tokens; see `Runner.result`."""
        assert isinstance(handle, _Handle)
        with noticing_loss(self._device):
            return self._result(handle)

    def _result(self, handle: _Handle) -> StepResult:
        self._unread.remove(handle)
        self._bind(handle)
        if handle.failure is not None:
            raise handle.failure
        seconds = sum(mark.wait() for mark in handle.marks)
        waited = perf_counter()
        mask = sum(later.since(mark) for mark, later in pairwise(handle.marks))
        if handle.step is None:
            return StepResult((), PhaseTimes(handle.prepare, seconds))
        tokens: IntArray = handle.tokens.numpy().astype(np.int64)
        tokens[list(handle.failed)] = NOT_FOLLOWED
        self._batch.append(handle.step, tokens)
        self._accept(handle.step, tokens)
        if self._unread:
            self._bind(self._unread[0])
        logprobs = handle.logprobs[0].of(tokens) if handle.logprobs else ()
        times = PhaseTimes(handle.prepare, seconds, perf_counter() - waited, mask)
        prompts = handle.prompts[0].to_results() if handle.prompts else ()
        return StepResult(tuple(tokens.tolist()), times, logprobs, prompts)

    def close(self) -> None:
        """Release the model, the pool, the graphs and everything as large as the vocabulary; the
        runner cannot be used again.
        """
        self._rungs.clear()
        del self._forward, self._storage, self._sampler, self._words, self._tokens

    def _bind(self, handle: _Handle) -> None:
        """Choose the tokens of rows with structures, if that is still to be done. The tokens of the
        step before are known.
        """
        step, bound, handle.bound = handle.step, handle.bound, None
        if step is None or bound is None:
            return
        try:
            allowed = self._sampler.masks.collect(step.sampling.tolist())

            def work() -> None:
                if allowed is not None:
                    self._sampler.bind(step.sampling, allowed)
                self._launch_bound(bound)
                self._fetch(handle)

            handle.marks.append(self._stream.enqueue(work))
            handle.failed = () if allowed is None else allowed.failed
        except Exception as error:
            # The error belongs to this step, although the caller may be waiting for another step's
            # result.
            handle.failure = error

    def _accept(self, step: PackedRows, tokens: IntArray) -> None:
        """Advance structures by the chosen tokens. An index whose sequence was released while the
        step ran is skipped, as by `Batch.append`.
        """
        if not self._sampler.masks.follows_any:
            return
        index, current = step.sampling.tolist(), set(self._batch.current(step).tolist())
        rows = [row for row in self._sampler.masks.rows(index) if row in current]
        self._sampler.masks.accept((index[row], int(tokens[row])) for row in rows)

    def _fetch(self, handle: _Handle) -> None:
        """Copy the tokens of a step to the host, with the log-probabilities that its rows ask
        for."""
        chosen = self._tokens[: len(handle.tokens)]
        handle.tokens.copy_(chosen, non_blocking=True)
        if handle.asking:
            logits = self._forward.logits[: len(chosen)]
            handle.logprobs.append(RawLogprobs(logits, handle.asking).start(chosen))

    def _launch_bound(self, bound: Int32Array) -> None:
        rows = send(bound, self._words.device)
        logits = self._forward.logits[: len(bound)]
        tokens, latest = self._tokens[: len(bound)], self._forward.resident.latest
        self._sampler.launch(logits, rows, tokens, latest, masked=True)

    def _learn(self, plan: StepPlan) -> list[tuple[int, int, int]]:
        """Apply a plan's changes of sequences, and its copies and swaps of blocks.

        Returns:
            the blocks that new sequences bring, as updates of the block tables.
        """
        for seq in plan.released:
            index = self._batch.release(seq)
            if index is not None:
                self._sampler.remove(index)
                self._prompts.remove(index)
        if plan.swaps_out or plan.copies or plan.swaps_in:
            self._stream.enqueue(lambda: self._move_blocks(plan))
        held: list[tuple[int, int, int]] = []
        for new in plan.new:
            index = self._batch.add(new)
            self._prompts.add(index, new)
            upload = self._sampler.add(index, new)
            if upload is not None:
                self._stream.enqueue(upload)
            held += [(index, place, block) for place, block in enumerate(new.block_ids)]
        return held

    def _move_blocks(self, plan: StepPlan) -> None:
        self._storage.swap_out(plan.swaps_out)
        self._storage.copy_blocks(plan.copies)
        self._storage.swap_in(plan.swaps_in)

    def _update_tables(self, updates: Int32Array) -> None:
        if len(updates):
            tables = self._forward.resident.block_tables
            update(tables, send(updates, tables.device))

    def _rung(self, size: StepSize) -> _Rung:
        """How a step of this size is started: by the graph of the next larger size, or launch by
        launch."""
        fitting = self._fit(size)
        return self._eager(size) if fitting is None else self._rungs[fitting]

    def _eager(self, size: StepSize) -> _Rung:
        layout = self._forward.layout(size, ROW_FIELDS)
        inputs = layout.over(self._words)
        return _Rung(layout, lambda: self._launch(inputs))

    def _telling(self, size: StepSize, asked: AskedPrompts, found: list[FoundPrompts]) -> _Rung:
        """How a step of this size with log-probabilities of prompts is started.

        Args:
            found: receives the log-probabilities.
        """
        layout = self._forward.layout(size, ROW_FIELDS)
        inputs = layout.over(self._words)

        def start() -> None:
            resident = self._forward.resident
            update(resident.block_tables, inputs.updates)
            self._forward.begin(inputs)
            found.append(asked.find(self._forward.logits_of))
            logits = self._forward.finish(inputs.last_tokens)
            tokens = self._tokens[: len(logits)]
            self._sampler.launch(logits, inputs.sampling, tokens, resident.latest)

        return _Rung(layout, start)

    def _padding(self, size: StepSize) -> _Rung:
        """A step of this size that consists of padding."""
        self._stream.enqueue(lambda: self._words.fill_(-1))
        return self._eager(size)

    def _launch(self, inputs: StepInputs[Tensor]) -> None:
        """Launch a step: blocks into the tables, the forward pass, and sampling."""
        resident = self._forward.resident
        update(resident.block_tables, inputs.updates)
        # A copy precedes the launch that updates the tables, so that no kernel starts early.
        with overlapping(self._forward.overlaps):
            logits = self._forward.run(inputs)
            tokens = self._tokens[: len(logits)]
            self._sampler.launch(logits, inputs.sampling, tokens, resident.latest)
