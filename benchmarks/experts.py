"""A decode step through mixtures of experts: ours, torch's modules, and the floor.

    python -m benchmarks.experts [--rows 1,8,32] [--layers 2] [--rounds 9] [--threads N]
                                 [--json FILE]

The layers have the shape of Qwen3-30B-A3B: 128 experts, of which each row goes to 8, 2048 numbers
wide, 768 within, in bfloat16, with random weights. A step is the router and the experts of all
layers, without attention and norms. Ours is a program; torch's is the model's own block, as it ran
between segments of a program before, with the implementation that transformers chooses by default
(`grouped_mm`). Both get the same rows, other ones in each round, so that the experts come from
memory and not from a cache. The floor is a plain parallel sum over as many bytes of weights as the
experts have that were chosen. All three take turns in one process. Milliseconds are medians, for
one layer, and so are the quotients of each round; `best` is the quotient of the fastest rounds,
since others on the machine only make a round slower.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from app.process.columns import row
from app.process.console import write_json
from benchmarks.heading import heading
from engine.cache.storage import CacheShape
from engine.model.attention.cpu_backend import CpuAttention
from engine.model.program.agree import differences
from engine.model.program.arena import Arena
from engine.model.program.build import Built, Pool, build
from engine.model.program.graph import Graph, Operation, Value, View
from engine.model.program.operations.embed import Embed
from engine.model.program.operations.experts import Experts, Gating
from engine.model.program.operations.linear import Linear
from engine.model.program.routing import Routing
from engine.native import kernels

WIDTH, INNER, EXPERTS, CHOSEN, VOCABULARY = 2048, 768, 128, 8, 4096
EXPERT_BYTES = 3 * WIDTH * INNER * 2
HEAD = (
    "rows",
    "experts",
    "MB",
    "ours",
    "torch",
    "floor",
    "ours/floor",
    "best",
    "torch/ours",
    "best",
)
WIDTHS = (4, 8, 7, 8, 8, 8, 11, 6, 11, 6)


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of the rounds with so many rows: experts that were chosen in a layer, seconds for a
    layer, and quotients; `best` ones are of the fastest rounds.
    """

    rows: int
    experts: float
    ours: float
    torch: float
    floor: float
    ours_over_floor: float
    torch_over_ours: float
    best_ours_over_floor: float
    best_torch_over_ours: float

    def __str__(self) -> str:
        cells = (
            str(self.rows),
            f"{self.experts:.0f}",
            f"{self.experts * EXPERT_BYTES / 1e6:.0f}",
            *(f"{1e3 * seconds:.2f}" for seconds in (self.ours, self.torch, self.floor)),
            f"{self.ours_over_floor:.2f}",
            f"{self.best_ours_over_floor:.2f}",
            f"{self.torch_over_ours:.2f}",
            f"{self.best_torch_over_ours:.2f}",
        )
        return row(cells, WIDTHS)


class Layers:
    """Layers of experts, as torch's modules and as a program."""

    def __init__(self, count: int, most_rows: int) -> None:
        config: Any = Qwen3MoeConfig(
            hidden_size=WIDTH,
            moe_intermediate_size=INNER,
            num_experts=EXPERTS,
            num_experts_per_tok=CHOSEN,
            norm_topk_prob=True,
        )
        config._experts_implementation = "grouped_mm"
        native = kernels()
        assert native is not None
        self.table = torch.randn(VOCABULARY, WIDTH, dtype=torch.bfloat16)
        self.blocks = [_random(config, native) for _ in range(count)]
        self._native = native
        self._built = _build(self.table, self.blocks, native, most_rows)

    def step(self, ids: Tensor) -> Callable[[], None]:
        """Ours, of rows of the table."""
        count, zeros = len(ids), np.zeros(len(ids), np.int64)
        tables = np.zeros((count, 1), np.int64)
        inputs = self._native.Step(
            ids.numpy(), zeros, zeros, zeros, zeros + 1, tables, np.arange(count)
        )
        program, stages = self._built.program, self._built.stages
        program.run(inputs, stages[0].first, stages[0].last)
        first, last = stages[1].first, stages[-2].last
        return lambda: program.run(inputs, first, last)

    def output(self, rows: int) -> Tensor:
        """Our result for the last layer, [rows, columns]."""
        return self._built.stages[-2].out[:rows]

    def chosen(self, ids: Tensor) -> float:
        """How many experts the rows go to, as the mean of the layers."""
        x = self.table[ids].float()
        chosen = [(x @ block.gate.weight.float().T).topk(CHOSEN).indices for block in self.blocks]
        return statistics.mean(len(one.unique()) for one in chosen)


def _random(config: Any, native: Any) -> Any:
    """A block whose weights lie in huge pages where the system gives them, as packed ones do."""
    torch.set_default_dtype(torch.bfloat16)
    block = Qwen3MoeSparseMoeBlock(config).eval()
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for parameter in block.parameters():
            native.advise_huge(parameter.data)
            parameter.normal_(std=WIDTH**-0.5)
    return block


def _build(table: Tensor, blocks: list[Any], native: Any, most_rows: int) -> Built:
    def value(width: int) -> Value:
        return Value(torch.empty(1, width, dtype=torch.bfloat16), per_sample=False)

    x = value(WIDTH)
    operations: list[Operation] = [Embed(x, table, positions=False)]
    view = View(x, 0, WIDTH)
    for block in blocks:
        logits, out = value(EXPERTS), value(WIDTH)
        gating = Gating(interleaved=False, activation="silu")
        experts = block.experts
        weights = (*gating.split(experts.gate_up_proj.detach()), experts.down_proj.detach())
        operations += [
            Linear(logits, view, (block.gate.weight.detach(),), ()),
            Experts(
                out,
                view,
                View(logits, 0, EXPERTS),
                Routing(CHOSEN, "softmax"),
                weights,
                (),
                gating.activation,
                gating,
            ),
        ]
    head = value(32)
    last = View(operations[-1].out, 0, WIDTH)
    operations.append(Linear(head, last, (torch.zeros(32, WIDTH, dtype=torch.bfloat16),), ()))
    storage = CpuAttention().storage(
        CacheShape(
            num_layers=1,
            num_blocks=1,
            block_size=16,
            num_kv_heads=1,
            head_dim=16,
            value_dim=16,
            dtype=torch.bfloat16,
            device=torch.device("cpu"),
        )
    )
    # The program is given no parameters, so that the blocks keep theirs.
    return build(
        Graph(operations, head),
        (),
        native,
        Pool([storage], [(0, 0)]),
        max_tokens=most_rows,
        max_samples=most_rows,
        arena=Arena(native),
    )


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@torch.inference_mode()
def measure(layers: Layers, rows: int, rounds: int) -> Result:
    """Measure steps of so many rows, other ones in each round."""
    count = len(layers.blocks)
    numbers = layers.blocks[0].experts.gate_up_proj.view(torch.float32).flatten()
    turns = []
    for turn in range(rounds + 1):
        ids = torch.randint(VOCABULARY, (rows,), generator=torch.Generator().manual_seed(turn))
        x = layers.table[ids][None]
        ours = seconds(layers.step(ids)) / count

        def run_torch(x: Tensor = x) -> Tensor:
            outputs: list[Tensor] = [block(x)[0] for block in layers.blocks]
            return outputs[-1]

        if not turn:
            # Where logits are equal in bfloat16, a row may go to another expert.
            apart = differences(layers.output(rows), run_torch())
            assert apart.median() < 0.02, f"ours and torch's differ by {apart.median():.2g}"
        theirs = seconds(run_torch) / count
        experts = layers.chosen(ids)
        wanted = int(experts * EXPERT_BYTES) // 4
        read = min(wanted, len(numbers))
        start = turn * read % (len(numbers) - read + 1)  # what no cache holds from the round before
        floor = seconds(numbers[start : start + read].sum) * wanted / read
        turns.append((experts, ours, theirs, floor, ours / floor, theirs / ours))
    columns = list(zip(*turns[1:], strict=True))  # the first round only warms up
    _, best_ours, best_theirs, best_floor, *_ = (min(column) for column in columns)
    experts, ours, theirs, floor, over_floor, over_ours = map(statistics.median, columns)
    return Result(
        rows=rows,
        experts=experts,
        ours=ours,
        torch=theirs,
        floor=floor,
        ours_over_floor=over_floor,
        torch_over_ours=over_ours,
        best_ours_over_floor=best_ours / best_floor,
        best_torch_over_ours=best_theirs / best_ours,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experts")
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch has")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    native = kernels()
    if native is None:
        sys.exit("benchmarks.experts: no native kernels here")
    if options.threads:
        torch.set_num_threads(options.threads)
    native.set_threads(torch.get_num_threads())
    print(heading(f"{native.level()}, {native.threads()} threads", f"torch {torch.__version__}"))
    print("milliseconds a layer")
    print(row(HEAD, WIDTHS))
    torch.manual_seed(0)
    row_counts = [int(rows) for rows in options.rows.split(",")]
    layers = Layers(options.layers, max(row_counts))
    results = []
    for rows in row_counts:
        result = measure(layers, rows, options.rounds)
        results.append(result)
        print(result, flush=True)
    if options.json:
        write_json({"results": [asdict(result) for result in results]}, options.json)


if __name__ == "__main__":
    main()
