"""All of it on a GPU: `python -m benchmarks.gpu [--parts PART,...] [--models NAME,...]`.

Parts, in this order; each prints its rows as they come, so that a run that is cut off has told what
it found:

- `correct`: the fifteen architectures of the parity suite on the device.
- `kernels`: attention alone, and the products of a decode step, beside a copy.
- `decode`: steps of decodes, and their share of the roofline, which is the bytes that a step has to
  move at the rate of a copy.
- `prefill`: prompts of 2,048 tokens, beside the rate of a square product.
- `serve`: 256 requests of 512 tokens with 128 of output, beside transformers' continuous batching.
- `gap`: decodes while a prompt of 8,192 tokens comes in.
- `structure`: decodes of replies that have a structure beside free ones, and whether they have it.
- `count`: how often each kernel runs in a step of decodes, by torch's profiler.

It needs the checkout and torch with CUDA, transformers, triton, numpy and psutil; no network. The
weights are random and made on the device. `--device cpu` tries it out under Triton's interpreter,
with `TRITON_INTERPRET=1` and `--models tiny`; its times mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import math
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import transformers
import triton
from torch.profiler import ProfilerActivity, profile

from app.process.columns import row
from benchmarks.gpu import correct, kernels, serving, structured
from benchmarks.gpu.device import Device, Limits
from benchmarks.gpu.engine import WARM_UP, Decodes, Started, close, decode, start
from benchmarks.gpu.models import Shaped, make
from benchmarks.published import CONFIGS

PARTS = ("correct", "kernels", "decode", "prefill", "serve", "gap", "structure", "count")
MODELS = ("llama-8b", "qwen3-0.6b", "qwen3-30b-a3b")
SEQUENCES = (1, 8, 32, 128, 256)
CONTEXTS = (512, 4096)
STEPS = 40
BUDGET = 2048
LONGEST = 8192 + 512
DECODE_HEAD = (
    *("model", "rows", "context", "step ms", "device ms", "host ms", "visible", "floor ms"),
    *("of roofline", "tok/s"),
)
FEW_ROWS_HEAD = ("product", "rows", "cuBLAS us", "ours us", "strip", "taken", "gain", "of copy")
COUNT_HEAD = ("kernel", "a step", "us a step")
COUNTED = 25
PREFILL_HEAD = ("model", "prompts", "tokens", "seconds", "tok/s", "TFLOPS", "of most")


def say(cells: Iterable[str], widths: tuple[int, ...]) -> None:
    print(row(list(cells), widths), flush=True)


def table(
    title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]], first: int = 18
) -> None:
    """Print a table, row by row as they are measured; `first` is its first column's width. What
    fails ends this table alone.
    """
    print(f"\n{title}", flush=True)
    widths = tuple(max(len(name), 11) for name in head)
    widths = (-max(widths[0], first), *widths[1:])
    say(head, widths)
    try:
        for cells in rows:
            say(cells, widths)
    except Exception as error:  # the other tables are to be seen, too
        print(failure(error), flush=True)


def failure(error: Exception) -> str:
    """The text of a row that failed."""
    return f"failed: {type(error).__name__}: {error}"[:300]


def few_rows(limits: Limits, started: Started) -> None:
    """How products of few rows are computed: by what was measured at start."""
    itemsize = started.shaped.shape.dtype_bytes

    def rows() -> Iterable[tuple[str, ...]]:
        for one in started.chosen:
            strip, shape = one.strip, one.shape
            moved = shape.columns * (2 if shape.is_gated else 1) * shape.width * itemsize
            least = min(one.cublas, one.by_strip)
            yield (
                str(shape),
                str(one.rows),
                f"{one.cublas * 1e6:.1f}",
                f"{one.by_strip * 1e6:.1f}" if strip else "-",
                f"{strip.lines} x {strip.depth}" if strip else "-",
                "ours" if one.is_taken else "cuBLAS",
                f"{one.cublas / one.by_strip:.2f}x",
                f"{moved / least / limits.copy:.0%}",
            )

    if started.chosen:
        name, seconds = started.shaped.name, started.choose_seconds
        title = f"products of few rows, chosen in {seconds:.1f} s: {name}"
        table(title, FEW_ROWS_HEAD, rows(), first=36)


def decodes(limits: Limits, started: Started, small: bool) -> None:
    shaped = started.shaped

    def rows() -> Iterable[tuple[str, ...]]:
        for context in (33,) if small else CONTEXTS:
            for sequences in (1, 3) if small else SEQUENCES:
                steps = 6 if small else STEPS
                found = decode(started, sequences, context, steps)
                yield decode_cells(shaped, limits, sequences, context, found)

    table(f"decode: {shaped.name}", DECODE_HEAD, rows())


def decode_cells(
    shaped: Shaped, limits: Limits, sequences: int, context: int, found: Decodes | None
) -> tuple[str, ...]:
    """A row of the table of decode steps."""
    where = (shaped.name, str(sequences), f"{context:,}")
    if found is None:
        return (*where, "the pool is too small for these sequences")
    floor = shaped.step_bytes(sequences, context) / limits.copy
    visible = max(found.step - found.device, 0.0)
    return (
        *where,
        f"{found.step * 1e3:.3f}",
        f"{found.device * 1e3:.3f}",
        f"{found.host * 1e3:.3f}",
        f"{visible / found.step:.1%}",
        f"{floor * 1e3:.3f}",
        f"{floor / found.step:.0%}",
        f"{sequences / found.step:,.0f}",
    )


def prefills(limits: Limits, started: Started, small: bool) -> None:
    shaped = started.shaped
    count, length = (2, 40) if small else (8, 2048)

    def rows() -> Iterable[tuple[str, ...]]:
        for _ in range(2):
            requests = serving.prompts(count, length, shaped.shape.vocab_size)
            seconds = serving.serve(started, requests, 1)
            tokens = count * length
            flops = 2 * shaped.shape.num_active_params * tokens / seconds
            yield (
                shaped.name,
                str(count),
                f"{tokens:,}",
                f"{seconds:.3f}",
                f"{tokens / seconds:,.0f}",
                f"{flops / 1e12:.1f}",
                f"{flops / limits.flops:.0%}",
            )

    table(f"prefill: {shaped.name} (the first row warms up)", PREFILL_HEAD, rows())


def served(device: Device, started: Started, small: bool) -> None:
    """Ours first; its weights and pool are gone when the peer's are made."""
    name = started.shaped.name
    count, length, output = (4, 20, 5) if small else (256, 512, 128)
    requests = serving.prompts(count, length, started.shaped.shape.vocab_size)

    def ours() -> float:
        try:
            serving.serve(started, requests, output)
            return serving.serve(started, requests[::-1], output)
        finally:
            close(started)

    def theirs(attention: str) -> float:
        model, _ = make(name, device.torch)
        return serving.serve_by_transformers(model, attention, requests, output)

    def rows() -> Iterable[tuple[str, ...]]:
        attentions = ["flash_attention_2"] if importlib.util.find_spec("flash_attn") else []
        contenders: list[tuple[str, str, Callable[[], float]]] = [
            ("batchdeck", "triton", ours),
            *(
                ("transformers CB", attention, partial(theirs, attention))
                for attention in (*attentions, "sdpa")
            ),
        ]
        first = math.nan
        for contender, attention, run in contenders:
            try:
                seconds = run()
            except Exception as error:  # what one cannot do is part of the comparison
                yield (contender, attention, failure(error))
                continue
            finally:
                gc.collect()
            first = seconds if run is ours else first
            rate = count * output / seconds
            ratio = "" if math.isnan(first) else f"{seconds / first:.2f}x"
            yield (contender, attention, f"{seconds:.2f}", f"{rate:,.0f}", ratio)

    title = f"serve: {name}, {count} requests of {length} tokens in, {output} out"
    table(title, serving.SERVE_HEAD, rows())


def gaps(started: Started, small: bool) -> None:
    sizes = (2, 20, 60) if small else (32, 512, 8192)
    rows = (serving.gap(started, policy, *sizes) for policy in ("prefill_first", "stall_free"))
    table(f"gap, ms: {started.shaped.name}, {sizes[0]} decode", serving.GAP_HEAD, rows)


def structures(started: Started, small: bool) -> None:
    made = structured.grammar(started.shaped.shape.vocab_size)
    count = 6 if small else STEPS

    def rows() -> Iterable[tuple[str, ...]]:
        for sequences in (1, 3) if small else (1, 32, 256):
            free = math.nan
            for bound in sorted({0, max(sequences // 2, 1), sequences}):
                *cells, has = structured.decode(started, made, sequences, bound, count)
                rate = float(cells[-1].replace(",", ""))
                free = rate if not bound else free
                yield (*cells, f"{rate / free:.2f}x", has)

    table(f"structures: {started.shaped.name}", structured.HEAD, rows())


def alone(device: Device, limits: Limits, small: bool) -> None:
    cases = [(2, 100), (1, 300)] if small else [
        (1, 4096), (1, 32_768), (8, 4096), (64, 512), (64, 4096), (256, 512), (256, 4096),
    ]  # fmt: skip
    heads, kv_heads = (4, 2) if small else (32, 8)
    table(
        "attention of decodes alone",
        kernels.ATTENTION_HEAD,
        kernels.attention(device, limits, cases, heads=heads, kv_heads=kv_heads),
    )
    shapes = [(96, 64)] if small else [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336)]
    rows = [1, 3] if small else [1, 8, 32, 128, 256]
    table(
        "products of Llama 8B by cuBLAS",
        kernels.PRODUCT_HEAD,
        kernels.products(device, limits, shapes, rows),
    )


def counted(device: Device, started: Started, small: bool) -> None:
    """How often each kernel runs in a step of decodes; on a CPU, each operator of torch."""
    rows, context, steps = (2, 33, 4) if small else (32, 512, 8)
    kind = ProfilerActivity.CUDA if device.is_gpu else ProfilerActivity.CPU
    with profile(activities=[kind]) as profiler:
        decode(started, rows, context, steps)
    every = steps + WARM_UP

    def cells() -> Iterable[tuple[str, ...]]:
        found = sorted(profiler.key_averages(), key=lambda one: -one.count)
        for one in found[:COUNTED]:
            taken = one.device_time_total if device.is_gpu else one.cpu_time_total
            yield (one.key[:60], f"{one.count / every:.1f}", f"{taken / every:,.0f}")

    title = f"kernels of a step of {rows} decodes: {started.shaped.name}"
    table(title, COUNT_HEAD, cells(), first=60)


def engine(device: Device, limits: Limits, name: str, parts: Sequence[str], **changes: int) -> None:
    """The parts that need a model; `changes` are those of `make_model`."""
    small = name == "tiny"
    model, shaped = make(name, device.torch, **changes)
    if not device.is_gpu:
        model = model.float()  # type: ignore[no-untyped-call]
    started = start(
        model,
        shaped,
        device,
        seqs=8 if small else 256,
        tokens=64 if small else BUDGET,
        longest=256 if small else LONGEST,
    )
    del model
    few_rows(limits, started)
    print(
        f"\n{name}: {shaped.shape.num_params / 1e9:.2f} billion parameters; {started.num_launches} "
        f"launches a step of many rows, which "
        f"{'overlap' if started.overlaps else 'do not overlap'}; verified "
        f"{started.load_seconds:.1f} s after the weights were there; "
        f"{started.runner.num_graphs} graphs captured in {started.capture_seconds:.1f} s, "
        f"{started.graph_bytes / (1 << 20):,.0f} MiB; pool of {started.config.num_blocks:,} blocks",
        flush=True,
    )
    if "decode" in parts:
        decodes(limits, started, small)
    if "prefill" in parts:
        prefills(limits, started, small)
    if "gap" in parts:
        gaps(started, small)
    if "structure" in parts:
        structures(started, small)
    if "count" in parts:
        counted(device, started, small)
    if "serve" in parts:
        served(device, started, small)
    else:
        close(started)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(CONFIGS)}")
    parser.add_argument("--architectures", default="", help="for `correct`; all without it")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args(arguments)
    parts, models = options.parts.split(","), options.models.split(",")
    for name, given, known in (("parts", parts, PARTS), ("models", models, CONFIGS)):
        unknown = [one for one in given if one not in known]
        if unknown:
            parser.error(f"--{name} is {', '.join(unknown)}; allowed are {', '.join(known)}")
    # What the engine says of choices, of graphs and of kernels that it does without.
    logging.basicConfig(format="%(message)s")
    logging.getLogger("engine").setLevel(logging.INFO)
    begun = time.perf_counter()
    device = Device(options.device)
    print(
        f"{device.name}; torch {torch.__version__}, triton {triton.__version__}, transformers "
        f"{transformers.__version__}, Python {platform.python_version()}",
        flush=True,
    )
    if "correct" in parts:
        names = [name for name in options.architectures.split(",") if name]
        table("correct: on the device, against the model's own", correct.HEAD,
              correct.check(device, names))  # fmt: skip
    limits = device.limits()
    print(
        f"\ncopy {limits.copy / 1e12:.3f} TB/s (bytes read and bytes written), read "
        f"{limits.read / 1e12:.3f} TB/s, square product {limits.flops / 1e12:.0f} TFLOPS",
        flush=True,
    )
    if "kernels" in parts:
        alone(device, limits, "tiny" in models)
    if any(part in parts for part in PARTS[2:]):
        for name in models:
            try:
                engine(device, limits, name, parts)
            except Exception as error:  # the other models are to be seen, too
                print(f"\n{name}: {failure(error)}", flush=True)
            gc.collect()
    print(f"\nall of this took {time.perf_counter() - begun:.0f} s")
