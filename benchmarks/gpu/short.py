"""A quarter of an hour on a GPU: what is most worth knowing, in the order of what it unblocks.

    python -m benchmarks.gpu --short --dry-run           the plan and its seconds
    python -m benchmarks.gpu --short --part 1            at most 7 minutes
    python -m benchmarks.gpu --short --part 2            at most 6 minutes, by itself

Each step runs in processes of its own (`benchmarks.gpu.steps`): one that hangs, or that loses its
GPU, is ended at its limit, and the next one begins. What a step says is printed as it comes, behind
the seconds since the start. It needs a checkout, torch with CUDA, triton and transformers, and of
the project's packages those in `NEEDED`, which an image may lack: the first step names what is
missing, and `pip download --no-deps -d wheels ...` carries it (5 MB). `--device cpu` rehearses it
under Triton's interpreter, on tiny models and without the limits; its times mean nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

# Seconds of a part.
PART_LIMITS = {1: 420, 2: 360}
# What the steps import beside torch, triton, transformers and what these bring.
NEEDED = ("accelerate", "gguf", "jinja2", "llguidance", "platformdirs", "psutil", "pydantic")
# A rehearsal on two slow cores is bounded, too.
_REHEARSAL = 20


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the script.

    Attributes:
        limit: seconds, the start of its processes among them.
        processes: how many share its work.
    """

    name: str
    part: int
    limit: int
    what: str
    processes: int = 1


STEPS = (
    Step("start", 1, 30, "versions, compiler, cache; a kernel, and one that overlaps, in a graph"),
    Step("correct", 1, 160, "tokens against the model's own, by architecture", 8),
    Step("sampler", 1, 50, "tokens of the device's sampler against torch's, and its time"),
    Step("attention", 1, 100, "attention alone, decodes and prompts, beside SDPA"),
    Step("tiles", 1, 80, "attention's tiles and stages, and the lines of its table"),
    Step("load", 2, 220, "Llama 8B by the loader: choices, graphs, decodes, prompt, swap, close"),
    Step("small", 2, 60, "Qwen3 0.6B: decodes, and replies with structures"),
    Step("experts", 2, 70, "Qwen3 30B-A3B of 8 layers: decodes, and its kernels counted"),
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu --short")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and do nothing")
    parser.add_argument("--part", type=int, choices=PART_LIMITS, help="one part; both without it")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--step", choices=[one.name for one in STEPS], help=argparse.SUPPRESS)
    parser.add_argument("--share", default="0/1", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        from benchmarks.gpu import steps

        share, shares = map(int, options.share.split("/"))
        return steps.run(options.step, options.device, share, shares)
    plan = [one for one in STEPS if options.part in (None, one.part)]
    for line in planned(plan):
        print(line, flush=True)
    if options.dry_run:
        return 0
    begun = time.monotonic()
    failed = [one.name for one in plan if not _ran(one, options.device, begun)]
    seconds = time.monotonic() - begun
    print(f"{seconds:6.1f}  all of this; failed: {', '.join(failed) or 'nothing'}", flush=True)
    return 1 if failed else 0


def planned(steps: Iterable[Step]) -> Iterable[str]:
    """The plan, a line for each step, behind those of its part."""
    part = 0
    for step in steps:
        if step.part != part:
            part = step.part
            total = sum(one.limit for one in STEPS if one.part == part)
            yield f"part {part}: at most {total} s of {PART_LIMITS[part]}"
        many = f", {step.processes} processes" if step.processes > 1 else ""
        yield f"  {step.name:<10} {step.limit:>4} s  {step.what}{many}"


def _ran(step: Step, device: str, begun: float) -> bool:
    """Run a step, and print what it says; returns whether all of it is well."""

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f}  {text}", flush=True)

    is_gpu = device != "cpu"
    say(f"{step.name}: {step.what}")
    environment = dict(os.environ) | ({} if is_gpu else {"TRITON_INTERPRET": "1"})
    # A process takes the GPU's memory and a core; under the interpreter there are few of these.
    shares = step.processes if is_gpu else 1
    command = [sys.executable, "-u", "-m", "benchmarks.gpu", "--short", "--step", step.name]
    children = [
        subprocess.Popen(
            [*command, "--device", device, "--share", f"{share}/{shares}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        for share in range(shares)
    ]

    def tell(child: subprocess.Popen[str]) -> None:
        for line in child.stdout or ():
            say(f"  {line.rstrip()}")

    readers = [threading.Thread(target=tell, args=(one,), daemon=True) for one in children]
    for reader in readers:
        reader.start()
    until = time.monotonic() + step.limit * (1 if is_gpu else _REHEARSAL)
    codes = [_code(child, until) for child in children]
    for reader in readers:
        reader.join(1.0)
    late = codes.count(None)
    if late:
        say(f"{step.name}: {late} of {shares} had not ended after {step.limit} s")
    if bad := [code for code in codes if code]:
        say(f"{step.name}: ended with {', '.join(map(str, bad))}")
    return not any(code != 0 for code in codes)


def _code(child: subprocess.Popen[str], until: float) -> int | None:
    """How a process ended; None if it had to be ended, with all that it had started."""
    try:
        return child.wait(max(until - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return None
