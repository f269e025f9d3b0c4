"""The native kernels: finds out whether this installation has them, and which level this processor
runs.

`engine/native/src/` is compiled at installation, if there is a C++ compiler. It needs no headers of
torch: tensors come by DLPack, so that one binary fits every version of torch. `kernels.hpp` is the
contract. The kernels are compiled three times, for AVX2, AVX-512 with BF16, and AMX, and products
of coded weights once more, for AVX2 with AVX-VNNI. The best level that the processor has is used,
unless `BATCHDECK_KERNELS` names another one, or `off`; `tui doctor` shows it.

Weights and cache lie in memory as vectors and tiles read them: weights in packed panels of output
features, keys by pairs of dimensions, with the 16 tokens of a block side by side, so that no score
is a horizontal sum. A decode step is as fast as memory is kept busy, so a product in vectors asks
for the next weights while it multiplies: with up to 64 rows reading takes as long as multiplying,
and one would wait for the other. With tiles, the epilogue of one product is computed during the
next product. Attention fetches blocks four ahead, line by line between its products, across the
border from one sequence and head to the next of its piece. With latents, values are part of the
keys, and each block is transposed once for all heads (`attention_turning.hpp`).

Weights may be whole numbers of 4, 5, 6 or 8 bits with a scale for each group of input features.
Then the activations x are rounded to whole numbers of 15 bits, each group of a row with its own
scale (`codes.hpp`), and a group's sum is exact: by VNNI, in AMX's tiles of bytes for more than 4
rows, or at AVX2 in products of 16 bits. With VNNI a code of x is two signed bytes in separate
planes, which a kernel multiplies one after the other. Eight bits, as in llama.cpp, would not
suffice: with them, greedy replies of SmolLM2 135M differ from those of its unrounded weights. For
few rows, weights are unpacked while they are multiplied. For more rows, at AVX2, with AVX-VNNI and
in AMX's tiles, a chunk of a panel is unpacked into L1 first, once for all rows of a piece
(`open_codes` in `multiply_codes.hpp`). `python -m benchmarks.linear --weights` measures the
products.

A GGUF file's blocks (`blocks.hpp`: Q4_0 to Q8_0, Q2_K to Q6_K, IQ1 to IQ4, TQ1_0, TQ2_0, MXFP4,
NVFP4) become packed codes directly, without floats in between (`unpack.hpp`). IQ1, IQ3_S and TQ
take 4 bits and scales, IQ3_XXS 6, IQ2 8. The embedding is packed, too.

Experts are a grouped product (`experts.cpp`): the rows of each expert are put beside each other,
and all products of all chosen experts are the pieces of one run of the pool. So each expert that
any row chose is read once a step, and other experts are not read.

One pool of threads computes (`pool.hpp`): the calling thread and one worker for each other core.
Operations are cut into small pieces that are taken from a counter, so that a delayed thread holds
up no more than its piece. A result never depends on the number of threads or on other rows of the
step.
"""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from types import ModuleType

from engine.api.errors import InvalidConfigError

VARIABLE = "BATCHDECK_KERNELS"
LEVELS = ("amx", "avx512", "avxvnni", "avx2")
OFF = "off"

_MODULE = f"{__name__}._native"


def kernels() -> ModuleType | None:
    """Load the compiled module, set to the level and the number of threads in force.

    The level is the best one of the processor, or the one named by the environment. There is a
    thread for each core available to this process, or fewer if `OMP_NUM_THREADS` says so.

    Returns:
        the module, or None if there are no kernels; `why_not` then says why.

    Raises:
        InvalidConfigError: the environment names an unknown level, or one that this processor
            lacks.
    """
    return _load()[0]


def trim_heap() -> None:
    """Return freed memory to the system, if there are kernels: the allocator would keep it."""
    native = kernels()
    if native is not None:
        native.trim_heap()


def why_not() -> str:
    """Why there are no kernels, and the remedy if there is one, as a clause.

    It is empty if there are kernels.

    Raises:
        InvalidConfigError: see `kernels`.
    """
    return _load()[1]


def check() -> None:
    """Refuse an unavailable level in the environment, before a slow load.

    Raises:
        InvalidConfigError: see `kernels`.
    """
    if os.environ.get(VARIABLE):
        _load()  # This takes 3 ms and starts no thread.


@functools.cache
def _load() -> tuple[ModuleType | None, str]:
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", OFF, *LEVELS):
        allowed = ", ".join((*LEVELS, OFF))
        raise InvalidConfigError(f"{VARIABLE} is {wanted!r}; allowed are {allowed}", VARIABLE)
    if wanted == OFF:
        return None, f"{VARIABLE}={OFF} switches them off"
    try:
        module = importlib.import_module(_MODULE)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and error.name == _MODULE
        return None, _left_out() if is_absent else f"the extension does not load: {error}"
    levels: list[str] = module.levels()
    if not levels:
        return None, "this processor lacks AVX2"
    if wanted and wanted not in levels:
        allowed = ", ".join((*levels, OFF))
        raise InvalidConfigError(
            f"{VARIABLE} is {wanted!r}; this processor allows {allowed}", VARIABLE
        )
    module.choose_level(wanted or levels[0])
    module.set_threads(_threads())
    return module, ""


def _threads() -> int:
    """Cores available to this process, up to OpenMP's limit, which torch obeys as well."""
    cores = len(os.sched_getaffinity(0))
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) > 0 else cores


def _left_out() -> str:
    """The message of the build when it omitted the extension."""
    for folder in __path__:
        try:
            return (Path(folder) / "left_out.txt").read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return "they have not been built here; install batchdeck again"
