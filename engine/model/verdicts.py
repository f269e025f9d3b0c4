"""Verdicts: the findings of a model's checks, stored so that later loadings need not repeat them.

A verdict holds for one file on one processor with one build. A model with a stored graph is loaded
without transformers: its weights are packed for the graph, which must reproduce the logits of the
original checks.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
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
from engine.model import kept
from engine.model.program.saved import SavedGraph
from engine.model.program.verify import Wrong
from engine.model.registry import cache_folder
from engine.native import kernels

logger = logging.getLogger(__name__)

_LOGITS = "logits"  # their name among the tensors

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
    if not kept.KEPT:
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
    if not kept.KEPT:
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
        with kept.storing(file, file.parent, _MOST_BYTES) as partial:
            save_file(tensors, partial, {"verdict": json.dumps(stated)})
    except (OSError, SafetensorError) as error:
        logger.warning("the verdict on a model cannot be kept: %s", error)


def recall(facts: tuple[object, ...], make: Callable[[], JsonT]) -> JsonT:
    """A finding that depends on some facts and on the build alone, as JSON data. It is made once.

    Args:
        make: finds it.
    """
    digest = hashlib.sha256(repr((build(), facts)).encode()).hexdigest()
    path = cache_folder() / "findings" / f"{digest}.json"
    found: JsonT = json.loads(
        kept.recall(path, lambda: json.dumps(make()).encode(), most=_MOST_FINDINGS)
    )
    return found


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
