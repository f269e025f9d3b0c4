"""Peers: who is compared, and where each gets its packages and its form of the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environment import Environment, Say, follow
from benchmarks.peers.level import Level
from engine import native

OURS = "batchdeck"

_OPENVINO = Environment(
    "openvino",
    ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "torch>=2.11,<2.14"),
    # optimum-intel asks for it, but PyPI's does not load beside a CPU build of torch, and
    # transformers imports whatever torchvision it finds. Nothing here has pictures.
    unwanted=("torchvision",),
)


def _openvino(level: Level) -> Environment:
    return _OPENVINO


def _llama(level: Level) -> Environment:
    """llama.cpp uses what it was compiled for, so there is a build for each level. A wheel in pip's
    cache may have been built otherwise."""
    options = ("GGML_LLAMAFILE", *(f"GGML_{name}" for name in level.ggml))
    return Environment(
        f"llama-{level.name}",
        ("llama-cpp-python==0.3.36", "gguf==0.19.0"),
        options=("--no-binary", "llama-cpp-python", "--no-cache-dir"),
        variables={
            "CMAKE_ARGS": " ".join(
                ("-DGGML_NATIVE=OFF", "-DLLAVA_BUILD=OFF", *(f"-D{name}=ON" for name in options))
            ),
            "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count()),
        },
    )


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer to compare.

    Attributes:
        module: its worker, in `benchmarks.peers.engines`.
        held: what holds it to a level of instructions, with the `level`'s own in braces.
        environment: where its packages for a level are installed; None is batchdeck's own
            interpreter.
        converter: the module that writes the model in this peer's form; None if the peer reads the
            checkpoint.
        model: the file or folder that the converter writes, beside the checkpoint.
        arguments: the worker's arguments.
    """

    name: str
    module: str
    held: str
    environment: Callable[[Level], Environment] | None = None
    converter: str = ""
    model: str = ""
    arguments: tuple[str, ...] = ()

    def set_up(self, cache: Path, checkpoint: Path, level: Level, say: Say) -> tuple[Path, Path]:
        """Set the peer up, if it is not there yet.

        Returns:
            The interpreter, and the model for `load`.

        Raises:
            PeerMissingError: the peer cannot be had here.
        """
        if self.environment is None:
            return Path(sys.executable), checkpoint
        python = self.environment(level).python(cache, say)
        model = checkpoint.parent / self.model
        # A model that is older than the checkpoint was made from another one.
        if not model.exists() or model.stat().st_mtime < checkpoint.stat().st_mtime:
            say(f"{self.name}: converting the model")
            command = [str(python), "-m", f"{_ENGINES}.{self.converter}", checkpoint, model]
            log = model.with_name(f"{self.model}.log")
            follow([str(part) for part in command], log, self.name, say)
        return python, model

    def command(self, python: Path) -> list[str]:
        return [str(python), "-m", f"{_ENGINES}.{self.module}", *self.arguments]

    def variables(self, level: Level) -> dict[str, str]:
        """Environment variables of its worker, besides the number of threads and the level's own.

        Other programs wait by OpenMP's defaults (threads spin for some ms before they sleep), not
        as batchdeck does. The defaults are stated, for `benchmarks` sets what is not set.
        """
        if self.name == OURS:
            return {native.VARIABLE: level.name}
        return {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "300000"}


_ENGINES = "benchmarks.peers.engines"
_BY_TORCH = "ONEDNN_MAX_CPU_ISA={level.onednn} and ATEN_CPU_CAPABILITY={level.vectors}"
_BY_ONEDNN = "ONEDNN_MAX_CPU_ISA={level.onednn} in products, in attention and norms not at all"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "ours", f"{native.VARIABLE}={{level.name}}"),
        Peer("generate", "generate", _BY_TORCH),
        Peer("continuous", "continuous", _BY_TORCH),
        Peer("openvino", "openvino", _BY_ONEDNN, _openvino, "openvino_model", "openvino"),
        Peer(
            "openvino-bf16",
            "openvino",
            _BY_ONEDNN,
            _openvino,
            "openvino_model",
            "openvino",
            ("bf16",),
        ),
        Peer("llama.cpp", "llama", "its build", _llama, "llama_model", "llama.gguf"),
    )
}


def held(names: Iterable[str], level: Level) -> str:
    """What holds these peers to a level: a line for each means."""
    by: dict[str, list[str]] = {}
    for name in names:
        by.setdefault(PEERS[name].held.format(level=level), []).append(name)
    lines = (f"  {', '.join(names)}: {what}" for what, names in by.items())
    return "\n".join((f"held to {level.name} by", *lines))
