"""Peers: who is compared, where each gets its packages, and its forms of the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.environment import Environment, Say, follow
from benchmarks.peers.level import Level
from benchmarks.peers.width import BF16, WIDTHS, Width
from engine import native

OURS = "batchdeck"


def _openvino(level: Level) -> Environment:
    return Environment(
        "openvino",
        (
            *("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0"),
            "torch>=2.11,<2.14",
        ),
        # optimum-intel asks for it, but PyPI's does not load beside a CPU build of torch, and
        # transformers imports whatever torchvision it finds. Nothing here has pictures.
        unwanted=("torchvision",),
    )


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
class Form:
    """A form that a peer gives a model's weights.

    Attributes:
        name: as the peer itself names it.
        width: the width that it is compared in.
        scheme: how it quantizes, in words.
    """

    name: str
    width: Width
    scheme: str = "as they are"


PLAIN = Form(BF16.name, BF16)
OUR_PLAIN = f"{OURS} {PLAIN.name}"


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer to compare.

    Attributes:
        module: its worker, in `benchmarks.peers.engines`.
        held: what holds it to a level of instructions, with the `level`'s own in braces.
        forms: those that it can give the weights.
        environment: where its packages for a level are installed; None is batchdeck's own
            interpreter.
        converter: the module that writes the model in this peer's form; None if the peer reads the
            checkpoint.
        model: the file or folder that the converter writes, beside the checkpoint, with the
            `form`'s name in braces.
        arguments: the worker's arguments.
    """

    name: str
    module: str
    held: str
    forms: tuple[Form, ...] = (PLAIN,)
    environment: Callable[[Level], Environment] | None = None
    converter: str = ""
    model: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contender:
    """A peer with the weights in one of its forms."""

    peer: Peer
    form: Form

    @property
    def name(self) -> str:
        return f"{self.peer.name} {self.form.name}"

    def set_up(self, cache: Path, checkpoint: Path, level: Level, say: Say) -> tuple[Path, Path]:
        """Set it up, if it is not there yet.

        Returns:
            The interpreter, and the model for `load`.

        Raises:
            PeerMissingError: it cannot be had here.
        """
        peer, form = self.peer, self.form.name
        if peer.environment is None:
            return Path(sys.executable), checkpoint
        python = peer.environment(level).python(cache, say)
        model = checkpoint.parent / peer.model.format(form=form)
        # A model that is older than the checkpoint was made from another one.
        if not model.exists() or model.stat().st_mtime < checkpoint.stat().st_mtime:
            say(f"{self.name}: converting the model")
            command = [python, "-m", f"{_ENGINES}.{peer.converter}", checkpoint, model, form]
            log = model.with_name(f"{model.name}.log")
            follow([str(part) for part in command], log, self.name, say)
        return python, model

    def command(self, python: Path) -> list[str]:
        arguments = (self.form.name,) if self.peer.name == OURS else self.peer.arguments
        return [str(python), "-m", f"{_ENGINES}.{self.peer.module}", *arguments]

    def variables(self, level: Level) -> dict[str, str]:
        """Environment variables of its worker, besides the number of threads and the level's own.

        Other programs wait by OpenMP's defaults (threads spin for some ms before they sleep), not
        as batchdeck does. The defaults are stated, for `benchmarks` sets what is not set.
        """
        if self.peer.name == OURS:
            return {native.VARIABLE: level.name}
        return {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "300000"}


def contenders(peers: Sequence[str], widths: Sequence[str]) -> dict[str, Contender]:
    """The contenders in these widths, by name, and batchdeck in bf16 in any case if it is a
    peer."""
    found = [
        Contender(PEERS[peer], form)
        for width in widths
        for peer in peers
        for form in PEERS[peer].forms
        if form.width.name == width
    ]
    if OURS in peers and BF16.name not in widths:
        found.insert(0, Contender(PEERS[OURS], PLAIN))
    return {contender.name: contender for contender in found}


def held(found: Iterable[Contender], level: Level) -> str:
    """The means that hold contenders to a level, a line for each."""
    by: dict[str, dict[str, None]] = {}
    for contender in found:
        peer = contender.peer
        by.setdefault(peer.held.format(level=level), {})[peer.name] = None
    lines = (f"  {', '.join(names)}: {what}" for what, names in by.items())
    return "\n".join((f"held to {level.name} by", *lines))


_ENGINES = "benchmarks.peers.engines"
_BY_TORCH = "ONEDNN_MAX_CPU_ISA={level.onednn} and ATEN_CPU_CAPABILITY={level.vectors}"
_BY_ONEDNN = "ONEDNN_MAX_CPU_ISA={level.onednn} in products, in attention and norms not at all"
_INT8, _INT4 = WIDTHS["int8"], WIDTHS["int4"]
_OUR_FORMS = (
    PLAIN,
    Form("int8", _INT8, "symmetric, in groups of up to 128, 8.1 bits a weight"),
    Form("int4", _INT4, "symmetric, in groups of 32, 4.5 bits a weight; the head as in int8"),
)
_OPENVINO_FORMS = (
    PLAIN,
    Form("int8", _INT8, "by NNCF, INT8_ASYM, a scale and a zero point for each row"),
    Form(
        "int4",
        _INT4,
        "by NNCF, INT4_ASYM in groups of 64, a scale and a zero point for each; ratio 1.0, its "
        "default, by which all but embedding and head have 4 bits, and these are INT8_ASYM",
    ),
)
_LLAMA_FORMS = (
    PLAIN,
    Form("Q8_0", _INT8, "symmetric, in groups of 32, 8.5 bits a weight"),
    Form("Q4_0", _INT4, "symmetric, in groups of 32, 4.5 bits a weight"),
    Form("Q4_K_M", _INT4, "Q4_K, in groups of 32 with scale and minimum, and some in Q6_K"),
)

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            OURS,
            "ours",
            f"{native.VARIABLE}={{level.name}}",
            _OUR_FORMS,
        ),
        Peer("generate", "generate", _BY_TORCH),
        Peer("continuous", "continuous", _BY_TORCH),
        *(
            Peer(
                called,
                "openvino",
                _BY_ONEDNN,
                _OPENVINO_FORMS,
                _openvino,
                "openvino_model",
                "openvino-{form}",
                arguments,
            )
            for called, arguments in (("openvino", ()), ("openvino-bf16-cache", ("bf16",)))
        ),
        Peer(
            "llama.cpp",
            "llama",
            "its build",
            _LLAMA_FORMS,
            _llama,
            "llama_model",
            "llama-{form}.gguf",
        ),
    )
}
