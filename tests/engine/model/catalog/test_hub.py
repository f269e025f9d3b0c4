"""Downloads, from a hub that runs here."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.hf_api
import pytest

from engine.api.errors import ModelError
from engine.model.catalog.hub import download
from engine.model.catalog.registry import Availability, Registry

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": bytes(300_000),
    "consolidated.safetensors": b"the weights again",
    "pytorch_model.bin": b"and again",
    "onnx/model.json": b"{}",
}
WANTED = {"config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download asks for."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, headers, body = self.answer()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        path = self.path.partition("?")[0]
        if path == "/api/models/owner/model":
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            info = {"id": "owner/model", "sha": COMMIT, "siblings": siblings}
            return 200, {}, json.dumps(info).encode()
        if path.startswith("/owner/model/resolve/main/"):
            data = FILES[path.removeprefix("/owner/model/resolve/main/")]
            etag = hashlib.sha1(data).hexdigest()
            return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, data
        if "gated" in path:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        return 404, {"X-Error-Code": "RepoNotFound"}, b""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    point_at(f"http://127.0.0.1:{server.server_port}", tmp_path, monkeypatch)
    yield
    server.shutdown()
    server.server_close()


def point_at(endpoint: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", endpoint)


@pytest.mark.usefixtures("hub")
def test_takes_the_models_own_files_and_counts_their_bytes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int, int]] = []
    folder = download("owner/model", lambda text, done=0, of=0: calls.append((text, done, of)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: FILES[name] for name in WANTED
    }
    total = sum(len(FILES[name]) for name in WANTED)
    counted = [(done, of) for text, done, of in calls if text.startswith("downloading owner/model")]
    assert counted[-1] == (total, total)
    assert counted == sorted(counted)
    assert capfd.readouterr() == ("", "")

    entry = Registry.read().find("owner/model")
    assert entry.availability() is Availability.READY
    assert entry.local_folder() == folder


@pytest.mark.usefixtures("hub")
def test_takes_pickles_where_there_are_no_safetensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(FILES, "model.safetensors")
    folder = download("owner/model", lambda *_: None)
    assert {path.name for path in folder.iterdir()} == (
        WANTED - {"model.safetensors"} | {"pytorch_model.bin"}
    )


@pytest.mark.usefixtures("hub")
def test_progress_can_end_the_download() -> None:
    def progress(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        if loaded_bytes:
            raise KeyError("cancelled")

    with pytest.raises(KeyError):
        download("owner/model", progress)


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("hub_id", "message"),
    [
        ("owner/none", "the hub has no model owner/none, or it is private"),
        (
            "owner/gated",
            "owner/gated is gated: accept its terms on https://huggingface.co/owner/gated and set "
            "HF_TOKEN",
        ),
    ],
)
def test_what_the_hub_refuses(hub_id: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        download(hub_id, lambda *_: None)
    assert caught.value.message == message


@pytest.mark.usefixtures("hub")
def test_a_full_disk_is_seen_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ModelError, match=r"owner/model needs 0\.3 MiB on disk; .* has 0\.0 MiB"):
        download("owner/model", lambda *_: None)


def test_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", tmp_path, monkeypatch)
    with pytest.raises(ModelError) as caught:
        download("owner/model", lambda *_: None)
    assert caught.value.message.startswith(
        "owner/model is not on this machine and cannot be downloaded from http://127.0.0.1:9: "
    )
    assert "\n" not in caught.value.message
