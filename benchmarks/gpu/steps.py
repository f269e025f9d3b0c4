"""The steps of `benchmarks.gpu.short`, each in processes of its own.

What a step needs is imported by it: the first one says what is missing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.short import NEEDED

if TYPE_CHECKING:
    from benchmarks.gpu.device import Device

# What a table says of what is wrong.
_WRONG = ("WRONG", "FAILED", "failed:")


class _Heard:
    """Standard output that is heard: whether something was said to be wrong."""

    def __init__(self) -> None:
        self.wrong = False
        self._out = sys.stdout

    def write(self, text: str) -> int:
        self.wrong |= any(word in text for word in _WRONG)
        return self._out.write(text)

    def flush(self) -> None:
        self._out.flush()


def run(name: str, device: str, share: int, shares: int) -> int:
    """Do a share of a step; returns the exit code."""
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("engine").setLevel(logging.INFO if shares == 1 else logging.ERROR)
    heard = _Heard()
    sys.stdout = heard
    if name == "start":
        start(device)
    else:
        from benchmarks.gpu.device import Device

        _STEPS[name](Device(device), share, shares)
    return 1 if heard.wrong else 0


def start(name: str) -> None:
    """The device, and the least that has to work."""
    print(f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores")
    for package in ("torch", "triton", "transformers", "numpy", *NEEDED):
        known = importlib.util.find_spec(package) is not None
        print(f"{package} {_version(package) if known else 'is missing: FAILED'}")
    cache = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    print(f"C compiler {compiler}, Triton's cache {cache}, {free >> 30} GiB free for files")
    import torch

    from benchmarks.gpu.device import Device
    from engine.model.gpu.stream import stream_on
    from engine.triton.elementwise import elementwise
    from engine.triton.overlap import overlapping

    device = Device(name)
    print(f"{device.name}, CUDA {torch.version.cuda}, {torch.cuda.get_arch_list()}")
    if device.is_gpu:
        free, total = torch.cuda.mem_get_info(device.torch)
        capability = torch.cuda.get_device_capability(device.torch)
        print(f"capability {capability}, {free >> 20:,} of {total >> 20:,} MiB free")
    x = torch.randn(64, 512, device=device.torch)
    out = torch.empty_like(x)
    expected = 2.0 * torch.nn.functional.silu(x) * x

    def multiply() -> None:
        elementwise(out, x, "multiply", x, "silu", 2.0)

    def told(what: str, work: Callable[[], object]) -> None:
        begun = time.perf_counter()
        out.zero_()
        work()
        worst = float((out - expected).abs().max())
        verdict = "ok" if worst < 1e-5 else f"WRONG by {worst:.1e}"
        print(f"{what}: {verdict}, {time.perf_counter() - begun:.2f} s")

    stream = stream_on(device.torch)
    told("a kernel", lambda: stream.enqueue(multiply).wait())

    def thrice() -> None:
        with overlapping(True):
            for _ in range(3):
                multiply()

    told("kernels that overlap", lambda: stream.enqueue(thrice).wait())
    told("the same in a graph", lambda: stream.enqueue(stream.capture(thrice)).wait())


def correct(device: Device, share: int, shares: int) -> None:
    from benchmarks.gpu import correct as checks
    from benchmarks.gpu.whole import table

    # Under the interpreter one of each kind, since it takes half a minute for each.
    names = checks.NAMES if device.is_gpu else ("llama", "qwen3_next", "minicpm3")
    table("correct", checks.HEAD, checks.check(device, list(names[share::shares])))


def sampler(device: Device, _share: int, _shares: int) -> None:
    from benchmarks.gpu import sampling
    from benchmarks.gpu.whole import table

    vocabularies = [32_000, 128_256, 262_144] if device.is_gpu else [300]
    steps = 40 if device.is_gpu else 2
    table("sampling", sampling.SAME_HEAD, sampling.same(device, vocabularies, steps))
    vocab_size, rows = (128_256, [1, 32, 256]) if device.is_gpu else (300, [2])
    table("sampling in a graph", sampling.TIME_HEAD, sampling.times(device, vocab_size, rows))


def attention(device: Device, _share: int, _shares: int) -> None:
    from benchmarks.gpu import kernels
    from benchmarks.gpu.whole import table

    decodes = [(1, 1, 4096), (1, 1, 32_768), (32, 1, 4096), (256, 1, 512), (256, 1, 4096)]
    prompts = [(1, 512, 512), (1, 2048, 2048), (1, 8192, 8192), (1, 512, 8192), (8, 256, 2048)]
    cases = [*decodes, *prompts] if device.is_gpu else [(2, 1, 40), (1, 20, 50)]
    shapes = [(32, 8, 128), (16, 8, 128), (32, 4, 128), (16, 2, 256), (64, 8, 64)]
    for heads, kv_heads, head_dim in shapes if device.is_gpu else [(4, 2, 16)]:
        rows = kernels.beside_sdpa(device, cases, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        table(f"attention, heads of {head_dim}", kernels.SDPA_HEAD, rows)


def tiles(device: Device, _share: int, _shares: int) -> None:
    from benchmarks.gpu import tiles as comparison

    heads = "128,64" if device.is_gpu else "16"
    comparison.main(["--heads", heads, "--device", str(device.torch)])


def load(device: Device, _share: int, _shares: int) -> None:
    """A large model by the loader, from a folder; then another one in its place."""
    with tempfile.TemporaryDirectory() as folder:
        _load(device, Path(folder))


def _load(device: Device, folder: Path) -> None:
    from benchmarks.gpu import whole
    from benchmarks.gpu.engine import Started
    from benchmarks.gpu.models import make
    from engine.api.client import LoadRequest
    from engine.model.loading import loader
    from tests.support.checkpoints import save_checkpoint, tiny_tokenizer

    small = not device.is_gpu
    if small:
        # Else the native kernels would compute.
        loader.pick_backend = lambda *_: "triton"  # type: ignore[attr-defined]
    begun = time.perf_counter()

    def told(what: str) -> None:
        nonlocal begun
        seconds, free = time.perf_counter() - begun, device.free_bytes() >> 20
        print(f"{what}: {seconds:.1f} s, {free:,} MiB free")
        begun = time.perf_counter()

    limits = device.limits()
    name = "tiny" if small else "llama-8b"
    model, shaped = make(name, device.torch)
    told(f"{name} made")
    model.save_pretrained(folder / "large", max_shard_size="4GB")
    tiny_tokenizer().save_pretrained(folder / "large")
    del model
    save_checkpoint(folder / "other")
    told("saved")
    seqs, tokens, longest = (8, 64, 256) if small else (256, whole.BUDGET, whole.LONGEST)
    options = {"device": str(device.torch), "dtype": "float32" if small else "bfloat16"}
    request = LoadRequest(
        str(folder / "large"),
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=longest,
        **({"num_blocks": 64} if small else {}),  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    said = ""

    def progress(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        nonlocal said
        if detail != said:
            said = detail
            print(detail)

    loaded = loader.load_model(request, progress)
    told("loaded")
    print(f"by {loaded.card.attention}; not by kernels: {loaded.card.off_kernels or 'nothing'}")
    print(f"knobs start at {loaded.knobs.max_num_seqs}, {loaded.knobs.max_num_batched_tokens}")
    print(f"blocks are swapped at {loaded.swap_rate / 1e9:.1f} GB/s")
    started = Started(
        runner=loaded.runner,  # type: ignore[arg-type]
        config=loaded.config,
        shaped=shaped,
        num_launches=0,
        load_seconds=0.0,
        capture_seconds=0.0,
        graph_bytes=0,
        chosen=[],
        choose_seconds=0.0,
        overlaps=False,
    )
    whole.decodes(limits, started, small)
    whole.prefills(limits, started, small)
    whole.gaps(started, small)
    told("\nmeasured")
    del started
    loaded.close()
    told("closed")
    other = LoadRequest(str(folder / "other"), num_blocks=64, **options)  # type: ignore[arg-type]
    loader.load_model(other, lambda *_: None).close()
    told("another model loaded and closed")


def small_model(device: Device, _share: int, _shares: int) -> None:
    from benchmarks.gpu import whole

    name = "qwen3-0.6b" if device.is_gpu else "tiny"
    whole.engine(device, device.limits(), name, ("decode", "structure"))


def experts(device: Device, _share: int, _shares: int) -> None:
    from benchmarks.gpu import whole

    name, layers = ("qwen3-30b-a3b", 8) if device.is_gpu else ("tiny", 1)
    whole.engine(device, device.limits(), name, ("decode", "count"), layers=layers)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of no known version"


_STEPS: dict[str, Callable[[Device, int, int], None]] = {
    "correct": correct,
    "sampler": sampler,
    "attention": attention,
    "tiles": tiles,
    "load": load,
    "small": small_model,
    "experts": experts,
}
