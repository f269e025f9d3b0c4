"""Compiles the Triton kernels for GPUs that are not here, and says what they use.

`python -m tests.support.compiled_kernels CAPABILITY` prints a line of JSON: for each kernel its
registers, spilled bytes, bytes of shared memory, and asynchronous copies. It has to run without
Triton's interpreter, in a process of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.model.attention.triton_backend import warps_of
from engine.triton import attention

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
POINTERS = {
    "output": "*bf16",
    "parts": "*fp32",
    "states": "*fp32",
    "query": "*bf16",
    "keys": "*bf16",
    "values": "*bf16",
    "sinks": "*bf16",
    "items": "*i32",
    "merges": "*i32",
    "block_tables": "*i32",
}
NUMBERS = {
    "scaling": "fp32",
    "softcap": "fp32",
    "window": "i32",
    "query_token_stride": "i32",
    "query_head_stride": "i32",
    "table_stride": "i32",
}
# What the launcher finds to be multiples of 16 in a model whose heads have 128 numbers.
ALIGNED = {*POINTERS, "query_token_stride", "query_head_stride"}


def variants() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Kernels with their constants: those of Llama-3.1-8B, and Gemma 2's with all features."""
    llama: dict[str, Any] = {
        "KV_HEADS": 8,
        "GROUPS": 4,
        "VALUE_DIM": 128,
        "PADDED_VALUE": 128,
        "HAS_SINKS": False,
    }
    attend = {
        "HEAD_DIM": 128,
        "PADDED_HEAD": 128,
        "BLOCK_SIZE": 16,
        "KEYS": 64,
        "HAS_SOFTCAP": False,
        "HAS_WINDOW": False,
        "UPCAST": False,
    }
    wide = {"VALUE_DIM": 256, "PADDED_VALUE": 256, "GROUPS": 2, "HAS_SINKS": True}
    features = {"HEAD_DIM": 256, "PADDED_HEAD": 256, "HAS_SOFTCAP": True, "HAS_WINDOW": True}
    return {
        "decode": (attention.attend, {**llama, **attend, "TILE": 16}),
        "prefill": (attention.attend, {**llama, **attend, "TILE": 64}),
        "wide decode": (attention.attend, {**llama, **attend, **wide, **features, "TILE": 16}),
        "merge": (attention.merge, {**llama, "TILE": 16}),
    }


def compiled(kernel: Any, constants: dict[str, Any], capability: int) -> dict[str, int]:
    names = kernel.arg_names
    signature = {name: (POINTERS | NUMBERS).get(name, "constexpr") for name in names}
    aligned: dict[Any, Any] = {
        (at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name in ALIGNED
    }
    fixed = {(names.index(name),): value for name, value in constants.items()}
    built = triton.compile(
        ASTSource(kernel, signature, fixed, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps_of(constants["TILE"])},
    )
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
    }


def said(*command: object) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    capability = int(sys.argv[1])
    kernels = {
        name: compiled(kernel, constants, capability)
        for name, (kernel, constants) in variants().items()
    }
    print(json.dumps(kernels))


if __name__ == "__main__":
    main()
