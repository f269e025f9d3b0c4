"""Peers: who is compared, and where each gets its packages and its form of the model."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environment import Environment, Say, follow

OURS = "batchdeck"

OPENVINO = Environment(
    "openvino",
    ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "torch>=2.11,<2.14"),
    # optimum-intel asks for it, but PyPI's does not load beside a CPU build of torch, and
    # transformers imports whatever torchvision it finds. Nothing here has pictures.
    unwanted=("torchvision",),
)
LLAMA = Environment(
    "llama",
    ("llama-cpp-python==0.3.36", "gguf==0.19.0"),
    # It is built from source for this processor's instructions, AVX512-BF16 among them. A wheel in
    # pip's cache may have been built otherwise.
    options=("--no-binary", "llama-cpp-python", "--no-cache-dir"),
    variables={
        "CMAKE_ARGS": "-DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DLLAVA_BUILD=OFF",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count()),
    },
)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer to compare.

    Attributes:
        module: its worker, in `benchmarks.peers.engines`.
        environment: where its packages are installed; None is batchdeck's own interpreter.
        converter: the module that writes the model in this peer's form; None if the peer reads the
            checkpoint.
        model: the file or folder that the converter writes, beside the checkpoint.
        arguments: the worker's arguments.
    """

    name: str
    module: str
    environment: Environment | None = None
    converter: str = ""
    model: str = ""
    arguments: tuple[str, ...] = ()

    def set_up(self, cache: Path, checkpoint: Path, say: Say) -> tuple[Path, Path]:
        """Set the peer up, if it is not there yet.

        Returns:
            The interpreter, and the model for `load`.

        Raises:
            PeerMissingError: the peer cannot be had here.
        """
        if self.environment is None:
            return Path(sys.executable), checkpoint
        python = self.environment.python(cache, say)
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

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of its worker, besides the number of threads.

        Other programs wait by OpenMP's defaults (threads spin for some ms before they sleep), not
        as batchdeck does. The defaults are stated, for `benchmarks` sets what is not set.
        """
        if self.name == OURS:
            return {}
        return {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "300000"}


_ENGINES = "benchmarks.peers.engines"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "ours"),
        Peer("generate", "generate"),
        Peer("continuous", "continuous"),
        Peer("openvino", "openvino", OPENVINO, "openvino_model", "openvino"),
        Peer("openvino-bf16", "openvino", OPENVINO, "openvino_model", "openvino", ("bf16",)),
        Peer("llama.cpp", "llama", LLAMA, "llama_model", "llama.gguf"),
    )
}
