"""Verdicts: the findings of a model's checks, stored so that later loadings need not repeat them.

A verdict holds for one file on one processor with one build. A model with a stored graph is loaded
without transformers: its weights are packed for the graph, which must reproduce the logits of the
original checks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from engine.api.status import QuantizationLoss
from engine.model.files import kept
from engine.model.program.saved import SavedGraph
from engine.model.program.verify import Wrong

logger = logging.getLogger(__name__)

_LOGITS = "logits"  # their name among the tensors

# A file has the tables of rotations: half a megabyte to 67 MB.
_MOST_BYTES = 1 << 30


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
    digest = hashlib.sha256(kept.build().encode())
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
        layout, digest = stated["layout"], stated.pop("digest")
        if digest != _digest(stated, tensors):
            raise ValueError("it was changed")
        loss = stated["loss"]
        return Verdict(
            tuple(_wrong(**one) for one in stated["apart"]),
            None if loss is None else _loss(**loss),
            None if layout is None else SavedGraph(layout, tensors, tensors.pop(_LOGITS)),
        )
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        logger.warning("a kept verdict cannot be used, and the model is checked again: %s", error)
        return None


def store(key: str, verdict: Verdict) -> None:
    """Store a verdict. The oldest ones are removed when all take more than a gigabyte."""
    if not kept.KEPT:
        return
    file, graph = _file(key), verdict.graph
    tensors = {} if graph is None else {**graph.constants, _LOGITS: graph.logits}
    stated = {
        "apart": [asdict(one) for one in verdict.apart],
        "loss": None if verdict.loss is None else asdict(verdict.loss),
        "layout": None if graph is None else graph.layout,
    }
    stated["digest"] = _digest(stated, tensors)
    try:
        with kept.storing(file, file.parent, _MOST_BYTES) as partial:
            save_file(tensors, partial, {"verdict": json.dumps(stated)})
    except (OSError, SafetensorError) as error:
        logger.warning("the verdict on a model cannot be kept: %s", error)


def _digest(stated: Mapping[str, object], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(stated).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _file(key: str) -> Path:
    return kept.cache_folder() / "verdicts" / f"{key}.safetensors"


def _wrong(at: int, kind: str, columns: int, reason: str) -> Wrong:
    if not (type(at) is int and type(columns) is int and isinstance(kind, str)):
        raise ValueError("it does not say which operations torch computes")
    return Wrong(at, kind, columns, str(reason))


def _loss(tokens: int, equal_best: float, divergence: float) -> QuantizationLoss:
    return QuantizationLoss(int(tokens), float(equal_best), float(divergence))
