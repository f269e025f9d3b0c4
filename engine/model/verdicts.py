"""Verdicts: the findings of a model's checks, stored so that later loadings need not repeat them.

A verdict holds for one file on one processor with one build. A model with a stored graph is loaded
without transformers: its weights are packed for the graph, which must reproduce the logits of the
original checks.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import engine
from engine.api.status import QuantizationLoss
from engine.model.program.saved import SavedGraph
from engine.model.program.verify import Wrong
from engine.model.registry import cache_folder
from engine.native import kernels

logger = logging.getLogger(__name__)

_LOGITS = "logits"  # their name among the tensors

# Whether verdicts are stored and used. Tests make all checks every time.
KEPT = True

# A file has the tables of rotations: half a megabyte to 67 MB.
_MOST_BYTES = 1 << 30
# A finding has 1 to 30 KB.
_MOST_FINDINGS = 16 << 20

JsonT = TypeVar("JsonT")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings for a model that passed its checks.

    Attributes:
        apart: operations that torch computes.
        loss: the loss through codes; None without codes, or if not measured.
        graph: the model's computation; None if each loading must determine it.
    """

    apart: tuple[Wrong, ...]
    loss: QuantizationLoss | None
    graph: SavedGraph | None = None


def key_of(files: Iterable[Path], *facts: object) -> str:
    """The key of a verdict on some files, different for other facts, for another processor and for
    another build.

    Files are compared by path, size and time of the last change.
    """
    digest = hashlib.sha256(build().encode())
    for file in sorted(set(files)):
        found = file.stat()
        stated = (str(file.resolve()), found.st_size, found.st_mtime_ns, found.st_ino)
        digest.update(repr(stated).encode())
    digest.update(repr(facts).encode())
    return digest.hexdigest()


def find(key: str) -> Verdict | None:
    """Find the verdict of a key; None if there is none, or it is broken."""
    if not KEPT:
        return None
    try:
        with safe_open(_file(key), "pt") as file:
            stated: Any = json.loads(file.metadata()["verdict"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if stated["digest"] != _digest(tensors):
            raise ValueError("its tensors are not those that were kept")
        loss, layout = stated["loss"], stated["layout"]
        return Verdict(
            tuple(_wrong(**one) for one in stated["apart"]),
            None if loss is None else _loss(**loss),
            None if layout is None else SavedGraph(layout, tensors, tensors.pop(_LOGITS)),
        )
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        logger.warning("a kept verdict cannot be used, and the model is checked anew: %s", error)
        return None


def keep(key: str, verdict: Verdict) -> None:
    """Store a verdict. The oldest ones are removed when all take more than a gigabyte."""
    if not KEPT:
        return
    file, graph = _file(key), verdict.graph
    tensors = {} if graph is None else {**graph.constants, _LOGITS: graph.logits}
    stated = {
        "apart": [asdict(one) for one in verdict.apart],
        "loss": None if verdict.loss is None else asdict(verdict.loss),
        "layout": None if graph is None else graph.layout,
        "digest": _digest(tensors),
    }
    try:
        with storing(file, file.parent, _MOST_BYTES) as partial:
            save_file(tensors, partial, {"verdict": json.dumps(stated)})
    except (OSError, SafetensorError) as error:
        logger.warning("the verdict on a model cannot be kept: %s", error)


def recall(facts: tuple[object, ...], make: Callable[[], JsonT]) -> JsonT:
    """A finding that depends on some facts and on the build alone, as JSON data. It is made once.

    Args:
        make: finds it.
    """
    if not KEPT:
        return make()
    digest = hashlib.sha256(repr((build(), facts)).encode()).hexdigest()
    path = cache_folder() / "findings" / f"{digest}.json"
    try:
        content, _, stated = path.read_text(encoding="utf-8").partition("\n")
        if hashlib.sha256(content.encode()).hexdigest() == stated:
            found: JsonT = json.loads(content)
            return found
    except (OSError, ValueError):
        pass  # It is made, and stored in its place.
    found = make()
    content = json.dumps(found)
    stated = hashlib.sha256(content.encode()).hexdigest()
    try:
        with storing(path, path.parent, _MOST_FINDINGS) as partial:
            partial.write_text(f"{content}\n{stated}", encoding="utf-8")
    except OSError as error:
        logger.warning("a finding on a model cannot be kept: %s", error)
    return found


@contextmanager
def storing(file: Path, folder: Path, most: int) -> Iterator[Path]:
    """The path of a file to write, which becomes `file` at the end of the context. If it was not
    written, or the context raises, nothing remains.

    Args:
        folder: the oldest files below it are removed until all have at most `most` bytes.

    Raises:
        OSError: the folder cannot be written.
    """
    partial = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        if partial.exists():
            partial.replace(file)
            _make_room(file, folder, most)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _make_room(file: Path, folder: Path, most: int) -> None:
    """Remove the oldest files of a folder, except one, until all have at most `most` bytes."""
    every = (one for one in folder.rglob("*") if one.is_file() and one != file)
    stats = {one: one.stat() for one in every}
    left = most - file.stat().st_size
    for one in sorted(stats, key=lambda one: stats[one].st_mtime, reverse=True):
        left -= stats[one].st_size
        if left < 0:
            one.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _file(key: str) -> Path:
    return cache_folder() / "verdicts" / f"{key}.safetensors"


def _wrong(at: int, kind: str, columns: int, reason: str) -> Wrong:
    if not (type(at) is int and type(columns) is int and isinstance(kind, str)):
        raise ValueError("it does not say which operations torch computes")
    return Wrong(at, kind, columns, str(reason))


def _loss(tokens: int, equal_best: float, divergence: float) -> QuantizationLoss:
    return QuantizationLoss(int(tokens), float(equal_best), float(divergence))


@functools.cache
def build() -> str:
    """A digest of processor, kernels, libraries and code, on which the checks of any model
    depend.
    """
    native = kernels()
    facts: list[object] = [torch.__version__, transformers.__version__, _processor()]
    if native is not None:
        facts += [native.level(), _stamp(Path(str(native.__file__)))]
    folders = sorted(engine.__path__)  # two if an editable installation has the kernels elsewhere
    facts += [_stamp(file) for one in folders for file in sorted(Path(one).rglob("*.py"))]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


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
