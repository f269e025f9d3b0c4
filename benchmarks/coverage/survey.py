"""Survey: one row through the loader and the core, in the process that it has to itself."""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch
import transformers

from benchmarks.coverage.build import Built, build
from benchmarks.coverage.compare import Comparison, Reference, compare, compare_coarse
from benchmarks.coverage.requests import load_request, make_prompts, serve
from benchmarks.coverage.rows import Row
from engine.api.errors import EngineError, cause_of
from engine.model.loading.loader import load_model
from engine.serving.loading import LoadedModel


class By(StrEnum):
    """The way in which a model is served, or why it is not."""

    PROGRAM = "program"
    MODULES = "modules"
    REFUSED = "refused"
    CRASHED = "crashed"
    NOT_BUILT = "not built"


SERVING = (By.PROGRAM, By.MODULES)


@dataclass(frozen=True, slots=True)
class Trial:
    """The work of a row's process.

    Attributes:
        dtype: the type that the model is loaded in, as torch names it.
    """

    row: Row
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of the table.

    Attributes:
        detail: the reason of a refusal or a crash; what a program leaves to torch, and why; why a
            model runs as modules.
        off_path: how many operations a program leaves to torch; None if there is no program.
        result: of the comparison with `generate`; empty if nothing was served.
        agrees: whether what was served is what the model itself gives.
        notes: what makes the row show less than it should.
    """

    row: Row
    by: By
    detail: str = ""
    result: str = ""
    agrees: bool = False
    notes: tuple[str, ...] = ()
    off_path: int | None = None

    @property
    def is_served(self) -> bool:
        """Whether it is served, and rightly."""
        return self.by in SERVING and self.agrees


def survey(trial: Trial) -> Outcome:
    """Build a row's model, load and serve it, and compare."""
    _quiet()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="coverage-") as folder:
        try:
            built = build(trial.row, Path(folder))
        except Exception as error:  # transformers cannot make it, for whatever reason
            return Outcome(trial.row, By.NOT_BUILT, cause_of(error))
        return _examine(trial, built)


def _examine(trial: Trial, built: Built) -> Outcome:
    row, lacks = trial.row, (f"configuration only: {built.lacks}",) if built.lacks else ()
    try:
        loaded = load_model(load_request(str(built.folder), trial.dtype), _ignore)
    except EngineError as error:
        reason = error.message.replace(str(built.folder), "FOLDER")
        return Outcome(row, By.REFUSED, reason, notes=lacks)
    except Exception as error:  # a row of the table, whatever it is
        return Outcome(row, By.CRASHED, f"at loading: {cause_of(error)}", notes=lacks)
    try:
        if built.lacks:
            return Outcome(row, By.NOT_BUILT, "what is no such model was loaded", notes=lacks)
        by, detail, off_path = _served_by(loaded)
        try:
            prompts = make_prompts()
            served = serve(loaded, prompts)
        except Exception as error:  # as above
            return Outcome(row, By.CRASHED, f"as {by}: {cause_of(error)}")
        found = _compare(trial, built, prompts, served.tokens, bool(loaded.card.packed_as))
        notes = (*filter(None, (found.note,)), *served.missed)
        return Outcome(row, by, detail, found.result, found.agrees, notes, off_path)
    finally:
        loaded.close()


def _compare(
    trial: Trial,
    built: Built,
    prompts: list[list[int]],
    outputs: tuple[tuple[int, ...], ...],
    is_packed: bool,
) -> Comparison:
    dtype: torch.dtype = getattr(torch, trial.dtype)
    try:
        reference = Reference(built.reference, dtype)
        if dtype == torch.float32:
            found = compare(reference, prompts, outputs)
            if found.agrees or not is_packed:
                return found
        return compare_coarse(reference, prompts, outputs)
    except Exception as error:  # transformers cannot run it, for whatever reason
        return Comparison(False, f"no reference: {cause_of(error)}")


def _served_by(loaded: LoadedModel) -> tuple[By, str, int | None]:
    """The backend of a loaded model, remarks on it, and how many of its operations a
    program leaves to torch.
    """
    card = loaded.card
    if card.off_kernels:
        return By.MODULES, card.off_kernels, None
    left = ", ".join(f"{one.name} ({one.reason})" for one in card.off_path)
    return By.PROGRAM, f"torch runs {left}" if left else "", card.num_off_path


def _quiet() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]


def _ignore(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
    pass
