"""Compiles the Triton kernels for GPUs that are not here, and says what they use.

`python -m tests.support.compiled_kernels CAPABILITY [VARIANT ...]` prints a line of JSON: for each
variant its registers, spilled bytes, bytes of shared memory, asynchronous copies, and accesses of
16 bytes. It has to run without Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tests.support.kernel_variants import VARIANTS

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


class Launch:
    """What a launcher asked for."""

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


def launch_of(launcher: Callable[[], None]) -> Launch:
    """The one launch of a launcher."""
    launches = []

    def run(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launches.append(Launch(kernel, arguments, named))

    with patch.object(JITFunction, "run", run):
        launcher()
    (launch,) = launches
    return launch


def compiled(launch: Launch, capability: int) -> dict[str, int]:
    target = GPUTarget("cuda", capability, 32)
    built = triton.compile(launch.source(), target=target, options=launch.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = said(TOOLS / "cuobjdump", "--dump-resource-usage", file.name)
        code = said(TOOLS / "nvdisasm", "-c", file.name)
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return {
        "registers": found["REG"],
        "spilled": found["STACK"] + found["LOCAL"],
        "shared": built.metadata.shared,
        "copies": len(re.findall(r"LDGSTS|UBLKCP|UTMALDG", code)),
        "wide_loads": len(re.findall(r"LDG\.E\.\S*128", code)),
        "wide_stores": len(re.findall(r"STG\.E\.\S*128", code)),
    }


def said(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    capability, names = int(sys.argv[1]), sys.argv[2:] or list(VARIANTS)
    kernels = {name: compiled(launch_of(VARIANTS[name]), capability) for name in names}
    print(json.dumps(kernels))


if __name__ == "__main__":
    main()
