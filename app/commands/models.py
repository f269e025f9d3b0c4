"""Models: the registry, grouped by fit, and the memory that one of its models needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from app.process.columns import align
from app.process.exits import ExitCode
from app.process.process import print_text
from app.settings.settings import Settings, SettingsError
from app.system.machine import Memory, cpu_features, memory_of, why_not_quantized
from engine.api.errors import EngineError, InvalidConfigError, ModelError
from engine.model.catalog.registry import Availability, ModelEntry, Registry
from engine.model.files.checkpoint import CONFIG_FILE, Checkpoint, find_gguf, open_checkpoint
from engine.model.files.reading import CONFIG_BYTES, read_json
from engine.model.files.size_text import format_bytes
from engine.model.machine.estimate import Estimate, Fit, Numbers
from engine.model.machine.memory import GPU_SHARE, HOST_SHARE

_GROUPS = {
    Fit.FULL: "Fits here with a full context",
    Fit.SHORTER: "Fits here with a smaller context",
    Fit.NOT: "Does not fit here",
    Fit.UNKNOWN: "How much context fits here is known after the download",
}
_BROKEN = "Cannot be loaded"
_GGUF_EMBEDDING = "token_embd.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A device that a model would be loaded to.

    Attributes:
        memory: of the device.
        settings: which name the device.
    """

    memory: Memory
    settings: Settings

    @property
    def is_host(self) -> bool:
        return not self.memory.uuid

    def budget(self, entry: ModelEntry) -> int:
        """Bytes of the free memory that a model may use."""
        share = entry.memory_share or (HOST_SHARE if self.is_host else GPU_SHARE)
        return int(self.memory.free * share)

    def why_not(self, width: str) -> str:
        """Why weights cannot be quantized there; empty if they can, or need not be."""
        device = "cpu" if self.is_host else self.settings.device or "cuda"
        return why_not_quantized(device) if width != "none" else ""

    def width(self, entry: ModelEntry) -> str:
        """The quantized width of a model's weights."""
        return self.settings.quantize or entry.quantize

    def dtype_bytes(self, entry: ModelEntry) -> int:
        """Bytes of a number as `engine.model.machine.device.pick_dtype` would load a model."""
        named = self.settings.dtype
        if named not in (None, "auto"):
            return 4 if named == "float32" else 2
        if entry.dtype == "float32":
            return 4
        is_fast = entry.dtype != "float16" and {"avx512_bf16", "bf16"} & set(cpu_features() or ())
        return 2 if is_fast or not self.is_host else 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """An entry of the registry with its state on this machine.

    Attributes:
        context_length: tokens that the entry, or else the model, allows; None if not known.
        quantize: the width of the weights after loading.
        loading_bytes: bytes of the weights while loading; None if not known.
        weight_bytes: bytes of the weights while serving; None if not known.
        is_about: whether `weight_bytes` is an estimate.
        token_bytes: bytes of a token's keys and values; None if not known.
        contexts: how many full contexts fit; None if not known.
        tokens: how many tokens of cache fit; None if not known.
        begins_thinking: see `ModelEntry.begins_thinking`.
        loads_here: whether the model can be loaded without a download.
        reason: why it cannot; empty if it can.
    """

    name: str
    source: str
    dtype: str
    quantize: str
    context_length: int | None
    loading_bytes: int | None
    weight_bytes: int | None
    is_about: bool
    token_bytes: int | None
    contexts: int | None
    tokens: int | None
    begins_thinking: bool
    availability: Availability
    fit: Fit
    loads_here: bool
    reason: str


def run(settings: Settings, name: str | None = None, *, as_json: bool) -> int:
    """Print the registry, or the needs of one model; returns the exit code.

    Args:
        name: an entry, a folder or a hub id; None is the whole registry.

    Raises:
        SettingsError: the registry is missing or broken, or there is no such model.
    """
    place = Place(memory=memory_of(settings.device), settings=settings)
    try:
        registry = Registry.read(settings.models)
        if name is not None:
            entry = registry.find(name)
            listing = examine(entry, place, closely=True)
            print_text(
                to_json([listing]) if as_json else to_text(listing, place, place.budget(entry))
            )
            return ExitCode.OK
    except (InvalidConfigError, ModelError) as error:
        raise SettingsError(error.message) from None
    listings = list_models(registry, place)
    print_text(to_json(listings) if as_json else to_table(listings))
    return ExitCode.OK


def list_models(registry: Registry, place: Place) -> list[Listing]:
    """Every entry, in the registry's order. This reads only the headers of weight files, and
    contacts no hub."""
    return [examine(entry, place) for entry in registry.entries.values()]


def examine(entry: ModelEntry, place: Place, *, closely: bool = False) -> Listing:
    """The state of a registry entry on this machine.

    Args:
        closely: whether to trace a local model, which imports torch. Otherwise a model is traced
            only if its entry does not state the bytes of a token.
    """
    availability, reason = entry.availability(), ""
    estimate = _stated(entry, place)
    if availability is Availability.DOWNLOAD:
        reason = "its weights are not on this machine; they are downloaded when it is first loaded"
    else:
        try:
            estimate = _found(entry, place, estimate, closely=closely)
        except EngineError as error:
            reason = error.message
    budget, width = place.budget(entry), place.width(entry)
    fit = estimate.fit(budget)
    reason = place.why_not(width) or reason
    if not reason and fit is Fit.NOT:
        reason = _too_large(estimate, budget, place.memory.free)
    return Listing(
        name=entry.name,
        source=entry.source,
        dtype=entry.dtype,
        quantize=width,
        context_length=estimate.context_length,
        loading_bytes=estimate.weight_bytes,
        weight_bytes=estimate.served_bytes,
        is_about=estimate.is_about,
        token_bytes=estimate.token_bytes,
        contexts=estimate.contexts(budget),
        tokens=estimate.tokens(budget),
        begins_thinking=entry.begins_thinking,
        availability=availability,
        fit=fit,
        loads_here=not reason,
        reason=reason,
    )


def _stated(entry: ModelEntry, place: Place) -> Estimate:
    """An estimate from the entry alone."""
    item, width = place.dtype_bytes(entry), place.width(entry)
    return Estimate(
        weight_bytes=None if entry.parameters is None else entry.parameters * item,
        token_bytes=None if entry.cache_numbers is None else entry.cache_numbers * item,
        context_length=entry.context_length,
        saved_bytes=Numbers(entry.parameters or 0).saved(width, item),
        is_about=width != "none",
    )


def _found(entry: ModelEntry, place: Place, stated: Estimate, *, closely: bool) -> Estimate:
    """An estimate from the files of a local model.

    Raises:
        ModelError, InvalidConfigError: they are broken, or the model is not supported or does not
            fit.
    """
    folder = entry.local_folder() or entry.folder
    assert folder is not None  # otherwise it would be downloaded first
    checkpoint, vocab_size = _opened(folder)
    item, width = place.dtype_bytes(entry), place.width(entry)
    numbers = Numbers.of(checkpoint, vocab_size)
    estimate = Estimate(
        weight_bytes=checkpoint.num_bytes_as(item),
        token_bytes=stated.token_bytes,
        context_length=stated.context_length,
        saved_bytes=numbers.saved(width, item),
        is_about=width != "none" and not numbers.head,
    )
    is_known = estimate.context_bytes is not None
    if (is_known and not closely) or estimate.fit(place.budget(entry)) is Fit.NOT:
        return estimate
    # This is not imported at the top, because it imports torch, which takes seconds.
    from engine.model.loading.loader import examine_entry

    needs = examine_entry(entry, folder, place.settings.load_request())
    longest = min(needs.max_positions, needs.context_length or needs.max_positions)
    return Estimate(
        weight_bytes=needs.weight_bytes,
        token_bytes=needs.shape.kv_bytes_per_token,
        context_length=longest,
        saved_bytes=needs.saved_bytes,
    )


def _opened(path: Path) -> tuple[Checkpoint, int]:
    """The tensors of a folder or a GGUF file, and the vocabulary size; 0 if it is not stated.

    Raises:
        ModelError: its files are missing or broken.
    """
    file = find_gguf(path)
    if file is not None:
        # This is not imported at the top, because few models need it.
        from engine.model.files.gguf.header import read_header

        checkpoint = read_header(file).checkpoint
        rows = (one.shape[0] for one in checkpoint.tensors if one.name == _GGUF_EMBEDDING)
        return checkpoint, next(rows, 0)
    checkpoint = open_checkpoint(path)
    if not (path / CONFIG_FILE).is_file():
        raise ModelError(f"{path} has no {CONFIG_FILE}")
    return checkpoint, _vocab_size(path)


def _vocab_size(folder: Path) -> int:
    """The vocabulary size of the model in a folder; 0 if it is not stated.

    Raises:
        ModelError: its configuration is broken.
    """
    config = read_json(folder / CONFIG_FILE, CONFIG_BYTES) or {}
    text = config.get("text_config")
    stated = (text if isinstance(text, dict) else config).get("vocab_size")
    return stated if isinstance(stated, int) else 0


def _too_large(estimate: Estimate, budget: int, free: int) -> str:
    assert estimate.weight_bytes is not None  # otherwise nothing is too large
    before = " before they are quantized" if estimate.saved_bytes else ""
    return (
        f"its weights take {format_bytes(estimate.weight_bytes)}{before}; of memory "
        f"{format_bytes(free)} are free, and it may take {format_bytes(budget)}"
    )


def to_table(listings: Sequence[Listing]) -> str:
    """The registry, grouped by fit. The faults of entries stand below."""
    widths = any(listing.quantize != "none" for listing in listings)
    header = ("name", "here", "weights", "a token", "context", "quantized", "source")
    grouped = {
        title: [x for x in listings if x.fit is fit and not _is_broken(x)]
        for fit, title in _GROUPS.items()
    } | {_BROKEN: [x for x in listings if _is_broken(x)]}
    table = [header, *map(_cells, (x for group in grouped.values() for x in group))]
    if not widths:
        table = [(*row[:5], *row[6:]) for row in table]
    lines = align(table, (2, 3))
    shown, lines = [lines[0]], lines[1:]
    for title, group in grouped.items():
        if group:
            shown += ["", f"{title}:", *lines[: len(group)]]
            lines = lines[len(group) :]
    shown += [""] * any(map(_is_broken, listings))
    shown += [f"{x.name} cannot be loaded: {x.reason}" for x in listings if _is_broken(x)]
    return "\n".join(shown)


def to_text(listing: Listing, place: Place, budget: int) -> str:
    """The memory that one model needs, and how much context fits."""
    source = _source_of_figures(listing)
    rows = [
        ("model", f"{listing.name}, {listing.source}"),
        ("here", _here(listing)),
        ("weights", _weights(listing) + source),
        ("a KV token", _bytes(listing.token_bytes)),
        ("a full context", _context(listing)),
        (
            "free memory",
            f"{format_bytes(place.memory.free)} on {place.memory.name}, of which it may take "
            f"{format_bytes(budget)}",
        ),
        ("fits", _room(listing)),
    ]
    if listing.begins_thinking:
        rows.append(("thinking", "begins each reply, by what the registry states"))
    if _is_broken(listing):
        rows.append(("cannot be loaded", listing.reason))
    return "\n".join(align(rows))


def to_json(listings: Sequence[Listing]) -> str:
    return json.dumps([asdict(listing) for listing in listings], ensure_ascii=False, indent=2)


def _cells(listing: Listing) -> tuple[str, ...]:
    return (
        listing.name,
        _here(listing),
        _about(listing) + _bytes(listing.weight_bytes, unknown=""),
        _bytes(listing.token_bytes, unknown=""),
        _format_context(listing),
        listing.quantize if listing.quantize != "none" else "",
        listing.source,
    )


def _about(listing: Listing) -> str:
    return "about " if listing.is_about and listing.weight_bytes is not None else ""


def _weights(listing: Listing) -> str:
    text = _about(listing) + _bytes(listing.weight_bytes)
    if listing.quantize == "none" or listing.weight_bytes is None:
        return text
    return f"{text} in {listing.quantize}, {_bytes(listing.loading_bytes)} while it is loaded"


def _format_context(listing: Listing) -> str:
    if listing.context_length is None:
        return ""
    if listing.fit is Fit.SHORTER:
        return f"{listing.tokens} of {listing.context_length}"
    return str(listing.context_length)


def _context(listing: Listing) -> str:
    length = listing.context_length
    if length is None or listing.token_bytes is None:
        text = "" if length is None else f" ({length} tokens)"
        return Fit.UNKNOWN + text
    return f"{format_bytes(length * listing.token_bytes)} ({length} tokens)"


def _room(listing: Listing) -> str:
    if listing.fit is Fit.SHORTER:
        return f"a context of {listing.tokens} tokens, without the largest step"
    if listing.fit is Fit.FULL:
        return f"{listing.contexts} full contexts, without the largest step"
    return "no" if listing.fit is Fit.NOT else listing.fit


def _source_of_figures(listing: Listing) -> str:
    if listing.availability is Availability.DOWNLOAD and listing.weight_bytes is not None:
        return ", by what the registry states"
    return ""


def _bytes(count: int | None, unknown: str = Fit.UNKNOWN) -> str:
    if count is None:
        return unknown
    return f"{count / 1024:.1f} KiB" if count < 1 << 20 else format_bytes(count)


def _is_broken(listing: Listing) -> bool:
    """Whether a local model cannot be loaded for another reason than its size."""
    is_here = listing.availability is not Availability.DOWNLOAD
    return is_here and bool(listing.reason) and listing.fit is not Fit.NOT


def _here(listing: Listing) -> str:
    if listing.availability is Availability.DOWNLOAD:
        return "after download"
    return "yes" if listing.loads_here else "no"
