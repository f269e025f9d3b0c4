"""Heading: the command of a benchmark and the machine that it ran on, above what it prints."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from pathlib import Path

from app.system.machine import CPU_INFO, cpu_features, num_cores
from benchmarks import PASSIVE, WAITING
from engine import native


def heading(*about: str) -> str:
    """Two lines: the command, and the machine with all else that decides the figures.

    Args:
        about: what else decides them, such as the number of threads and versions of libraries.
    """
    return f"$ {command()}\n{'; '.join([machine(), *about])}"


def command() -> str:
    """The command as it was typed, with the variables of the environment that decide how models
    compute."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else sys.argv[0]
    variables = [
        f"{variable}={shlex.quote(os.environ[variable])}"
        for variable, default in ((native.VARIABLE, None), (WAITING, PASSIVE))
        if os.environ.get(variable) != default
    ]
    return " ".join([*variables, "python -m", name, *map(shlex.quote, sys.argv[1:])])


def machine() -> str:
    """The machine: its processor, the cores for this program, and the instructions that count."""
    features = cpu_features()
    told = f" ({' '.join(features)})" if features else ""
    return f"{num_cores()} cores of {processor()}{told}, Python {platform.python_version()}"


def processor(info: Path = CPU_INFO) -> str:
    """The processor's name, as far as the system tells it."""
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
