"""Models: the registry as a table, and which of its entries can be loaded on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from app.process.columns import align
from app.process.exits import ExitCode
from app.process.process import show
from app.settings.settings import Settings, SettingsError
from app.system.machine import memory_of
from engine.api.errors import InvalidConfigError, ModelError
from engine.model.checkpoint import CONFIG_FILE, open_checkpoint
from engine.model.memory import show_bytes
from engine.model.registry import Availability, ModelEntry, Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """An entry of the registry as it stands on this machine.

    Attributes:
        context_length: tokens that the entry allows; None is the model's own limit.
        weight_bytes: bytes of the weights as they are stored; None if they are not on this machine
            or cannot be read.
        loads_here: whether the model can be loaded without a download.
        reason: why it cannot; empty if it can.
    """

    name: str
    source: str
    dtype: str
    context_length: int | None
    weight_bytes: int | None
    availability: Availability
    loads_here: bool
    reason: str


def run(settings: Settings, *, as_json: bool) -> int:
    """Print the registry; returns the exit code.

    Raises:
        SettingsError: the registry is missing or broken.
    """
    try:
        registry = Registry.read(settings.models)
    except InvalidConfigError as error:
        raise SettingsError(error.message) from None
    listings = list_models(registry, memory_of(settings.device).free)
    show(to_json(listings) if as_json else to_table(listings))
    return ExitCode.OK


def list_models(registry: Registry, free: int) -> list[Listing]:
    """Every entry, in the registry's order. This reads only the headers of weight files, and asks
    no hub.

    Args:
        free: the bytes of memory that a model may take.
    """
    return [examine(entry, free) for entry in registry.entries.values()]


def examine(entry: ModelEntry, free: int) -> Listing:
    """How an entry of the registry stands on this machine. Whether the load gate accepts its
    architecture shows only when it is loaded."""
    availability = entry.availability()
    weight_bytes, reason = None, ""
    if availability is Availability.DOWNLOAD:
        reason = "its weights are not on this machine; they are downloaded when it is first loaded"
    else:
        folder = entry.local_folder() or entry.folder
        assert folder is not None  # it comes from the hub otherwise
        try:
            checkpoint = open_checkpoint(folder)
        except ModelError as error:
            reason = error.message
        else:
            weight_bytes = checkpoint.num_bytes
            if not (folder / CONFIG_FILE).is_file():
                reason = f"{folder} has no {CONFIG_FILE}"
            elif weight_bytes > free:
                reason = (
                    f"its weights take {show_bytes(weight_bytes)}, of memory "
                    f"{show_bytes(free)} are free"
                )
    return Listing(
        name=entry.name,
        source=entry.source,
        dtype=entry.dtype,
        context_length=entry.context_length,
        weight_bytes=weight_bytes,
        availability=availability,
        loads_here=not reason,
        reason=reason,
    )


def to_table(listings: Sequence[Listing]) -> str:
    header = ("name", "here", "weights", "dtype", "context", "source")
    rows = [
        (
            listing.name,
            _here(listing),
            "" if listing.weight_bytes is None else show_bytes(listing.weight_bytes),
            listing.dtype,
            "" if listing.context_length is None else str(listing.context_length),
            listing.source,
        )
        for listing in listings
    ]
    lines = align((header, *rows), numbers=(2, 4))
    lines += [f"{x.name} cannot be loaded: {x.reason}" for x in listings if _here(x) == "no"]
    return "\n".join(lines)


def to_json(listings: Sequence[Listing]) -> str:
    return json.dumps([asdict(listing) for listing in listings], ensure_ascii=False, indent=2)


def _here(listing: Listing) -> str:
    if listing.availability is Availability.DOWNLOAD:
        return "after download"
    return "yes" if listing.loads_here else "no"
