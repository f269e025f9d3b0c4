"""Hub: fetches a model from the Hugging Face hub into its local cache."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download, model_info, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from tqdm import tqdm  # type: ignore[import-untyped]

from engine.api.errors import ModelError
from engine.model.files.meter import Meter
from engine.model.files.size_text import format_bytes
from engine.serving.loading import Progress

# Only files of the top folder, because copies of the weights in other formats are in folders below
# it. Mistral keeps one in the top folder too; its name, consolidated.safetensors, is excluded.
_WANTED = re.compile(r"(model[\w.-]*\.safetensors|[\w.-]+\.(json|jinja|txt|model))")
# Weights in old repositories; if there are safetensors too, they are the same.
_PICKLED = re.compile(r"pytorch_model[\w.-]*\.bin")


def download(hub_id: str, progress: Progress) -> Path:
    """Download the files that are not in the cache yet.

    Returns:
        the folder with the model's files.

    Raises:
        ModelError: the model is unknown or gated, the disk is too full, or the hub cannot be
            reached.
    """
    progress(f"looking up {hub_id}")
    files, lacking = _list_files(hub_id)
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache).free
    if lacking > free:
        raise ModelError(
            f"{hub_id} needs {format_bytes(lacking)} on disk; {cache} has {format_bytes(free)} free"
        )
    meter = Meter(f"downloading {hub_id}", lacking, progress)

    class Bar(tqdm):  # type: ignore[misc]
        """Counts the pieces that the hub client receives, and draws nothing."""

        def __init__(self, *args: Any, initial: int = 0, **kwargs: Any) -> None:
            super().__init__(disable=True)
            self.update(initial)

        def update(self, n: float | None = 1) -> None:
            meter.add(int(n or 0))

    try:
        # Files are requested by branch, not by commit, so that the cache knows which snapshot a
        # later start should use.
        paths = []
        for name in files:
            meter.detail = f"downloading {hub_id}/{name}"
            paths.append(hf_hub_download(hub_id, name, tqdm_class=Bar))
    except Exception as error:
        if meter.interrupted:
            raise
        raise _refusal(hub_id, error) from error
    return Path(paths[0]).parent


def _list_files(hub_id: str) -> tuple[list[str], int]:
    """Names of the model's files, and the total size of those that are not in the cache."""
    try:
        info = model_info(hub_id, files_metadata=True)
    except Exception as error:
        raise _refusal(hub_id, error) from error
    all_sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    sizes = {name: size for name, size in all_sizes.items() if _WANTED.fullmatch(name)}
    if not any(name.endswith(".safetensors") for name in sizes):
        sizes |= {name: size for name, size in all_sizes.items() if _PICKLED.fullmatch(name)}
    if not sizes:
        raise ModelError(f"{hub_id} on the hub holds no model in safetensors")
    lacking = [name for name in sizes if try_to_load_from_cache(hub_id, name) is None]
    return sorted(sizes), sum(sizes[name] for name in lacking)


def _refusal(hub_id: str, error: Exception) -> ModelError:
    """Turn the hub client's error into a sentence. Each of its HTTP libraries has other ones."""
    if isinstance(error, GatedRepoError):
        return ModelError(
            f"{hub_id} is gated: accept its terms on https://huggingface.co/{hub_id} and set "
            "HF_TOKEN"
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelError(f"the hub has no model {hub_id}, or it is private", "model")
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return ModelError(
        f"{hub_id} is not on this machine and cannot be downloaded from {constants.ENDPOINT}: "
        f"{reason}"
    )
