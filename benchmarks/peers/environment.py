"""Environment: an interpreter with a peer's packages, made once and kept in the cache folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Say = Callable[[str], None]

_MARK = "installed.json"
_STEP = re.compile(r"^\s*(\[\d+/\d+\])")
_STAGE = re.compile(r"^\s*(Collecting|Downloading|Building wheel|Installing collected)\b")
_SAY_SECONDS = 10.0


class PeerMissingError(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The packages to install.

    Attributes:
        requirements: as pip takes them, pinned, so that a run can be repeated.
        options: further arguments of `pip install`.
        unwanted: dependencies to take out again.
        variables: environment variables of pip's process.
    """

    name: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def python(self, cache: Path, say: Say) -> Path:
        """The interpreter, set up if it is not there yet.

        Args:
            cache: folder that holds all environments.

        Raises:
            PeerMissingError: something could not be downloaded or built.
        """
        folder = cache / self.name
        python = folder / "venv" / "bin" / "python"
        wanted = json.dumps([sys.version, self.requirements, self.options, dict(self.variables)])
        mark = folder / _MARK
        if mark.is_file() and mark.read_text() == wanted:
            return python
        folder.mkdir(parents=True, exist_ok=True)
        mark.unlink(missing_ok=True)
        log = folder / "install.log"
        pip = [str(python), "-m", "pip"]
        follow([sys.executable, "-m", "venv", "--clear", str(folder / "venv")], log, self.name, say)
        install = [*pip, "install", "--verbose", *self.options, *self.requirements]
        follow(install, log, f"{self.name}: pip", say, self.variables)
        if self.unwanted:
            uninstall = [*pip, "uninstall", "--yes", *self.unwanted]
            follow(uninstall, log, self.name, say)
        mark.write_text(wanted)
        return python


def follow(
    command: list[str],
    log: Path,
    name: str,
    say: Say,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a command, and tell every 10 s how far it is.

    Args:
        log: takes what the command says, from the start.

    Raises:
        PeerMissingError: it cannot be run or fails.
    """
    env = os.environ | dict(variables or {})
    start = said = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
            )
        except OSError as error:
            raise PeerMissingError(f"{name} cannot be run: {error}") from error
        with process:
            assert process.stdout is not None
            stage = ""
            for raw in process.stdout:
                line = raw.decode(errors="replace")
                out.write(line)
                if step := _STEP.match(line):
                    stage = f"compiling {step[1]}"
                elif _STAGE.match(line):
                    stage = line.strip()[:60]
                if time.monotonic() - said > _SAY_SECONDS:
                    said = time.monotonic()
                    say(f"{name}: {said - start:.0f} s, {stage}")
    if process.returncode != 0:
        raise PeerMissingError(f"{name} failed: {_reason(log)} (all of it: {log})")


def _reason(log: Path) -> str:
    """The line of a log that most likely says what went wrong."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(ERROR|CMake Error|\w*Error)\b", line)]
    return (errors or lines or ["it said nothing"])[-1][:200]
