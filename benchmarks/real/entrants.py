"""Entrants: who serves a model file, and who serves the folder that was made of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers.environment import PeerMissingError
from benchmarks.peers.level import Level
from benchmarks.peers.peers import OURS, PEERS, PLAIN, Contender, Form, contenders
from benchmarks.peers.width import BF16
from benchmarks.peers.worker import Worker

Say = Callable[[str], None]

LLAMA = "llama.cpp"
_FILE = Form("file", BF16)
_LOADED = (sys.executable, "-m", "benchmarks.peers.engines.loaded")
_LLAMA_WORKER = ("-m", "benchmarks.peers.engines.llama", "defaults")
_DEFAULT = "-"


@dataclass(frozen=True, slots=True)
class Entrant:
    """A peer with the model in one form.

    Attributes:
        command: of its worker.
        model: the file or folder that it loads.
        variables: of its worker's environment, beside the level's.
    """

    contender: Contender
    command: tuple[str, ...]
    model: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def keeps(self) -> bool:
        """Whether it may keep something from one load to the next."""
        return self.contender.peer.name == OURS

    def start(self, threads: int, kept: Path, log: Path) -> Worker:
        """Start its worker.

        Args:
            kept: the folder in which it keeps what it keeps, instead of the user's cache folder.
        """
        own = {"XDG_CACHE_HOME": str(kept)} if self.keeps else {}
        variables = {**self.variables, **own, "OMP_NUM_THREADS": str(threads)}
        return Worker(self.command, variables, log)


def file_entrants(
    file: Path, level: Level, dtype: str | None, cache: Path, say: Say
) -> dict[str, Entrant]:
    """batchdeck and llama.cpp with the file as it is, by name.

    Raises:
        PeerMissingError: llama.cpp cannot be had here.
    """
    environment = PEERS[LLAMA].environment
    assert environment is not None
    python = str(environment(level).python(cache, say))
    ours, llama = Contender(PEERS[OURS], _FILE), Contender(PEERS[LLAMA], _FILE)
    command = (*_LOADED, _DEFAULT, dtype or _DEFAULT)
    return {
        OURS: Entrant(ours, command, file, ours.variables(level)),
        LLAMA: Entrant(llama, (python, *_LLAMA_WORKER), file, llama.variables(level)),
    }


def folder_entrants(
    checkpoint: Path,
    level: Level,
    peers: Sequence[str],
    widths: Sequence[str],
    dtype: str | None,
    cache: Path,
    say: Say,
) -> tuple[dict[str, Entrant], dict[str, str]]:
    """batchdeck and peers with the folder, in each width that they have.

    Returns:
        Those that are ready, by name, and why others are not.
    """
    found: dict[str, Entrant] = {}
    missing: dict[str, str] = {}
    if not widths:
        return found, missing
    for name, contender in contenders([OURS, *peers], widths).items():
        variables = contender.variables(level)
        if contender.peer.name == OURS:
            quantize = _DEFAULT if contender.form == PLAIN else contender.form.name
            command = (*_LOADED, quantize, dtype or _DEFAULT)
            found[name] = Entrant(contender, command, checkpoint, variables)
            continue
        try:
            python, model = contender.set_up(cache, checkpoint, level, say)
        except PeerMissingError as error:
            missing[name] = str(error)
            continue
        found[name] = Entrant(contender, tuple(contender.command(python)), model, variables)
    return found, missing
