"""GpuProgram: a graph as launches over memory laid out beforehand, for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.model.gpu.inputs import StepInputs
from engine.model.gpu.launches import Launches
from engine.model.gpu.resident import Resident
from engine.model.program.graph import Graph, Operation
from engine.model.program.pack import Originals
from engine.model.program.stage import Stage


class GpuProgram:
    """Launches that compute a graph, in order.

    Products are torch's, which are cuBLAS's, unless another way was chosen for few rows; all others
    are our Triton kernels. A launch may be captured in a CUDA graph: it takes its sizes from its
    inputs, allocates nothing and waits for nothing. An opaque operation may do all of these.

    The model's matrices move into the program. After that the model can run the modules of its
    opaque operations only.

    Args:
        model: in the type and on the device of the whole program.
        programs: items of attention that fill the device, as `engine.triton.work.cut` takes it.
        max_tokens, max_samples: most tokens of a step, and most rows that sample in it.

    Attributes:
        stages: the launches of each operation.
        kinds: the kinds of attention that its layers have.
        logits: [max_samples, vocab_size] float32, contiguous.
        products: the products that the kernel for few rows can compute too.
    """

    def __init__(
        self,
        graph: Graph,
        model: nn.Module,
        resident: Resident,
        *,
        dtype: torch.dtype,
        programs: int,
        max_tokens: int,
        max_samples: int,
    ) -> None:
        self._launches = Launches(
            graph,
            resident,
            Originals(model.parameters(), graph.operations),
            dtype=dtype,
            programs=programs,
            max_tokens=max_tokens,
            max_samples=max_samples,
        )
        self._buffers = self._launches.buffers
        self.stages: list[Stage] = []
        for at, operation in enumerate(graph.operations):
            self._add(at, operation)
        self.products = self._launches.products
        self.kinds = self._launches.kinds
        self.logits = self._buffers.whole(graph.logits)

    @property
    def num_launches(self) -> int:
        """Launches of a step of many rows, opaque operations counted as one each."""
        return self._launches.count

    def check(self, tokens: int, samples: int) -> None:
        """Check that a step fits into the program's buffers.

        Raises:
            ValueError: it does not fit, and would write past the program's memory.
        """
        rows = self._launches.rows
        if tokens > rows[False] or samples > rows[True]:
            raise ValueError(
                f"a step of {tokens} tokens, {samples} of which sample, does not fit into a "
                f"program for {rows[False]} and {rows[True]}"
            )

    def run(self, inputs: StepInputs[Tensor], first: int = 0, last: int | None = None) -> None:
        """Launch instructions [first, last)."""
        for launch in self._launches.every[first:last]:
            launch(inputs)

    def _add(self, at: int, operation: Operation) -> None:
        self._buffers.enter(at, operation)
        launches = self._launches.every
        first = len(launches)
        self._launches.emit(operation)
        changed = [view for view, _ in operation.changes()]
        given = tuple(
            map(self._buffers.tensor, operation.reads() if operation.in_torch else changed)
        )
        # The first launch of attention rotates and stores, the second one attends.
        rotated = first + bool(changed)
        out = self._buffers.whole(operation.out)
        self.stages.append(Stage(operation, first, rotated, len(launches), out, given))
