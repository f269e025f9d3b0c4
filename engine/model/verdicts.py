"""Verdicts: what the checks of a model found, kept so that they need not be made at each loading.

A verdict holds for one file on one processor with one build. Whatever it says, each operation of a
program is compared with the model's own numbers whenever the model is loaded.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import engine
from engine.api.status import QuantizationLoss
from engine.model.program.verify import Wrong
from engine.model.registry import cache_folder
from engine.native import kernels

logger = logging.getLogger(__name__)

# Whether verdicts are kept and used. Tests make all checks every time.
KEPT = True

_MOST = 200  # files, of half a kilobyte each


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings on a model that passed its checks.

    Attributes:
        apart: the operations that torch computes.
        loss: what codes change; None if there are none, or it was not measured.
    """

    apart: tuple[Wrong, ...]
    loss: QuantizationLoss | None


def key_of(files: Iterable[Path], *facts: object) -> str:
    """The key of a verdict on some files, which is another one for other facts, for another
    processor and for another build.

    Files are compared by place, size and time of the last change.
    """
    digest = hashlib.sha256(_here().encode())
    for file in sorted(set(files)):
        found = file.stat()
        stated = (str(file.resolve()), found.st_size, found.st_mtime_ns, found.st_ino)
        digest.update(repr(stated).encode())
    digest.update(repr(facts).encode())
    return digest.hexdigest()


def find(key: str) -> Verdict | None:
    """The verdict of that key; None if there is none, or it is broken."""
    if not KEPT:
        return None
    try:
        stated: Any = json.loads(_file(key).read_text(encoding="utf-8"))
        loss = stated["loss"]
        return Verdict(
            tuple(_wrong(**one) for one in stated["apart"]),
            None if loss is None else _loss(**loss),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        logger.warning("a kept verdict cannot be used, and the model is checked anew: %s", error)
        return None


def keep(key: str, verdict: Verdict) -> None:
    """Keep a verdict. The oldest ones go when there are many."""
    if not KEPT:
        return
    file = _file(key)
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(verdict)), encoding="utf-8")
        partial.replace(file)
        kept = sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for old in kept[:-_MOST]:
            old.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("the verdict on a model cannot be kept: %s", error)


def _file(key: str) -> Path:
    return cache_folder() / "verdicts" / f"{key}.json"


def _wrong(at: int, kind: str, columns: int, reason: str) -> Wrong:
    if not (type(at) is int and type(columns) is int and isinstance(kind, str)):
        raise ValueError("it does not say which operations torch computes")
    return Wrong(at, kind, columns, str(reason))


def _loss(tokens: int, equal_best: float, divergence: float) -> QuantizationLoss:
    return QuantizationLoss(int(tokens), float(equal_best), float(divergence))


@functools.cache
def _here() -> str:
    """Processor, kernels, libraries and code, on which the checks of any model depend."""
    native = kernels()
    facts: list[object] = [torch.__version__, transformers.__version__, _processor()]
    if native is not None:
        facts += [native.level(), _stamp(Path(str(native.__file__)))]
    folders = sorted(engine.__path__)  # two where an editable installation has the kernels apart
    facts += [_stamp(file) for one in folders for file in sorted(Path(one).rglob("*.py"))]
    return repr(facts)


def _stamp(file: Path) -> tuple[str, int, int]:
    found = file.stat()
    return file.name, found.st_size, found.st_mtime_ns


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    named = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
    return repr(sorted({one for one in lines if one.partition("\t")[0].strip() in named}))
