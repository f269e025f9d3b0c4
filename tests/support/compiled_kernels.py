"""Compiles the Triton kernels for GPUs that are not here, and says what they use.

`python -m tests.support.compiled_kernels [--overlap] CAPABILITY,... [VARIANT ...]` prints a line of
JSON: for each capability and variant its registers, spilled bytes, bytes of shared memory,
asynchronous copies, how many groups of them are under way when the first of them are waited for,
accesses of 16 bytes, and what its PTX does up to where it waits for the kernel before, which is
nothing without --overlap. With it, the same is reported of its machine code. It has to run without
Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from engine.triton.overlap import overlapping
from tests.support.kernel_variants import NTH, variants

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
WIDE = r"\S*\.v(?:4\.b32|2\.b64)"
# Instructions by their names. Loads and stores are those of memory that kernels share. Whether all
# programs wait is seen in PTX: machine code branches before where it takes tensor memory.
PTX = {
    "lets next start": r"griddepcontrol\.launch_dependents",
    "waits": r"griddepcontrol\.wait",
    "fetches": r"prefetch\.global",
    "loads": r"ld\.global|cp\.async\.(?:ca|cg|bulk)",
    "stores": r"st\.global|red\.|atom\.",
    "branches": r"bra|brx|ret|exit|call",
}
SASS = {
    "lets next start": r"PREEXIT",
    "waits": r"ACQBULK",
    "fetches": r"CCTL",
    "loads": r"LDG|LD\.|UBLKCP|UTMALDG",
    "stores": r"STG|ST\.|REDG|RED\.|ATOMG|ATOM\.",
}


class Launch:
    """A launch that a launcher requested."""

    def __init__(self, kernel: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.kernel = kernel
        self.options = {k: v for k, v in named.items() if k not in kernel.arg_names}
        given = {k: v for k, v in named.items() if k in kernel.arg_names}
        bound = inspect.signature(kernel.fn).bind(*arguments, **given)
        bound.apply_defaults()
        self.arguments = bound.arguments

    def source(self) -> ASTSource:
        """The kernel with the types and hints that the launcher would find."""
        signature: dict[str, str] = {}
        constants: dict[Any, Any] = {}
        aligned: dict[Any, Any] = {}
        for at, parameter in enumerate(self.kernel.params):
            name, value = parameter.name, self.arguments[parameter.name]
            is_fixed = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
            if parameter.is_constexpr or is_fixed:
                signature[name] = "constexpr"
                constants[(at,)] = value
                continue
            if isinstance(value, torch.Tensor):
                signature[name] = TYPES[value.dtype]
                address = value.storage_offset() * value.element_size()
            else:
                signature[name] = "i32" if isinstance(value, int) else "fp32"
                address = value if isinstance(value, int) else 1
            if address % 16 == 0 and not parameter.do_not_specialize:
                aligned[(at,)] = [["tt.divisibility", 16]]
        return ASTSource(self.kernel, signature, constants, aligned)


def launch_of(launcher: Callable[[], None], nth: int) -> Launch:
    """One launch of a launcher."""
    launches = []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launches.append(Launch(kernel, arguments, named))

    with patch.object(JITFunction, "run", run):
        launcher()
    return launches[nth]


def until_wait(lines: str, kinds: dict[str, str]) -> list[str]:
    """The operations of some code, up to its first wait or else to its end; none if it neither
    waits nor lets the next kernel start.
    """
    named = "|".join(f"(?P<k{at}>{names})" for at, names in enumerate(kinds.values()))
    # Before a name there may be its address, and a predicate.
    pattern = re.compile(rf"^\s*(?:/\*\w+\*/\s+)?(?:@!?%?\w+\s+)?(?:{named})", re.MULTILINE)
    order = list(kinds)
    done = [order[int(str(found.lastgroup)[1:])] for found in pattern.finditer(lines)]
    if "waits" in done:
        return done[: done.index("waits") + 1]
    return done if "lets next start" in done else []


def compiled(launch: Launch, capability: int, *, overlap: bool) -> dict[str, Any]:
    target = GPUTarget("cuda", capability, 32)
    built = triton.compile(launch.source(), target=target, options=launch.options)
    ptx = built.asm["ptx"]
    until = {"ptx": until_wait(ptx, PTX)}
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = said(TOOLS / "cuobjdump", "--dump-resource-usage", file.name)
        if overlap:  # a disassembly takes 0.3 s, of the smallest kernel too
            until["sass"] = until_wait(said(TOOLS / "nvdisasm", "-c", file.name), SASS)
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return {
        "registers": found["REG"],
        "spilled": found["STACK"] + found["LOCAL"],
        "shared": built.metadata.shared,
        # The assembler makes one instruction of each of these.
        "in_flight": max(
            map(int, re.findall(r"cp\.async\.wait_group\s+(?:0x)?(\d+)", ptx)), default=0
        ),
        "copies": len(re.findall(r"cp\.async\.(?:ca|cg|bulk)", ptx)),
        "wide_loads": len(re.findall(rf"ld\.global{WIDE}", ptx)),
        "wide_stores": len(re.findall(rf"st\.global{WIDE}", ptx)),
        "until_wait": until,
    }


def said(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("capabilities")
    parser.add_argument("variants", nargs="*", default=())
    asked = parser.parse_args()
    print(
        json.dumps(
            {
                int(one): kernels(int(one), asked.variants, overlap=asked.overlap)
                for one in asked.capabilities.split(",")
            }
        )
    )


def kernels(capability: int, names: Sequence[str], *, overlap: bool) -> dict[str, dict[str, Any]]:
    """The usage of the named variants, or of all, by name."""
    with overlapping(overlap):
        known = variants(capability)
        launches = {name: launch_of(known[name], NTH.get(name, -1)) for name in names or known}
    return {name: compiled(one, capability, overlap=overlap) for name, one in launches.items()}


if __name__ == "__main__":
    main()
