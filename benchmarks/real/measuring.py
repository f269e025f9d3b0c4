"""Measuring: loads, memory, speed and likeness of each entrant, in turns."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from statistics import mean, median

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.level import Level
from benchmarks.peers.peers import PEERS, PLAIN, Contender
from benchmarks.peers.run import Measures, Run
from benchmarks.peers.serve import About, Memory, Setup
from benchmarks.peers.worker import Worker, WorkerError
from benchmarks.peers.workload import Recipe, Workload
from benchmarks.real.entrants import Entrant
from benchmarks.real.folders import Folders

Say = Callable[[str], None]

PROMPT_TOKENS = 512
SEQUENCES = (1, 8, 32)
WINDOWS, WINDOW_TOKENS = 8, 512
PROMPTS, BEGINNING_TOKENS, GREEDY_TOKENS = 20, 24, 64

_TEXT = "text/explain.txt"
_PARAGRAPHS = ("= ", "+ ")
_MIB = 2**20


def paragraphs() -> list[str]:
    """A text in plain English about language models, by paragraphs. The built-in model was trained
    on it, so that it does not change, and other models have not read it."""
    text = resources.files("engine.builtin.corpus").joinpath(_TEXT).read_text(encoding="utf-8")
    return [line[2:] for line in text.splitlines() if line.startswith(_PARAGRAPHS)]


@dataclass(frozen=True, slots=True)
class Likeness:
    """The reference: the text and its prompts as token ids, and the reference's answer.

    Attributes:
        windows: of the text, each beginning with the mark that a prompt of this model begins with.
        prompts: beginnings of paragraphs, equally long.
        perplexity: of the windows, by transformers with dequantized weights in float32.
        greedy: what that says behind each prompt.
    """

    windows: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]
    perplexity: float
    greedy: tuple[tuple[int, ...], ...]

    @property
    def workload(self) -> Workload:
        return Workload(self.prompts, GREEDY_TOKENS, (0.0,) * len(self.prompts))

    @classmethod
    def find(
        cls, llama: Entrant, folders: Folders, chosen: argparse.Namespace, kept: Path, say: Say
    ) -> Likeness:
        """Have llama.cpp encode the text, and transformers say what follows."""
        texts = paragraphs()
        with contextlib.closing(llama.start(chosen.threads, kept, kept / "encode.log")) as worker:
            worker.load(_setup(llama, chosen.threads, 1, chosen.tokens))
            mark, whole, *each = worker.encode(["", "\n\n".join(texts), *texts])
        windows = cut(mark, whole[len(mark) :])
        prompts = tuple(tuple(ids[:BEGINNING_TOKENS]) for ids in each)
        prompts = tuple(ids for ids in prompts if len(ids) == BEGINNING_TOKENS)[:PROMPTS]
        say("the reference computes in float32")
        contender = Contender(PEERS["generate"], PLAIN)
        python, _ = contender.set_up(chosen.cache, folders.float32, chosen.levels[0], say)
        reference = Entrant(contender, tuple(contender.command(python)), folders.float32)
        setup = _setup(reference, chosen.threads, 1, chosen.tokens, "float32")
        log = kept / "reference.log"
        with contextlib.closing(reference.start(chosen.threads, kept, log)) as worker:
            worker.load(setup)
            perplexity = _perplexity(worker, windows)
            run = worker.run(cls(windows, prompts, perplexity, ()).workload)
        assert run is not None
        say(f"perplexity in float32: {perplexity:.3f}")
        return cls(windows, prompts, perplexity, _tokens(run))


def cut(mark: Sequence[int], ids: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The windows of a text's tokens, each with the mark before it."""
    size = WINDOW_TOKENS - len(mark)
    starts = range(0, min(len(ids), WINDOWS * size), size)
    return tuple((*mark, *ids[start : start + size]) for start in starts)


def equal_prefixes(
    wanted: Sequence[Sequence[int]], found: Sequence[Sequence[int]]
) -> tuple[int, float]:
    """How many texts are equal, and with how many equal tokens they begin on average."""
    lengths = []
    for one, other in zip(wanted, found, strict=True):
        differ = (i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        lengths.append(next(differ, len(one)))
    full = sum(length == len(one) for length, one in zip(lengths, wanted, strict=True))
    return full, mean(lengths)


@dataclass(slots=True)
class Measured:
    """The figures of an entrant. Seconds, and bytes beyond the interpreter with its imports.

    Attributes:
        first, cold, warm: of each load.
        peak, steady: of each warm load and one request.
        helper: private pages of its child processes then.
        speed: by the number of sequences.
        peak_serving: with the most sequences; NaN if not known.
        perplexity: NaN where the peer gives no log-probabilities.
        equal: greedy texts that are the reference's.
        prefix: with how many of its tokens they begin on average.
    """

    about: About
    first: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    steady: list[float] = field(default_factory=list)
    helper: int = 0
    speed: dict[int, Measures] = field(default_factory=dict)
    peak_serving: float = math.nan
    perplexity: float = math.nan
    equal: int = 0
    prefix: float = math.nan

    @property
    def helpers(self) -> str:
        return f"{self.helper / _MIB:,.0f} MiB" if self.helper else "none"

    def cells(self) -> dict[str, float]:
        """The figures by the names of their columns, memory in MiB and TPOT in ms."""
        alone = self.speed.get(SEQUENCES[0])
        cells = {
            "first": _median(self.first),
            "cold": _median(self.cold),
            "warm": _median(self.warm),
            "prompt": PROMPT_TOKENS / alone.ttft_p50 if alone else math.nan,
            "TPOT": 1e3 * alone.tpot_p50 if alone else math.nan,
        }
        for count in SEQUENCES:
            speed = self.speed.get(count)
            cells[str(count)] = speed.decode_rate if speed else math.nan
        return cells | {
            "peak": _median(self.peak) / _MIB,
            "steady": _median(self.steady) / _MIB,
            "at 32": self.peak_serving / _MIB,
            "perplexity": self.perplexity,
            "equal": self.equal if not math.isnan(self.prefix) else math.nan,
            "prefix": self.prefix,
        }


def measure(
    entrants: dict[str, Entrant],
    level: Level,
    likeness: Likeness | None,
    chosen: argparse.Namespace,
    kept: Path,
    say: Say,
) -> tuple[dict[str, Measured], dict[str, str]]:
    """Measure all entrants, which take turns.

    Args:
        likeness: None leaves out all but the loading.
        kept: a folder for what entrants keep from one load to the next, and for logs.

    Returns:
        The figures by name, and why some are left out.
    """
    measured: dict[str, Measured] = {}
    comparison = Comparison(say)
    with tempfile.TemporaryDirectory(dir=kept) as cache:
        own = Path(cache)
        _load_in_turns(entrants, level, chosen, own, measured, comparison.failed, say)
        if likeness is None:
            return measured, comparison.failed
        with contextlib.closing(comparison):
            before = _start(entrants, level, chosen, own, comparison, say)
            recipes = {
                count: Recipe(f"{count}x{PROMPT_TOKENS}", count, PROMPT_TOKENS, chosen.tokens)
                for count in SEQUENCES
            }
            # The first round warms up; one sequence does that for all.
            comparison.round({recipes[1]: None}, 0, is_kept=False)
            for number in range(1, chosen.rounds + 1):
                comparison.round(dict.fromkeys(recipes.values()), number, is_kept=True)
            for count, recipe in recipes.items():
                for name, found in comparison.results(recipe.name).items():
                    if name in comparison.workers and found is not None:
                        measured[name].speed[count] = found
                        beyond = found.peak_bytes - (before[name].resident_bytes or math.nan)
                        measured[name].peak_serving = beyond
            for name, worker in list(comparison.workers.items()):
                try:
                    _compare(measured[name], worker, likeness)
                except WorkerError as error:
                    comparison.drop(name, str(error))
                else:
                    figure = measured[name]
                    say(f"{name}: perplexity {figure.perplexity:.3f}, {figure.equal} texts equal")
    failed = comparison.failed
    return {name: found for name, found in measured.items() if name not in failed}, failed


def _load_in_turns(
    entrants: dict[str, Entrant],
    level: Level,
    chosen: argparse.Namespace,
    kept: Path,
    measured: dict[str, Measured],
    failed: dict[str, str],
    say: Say,
) -> None:
    """Load each entrant: once with nothing kept, then in each round cold and warm."""
    kinds = ["first", *["cold", "warm"] * chosen.rounds]
    for kind in kinds:
        for name, entrant in entrants.items():
            if name in failed or (kind == "first" and not entrant.keeps):
                continue
            if kind == "cold":
                _forget_pages(entrant.model)
            else:
                _read_pages(entrant.model)
            log = kept / f"{name.replace(' ', '-')}.log"
            setup = _setup(entrant, chosen.threads, 1, chosen.tokens, level.dtype)
            own = kept / name
            try:
                with contextlib.closing(entrant.start(chosen.threads, own, log)) as worker:
                    _load_once(worker, setup, kind, name, measured)
            except WorkerError as error:
                failed[name] = str(error)
                continue
            say(f"{name}: loaded in {getattr(measured[name], kind)[-1]:.2f} s ({kind})")


def _load_once(
    worker: Worker, setup: Setup, kind: str, name: str, measured: dict[str, Measured]
) -> None:
    imported = worker.memory().resident_bytes or math.nan
    about = worker.load(setup)
    loaded = worker.memory()
    run = worker.run(Recipe("load", 1, PROMPT_TOKENS, 8).make(0))
    after = worker.memory()
    assert run is not None
    found = measured.setdefault(name, Measured(about))
    getattr(found, kind).append(worker.load_seconds)
    if kind == "warm":
        found.peak.append(max(_known(loaded.peak_bytes), _known(run.peak_bytes)) - imported)
        found.steady.append(_known(after.resident_bytes) - imported)
        found.helper = after.helper_bytes


def _start(
    entrants: dict[str, Entrant],
    level: Level,
    chosen: argparse.Namespace,
    kept: Path,
    comparison: Comparison,
    say: Say,
) -> dict[str, Memory]:
    """Start the workers that stay, and give the memory of each before it loads."""
    before = {}
    for name, entrant in entrants.items():
        if name in comparison.failed:
            continue
        log = kept / f"{name.replace(' ', '-')}-serving.log"
        worker = entrant.start(chosen.threads, kept / name, log)
        comparison.workers[name] = worker
        try:
            before[name] = worker.memory()
            worker.load(_setup(entrant, chosen.threads, max(SEQUENCES), chosen.tokens, level.dtype))
        except WorkerError as error:
            comparison.drop(name, str(error))
    say(f"serving: {', '.join(comparison.workers)}")
    return before


def _compare(found: Measured, worker: Worker, likeness: Likeness) -> None:
    found.perplexity = _perplexity(worker, likeness.windows)
    run = worker.run(likeness.workload)
    assert run is not None
    found.equal, found.prefix = equal_prefixes(likeness.greedy, _tokens(run))


def _perplexity(worker: Worker, windows: Sequence[Sequence[int]]) -> float:
    scores = worker.score(windows)
    if scores is None:
        return math.nan
    return math.exp(-sum(scores) / sum(len(window) - 1 for window in windows))


def _tokens(run: Run) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(request.tokens) for request in run.requests)


def _setup(
    entrant: Entrant, threads: int, sequences: int, tokens: int, dtype: str = "bfloat16"
) -> Setup:
    length = PROMPT_TOKENS + tokens
    return Setup(
        model=str(entrant.model),
        threads=threads,
        max_seqs=sequences,
        max_len=length,
        cache_lengths=(length,) * sequences,
        dtype=dtype,
    )


def _files(model: Path) -> list[Path]:
    return [model] if model.is_file() else [path for path in model.iterdir() if path.is_file()]


def _forget_pages(model: Path) -> None:
    """Have the page cache forget a model. Pages that were written stay until they are on disk."""
    for path in _files(model):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_pages(model: Path) -> None:
    for path in _files(model):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan


def _known(number: int | None) -> float:
    return math.nan if number is None else number
