"""A model file as people have it: batchdeck beside llama.cpp on the same file in the same run.

    python -m benchmarks.real [FILE.gguf ...] [--levels avx512,avx2|all] [--rounds N] [--threads N]
                              [--tokens N] [--weights bf16,int8,int4|none]
                              [--peers openvino,generate|none] [--dtype float32|bfloat16]
                              [--cache FOLDER]

Without a file it is the registry's `smollm2-135m`. Both get the defaults that their users get, and
the foot of the table says what is not a default. For each file and level of instructions:

Loading: from the file to a model that can take a request, in a process that has imported all that
it needs. `first` is without anything that batchdeck keeps from one load to the next, `cold` is
later, with none of the file in the page cache, and `warm` later still. Each load has a process of
its own.

Memory: resident pages of that process beyond those that it had after its imports, pages of mapped
files among them: the most of them while it loads and serves one request of 512 tokens, and what it
holds afterwards. `at 32` is the most while 32 requests of 512 tokens are served. Private pages of
child processes stand apart, as `helpers`.

Speed: prompts of 512 tokens, 1, 8 and 32 at once, greedy, to a fixed length. `prompt` is a prompt's
tokens over the time to the first token; tokens/s are those that come while all requests decode and
no prompt is computed. All take turns, each in a process that stays loaded and sleeps meanwhile.

Likeness: the perplexity of a fixed text in windows of 512 tokens, and the greedy tokens behind 20
beginnings of it, as llama.cpp encodes them, beside transformers with the file's dequantized weights
in float32: how many of the 20 are equal for 64 tokens, and how many tokens are on average, before
the first that differs.

The folder form is what transformers makes of the file, in bfloat16: batchdeck serves it as it is
and with `--quantize`, beside OpenVINO and transformers (`benchmarks.peers` says how). Its load is
to be compared with a plain read of its weights, warm, which stands above the table.

Figures are medians over the rounds. The first run sets the peers up, in some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import transformers

from benchmarks.heading import heading
from benchmarks.options import positive_int
from benchmarks.peers.environment import PeerMissingError
from benchmarks.peers.level import LEVELS, Level
from benchmarks.peers.options import pick_level
from benchmarks.peers.peers import PEERS, held
from benchmarks.peers.width import WIDTHS
from benchmarks.real.entrants import Entrant, file_entrants, folder_entrants
from benchmarks.real.folders import Folders
from benchmarks.real.measuring import Likeness, Measured, measure
from benchmarks.real.table import table
from engine import native
from engine.api.config import DTYPES
from engine.api.errors import EngineError
from engine.model.catalog.registry import Registry

DEFAULT_MODEL = "smollm2-135m"
BESIDE = ("openvino", "generate")


def main() -> None:
    chosen = options()
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    files = [Path(name) for name in chosen.files] or [default_file()]
    for number, file in enumerate(files):
        with own_copy(file, chosen.cache) as copy:
            folders = Folders.of(copy, chosen.cache, say)
            likeness: Likeness | None = None
            for level in chosen.levels:
                if number or level is not chosen.levels[0]:
                    print()
                likeness = compare(copy, folders, level, likeness, chosen)


def compare(
    file: Path,
    folders: Folders,
    level: Level,
    likeness: Likeness | None,
    chosen: argparse.Namespace,
) -> Likeness | None:
    """Measure all on one file at one level, and print the table.

    Args:
        likeness: what was found for another level; None asks the reference, if it is wanted.
    """
    # It holds for what computes by torch or oneDNN, in workers too.
    os.environ.update(level.variables)
    try:
        entrants = file_entrants(file, level, chosen.dtype, chosen.cache, say)
    except PeerMissingError as error:
        raise SystemExit(f"llama.cpp cannot be had: {error}") from None
    measured: dict[str, Measured] = {}
    failed: dict[str, str] = {}
    beside, missing = folder_entrants(
        folders.checkpoint, level, chosen.peers, chosen.weights, chosen.dtype, chosen.cache, say
    )
    failed.update(missing)
    with tempfile.TemporaryDirectory(dir=chosen.cache) as kept:
        if likeness is None and not chosen.only_loads:
            likeness = Likeness.find(entrants["llama.cpp"], folders, chosen, Path(kept), say)
        for group in (entrants, beside):
            if group:
                found, lost = measure(group, level, likeness, chosen, Path(kept), say)
                measured.update(found)
                failed.update(lost)
    print(
        heading(
            f"held to {level.name}",
            f"{chosen.threads} threads",
            f"rounds: {chosen.rounds}",
            f"{chosen.tokens} tokens out",
        )
    )
    size, seconds = file.stat().st_size, folders.read_seconds(chosen.rounds)
    print(
        f"{file.name}: {size / 2**20:,.0f} MiB; dequantized to bfloat16: {folders.mib:,.0f} MiB, "
        f"read into memory in {seconds:.2f} s"
    )
    print(table(measured, likeness))
    print(foot(entrants | beside, measured, failed, level, chosen))
    sys.stdout.flush()
    return likeness


def foot(
    entrants: dict[str, Entrant],
    measured: dict[str, Measured],
    failed: dict[str, str],
    level: Level,
    chosen: argparse.Namespace,
) -> str:
    """The version of each entrant, the failures, and the settings that are not defaults."""
    lines = [held([entrants[name].contender for name in measured], level)]
    for name, found in measured.items():
        about = found.about
        lines += [f"{name}: {about.version}", f"  {about.settings}", f"  {about.weights}"]
        lines.append(f"  helpers: {found.helpers}")
    lines += [f"{name}: left out. {why}" for name, why in failed.items()]
    settings = ["a pool, or cache, for 32 sequences of 512 tokens and their output", "greedy"]
    settings.append("no end of sequence")
    if chosen.dtype is not None:
        settings.append(f"batchdeck with --dtype {chosen.dtype}")
    if chosen.threads != len(os.sched_getaffinity(0)):
        settings.append(f"{chosen.threads} threads")
    if chosen.states_levels:
        settings.append(f"{native.VARIABLE}={level.name}")
    lines.append(f"not as by default: {'; '.join(settings)}")
    return "\n".join(lines)


def options() -> argparse.Namespace:
    """The command line. What cannot be is refused, and ends the program."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--levels", default="", help="default: batchdeck's own here; or `all`")
    parser.add_argument("--rounds", type=positive_int, default=3)
    parser.add_argument(
        "--threads",
        type=positive_int,
        default=len(os.sched_getaffinity(0)),
        help="of each peer; default: the usable cores",
    )
    parser.add_argument("--tokens", type=positive_int, default=64, help="out, of each request")
    parser.add_argument(
        "--only-loads", action="store_true", help="no more than loading, and the memory of that"
    )
    parser.add_argument("--weights", default=",".join(WIDTHS), help="of the folder, or `none`")
    parser.add_argument("--peers", default=",".join(BESIDE), help="beside the folder, or `none`")
    parser.add_argument("--dtype", choices=DTYPES[1:], help="of batchdeck; default: its own choice")
    parser.add_argument(
        "--cache", type=Path, default=platformdirs.user_cache_path("batchdeck") / "peers"
    )
    chosen = parser.parse_args()
    for name, known in (("weights", WIDTHS), ("peers", PEERS)):
        stated = getattr(chosen, name)
        parts = [] if stated == "none" else [part.strip() for part in stated.split(",")]
        for part in parts:
            if part not in known:
                allowed = ", ".join((*known, "none"))
                parser.error(f"--{name}: {part!r} is none of {allowed}")
        setattr(chosen, name, parts)
    chosen.states_levels = bool(chosen.levels)
    chosen.levels = levels(parser, chosen.levels)
    for name in chosen.files:
        if not Path(name).is_file():
            parser.error(f"FILE: {name} is no file; it must be a GGUF file")
    chosen.cache = chosen.cache.resolve()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    return chosen


def levels(parser: argparse.ArgumentParser, stated: str) -> list[Level]:
    """The levels to run at, as they were stated."""
    if stated == "all":
        kernels = native.kernels()
        return [] if kernels is None else [LEVELS[name] for name in kernels.levels()]
    names = [name.strip() or None for name in stated.split(",")]
    for name in names:
        if name is not None and name not in LEVELS:
            parser.error(f"--levels: {name!r} is none of {', '.join(LEVELS)}, all")
    return [pick_level(parser, name) for name in names]


def default_file() -> Path:
    """The file of the registry's real model.

    Raises:
        SystemExit: it is not on this machine.
    """
    try:
        folder = Registry.read(None).find(DEFAULT_MODEL).local_folder()
    except EngineError as error:
        raise SystemExit(error.message) from None
    files = [] if folder is None else [folder, *sorted(folder.glob("*.gguf"))]
    for file in files:
        if file.is_file():
            return file
    raise SystemExit(f"{DEFAULT_MODEL} is not here; run `tui models get {DEFAULT_MODEL}`")


@contextlib.contextmanager
def own_copy(file: Path, cache: Path) -> Iterator[Path]:
    """A copy that no other process maps: what one maps stays in the page cache."""
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        copy = Path(folder) / file.name
        copy.write_bytes(file.read_bytes())
        yield copy


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
