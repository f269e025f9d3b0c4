"""Uploads: what comes in pieces is one file or none, and no more of it is held than a part."""

from __future__ import annotations

import io
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.http.batches import form_reader, upload
from app.gateway.http.batches.form_reader import FormReader, LineCutter
from app.store import database
from app.store.files import Files, Line
from tests.support.batch_asking import client_of
from tests.support.http_serving import HttpServing, http_serving

BOUNDARY = "frontier"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


GOOD = form(part("purpose", b"batch"), part("file", b"a\nb", "asks.jsonl"))


@given(
    content=st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"--", b"frontier", b"\r\n--fron"])),
    cuts=st.lists(st.integers(1, 60)),
    is_first=st.booleans(),
)
def test_however_it_is_cut_it_is_the_same_file(
    content: list[bytes], cuts: list[int], is_first: bool
) -> None:
    whole = b"".join(content)
    parts = [part("file", whole, "größe.jsonl"), part("purpose", b"batch")]
    payload = form(*(parts if is_first else reversed(parts)))
    cutter = LineCutter(10_000, 10_000)
    reader = FormReader(TYPE, cutter)
    lines: list[Line] = []
    for cut in cuts:
        reader.feed(payload[:cut])
        lines += cutter.drain()
        payload = payload[cut:]
    reader.feed(payload)
    reader.end()
    lines += cutter.drain()
    assert b"".join(line.content for line in lines) == whole
    assert [line.content for line in lines] == [*io.BytesIO(whole)]
    assert [line.number for line in lines] == [*range(1, len(lines) + 1)]
    assert reader.texts == {"file": "größe.jsonl", "purpose": "batch"}


@pytest.mark.parametrize(
    ("content_type", "body", "code", "message"),
    [
        ("application/json", b"{}", 400, "it must be multipart/form-data with a boundary"),
        ("multipart/form-data", GOOD, 400, "with a boundary"),
        (f"multipart/form-data; boundary={'x' * 999}", GOOD, 400, "Boundary length 999"),
        (TYPE, GOOD[:-4], 400, "breaks off before its last boundary"),
        (TYPE, b"nothing", 400, "the form cannot be read: "),
        (TYPE, form(part("purpose", b"batch")), 400, "file is missing"),
        (TYPE, form(part("file", b"x", "x")), 400, "purpose is missing; it must be batch"),
        (TYPE, form(part("file", b"x"), part("purpose", b"batch")), 400, "file is missing"),
        (
            TYPE,
            form(f"--{BOUNDARY}\r\nA: b\r\n\r\n".encode()),
            400,
            "a part of the form has no name",
        ),
        (TYPE, form(*[part("file", b"x", "x")] * 2), 400, "several files; one is taken"),
        (TYPE, form(*[part("x", b"x")] * 17), 400, "more than 16 parts"),
        (TYPE, form(part("purpose", b"x" * 2000)), 400, "'purpose' has more than 1024 bytes"),
        (TYPE, b"x" * 70_000 + b"\r\n" + GOOD, 400, "the form cannot be read: "),
        (TYPE, GOOD + b"x" * 70_000, 413, "more than 65536 bytes beside its file"),
        (TYPE, form(part("file", b"x" * 2001, "x")), 400, "line 1 of file has more than the 2000"),
        (TYPE, form(part("file", b"\n" * 6, "x")), 400, "file has more than the 5 lines"),
        (TYPE, form(part("file", b"x\n" * 5000, "x")), 413, "more than the 9000 bytes"),
        (TYPE, form(part("file", b"x\n" * 50_000, "x")), 413, "more than the 9000 bytes"),
        (
            TYPE,
            form(
                part("file", b"x", "x"),
                part("purpose", b"batch"),
                part("expires_after[anchor]", b"created_at"),
                part("expires_after[seconds]", b"60"),
            ),
            400,
            "expires_after.seconds is 60; it must be an integer from 3600 to 2592000",
        ),
    ],
)
def test_what_is_no_form_with_a_file_is_refused_and_leaves_nothing(
    small: HttpServing,
    monkeypatch: pytest.MonkeyPatch,
    content_type: str,
    body: bytes,
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr(form_reader, "MAX_LINES", 5)
    answer = small.http.post("/v1/files", content=body, headers={"content-type": content_type})
    assert answer.status_code == code, answer.text
    assert message in answer.json()["error"]["message"]
    small.until(lambda: is_empty(small.store_file))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServing]:
    """A gateway with low bounds."""
    store_file = tmp_path_factory.mktemp("small") / "store.db"
    with http_serving(
        store_file=store_file, max_file_bytes=9000, max_request_bytes=2000
    ) as serving:
        yield serving


def is_empty(store_file: Path) -> bool:
    """Whether nothing of any file is in a store, be it one that nobody sees."""
    with closing(sqlite3.connect(store_file)) as db:
        (count,) = db.execute("SELECT (SELECT count(*) FROM file) + count(*) FROM line").fetchone()
    return count == 0


def test_a_client_that_goes_leaves_nothing(
    small: HttpServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = small.url.removeprefix("http://").rpartition(":")
    monkeypatch.setattr(upload, "HELD_BYTES", 1)
    with socket.create_connection((host, int(port))) as line:
        head = f"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\n"
        line.sendall(f"{head}Content-Length: 5000\r\n\r\n".encode())
        line.sendall(GOOD[:-20] + b"\nc\n")
        small.until(lambda: not is_empty(small.store_file))
    small.until(lambda: is_empty(small.store_file))


def test_what_does_not_come_is_given_up(
    small: HttpServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PIECE_SECONDS", 0.05)
    host, _, port = small.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port))) as line:
        head = f"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: {TYPE}\r\n"
        line.sendall(f"{head}Content-Length: 5000\r\n\r\n".encode() + GOOD[:-20])
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408 ")
    small.until(lambda: is_empty(small.store_file))


def test_a_large_file_is_held_in_parts(
    serving: HttpServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, parts = Files.append, []

    def noted(self: Files, number: int, lines: list[Line]) -> None:
        parts.append(sum(len(line.content) for line in lines))
        add(self, number, lines)

    monkeypatch.setattr(Files, "append", noted)
    monkeypatch.setattr(upload, "HELD_BYTES", 50_000)
    monkeypatch.setattr(upload, "PAUSE_SECONDS", 0.0)
    content = b"".join(b"%d %s\n" % (n, b"x" * 99) for n in range(40_000))
    client = client_of(serving.url)
    file = client.files.create(file=("large.jsonl", content), purpose="batch")
    assert file.bytes == sum(parts) == len(content)
    # Beside what is held, what uvicorn reads ahead, and what asyncio reads at once.
    assert max(parts) <= 50_000 + (1 << 16) + (1 << 18)
    assert client.files.content(file.id).content == content
    client.files.delete(file.id)


def test_an_address_says_what_it_answers(serving: HttpServing) -> None:
    answer = serving.http.put("/v1/files")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


def test_files_are_listed_and_expire(serving: HttpServing) -> None:
    client = client_of(serving.url)

    def put(name: str, seconds: int) -> str:
        expires_after: openai.types.file_create_params.ExpiresAfter
        expires_after = {"anchor": "created_at", "seconds": seconds}
        file = client.files.create(file=(name, b"x"), purpose="batch", expires_after=expires_after)
        assert file.expires_at == file.created_at + seconds
        assert (file.filename, file.status) == (name, "processed")
        return file.id

    ids = [put(f"{n}.jsonl", 3600 + n) for n in range(5)]
    assert [one.id for one in client.files.list(limit=2)] == ids[::-1]
    assert [one.id for one in client.files.list(order="asc", after=ids[1], limit=1)] == ids[2:]
    assert [*client.files.list(purpose="batch_output")] == []
    assert client.files.delete(ids[0]).deleted
    with pytest.raises(openai.NotFoundError, match="must be the id of one of your files"):
        client.files.retrieve(ids[0])
    for query, message in (
        ({"limit": "0"}, "limit is 0; it must be an integer from 1 to 10000"),
        ({"limit": "x"}, "limit is 'x'; it must be"),
        ({"order": "up"}, "order is 'up'; it must be asc or desc"),
    ):
        answer = serving.http.get("/v1/files", params=query)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    for name in ids[1:]:
        client.files.delete(name)


def upload_of(serving: HttpServing, content: bytes, key: str) -> tuple[int, str]:
    payload = form(part("purpose", b"batch"), part("file", content, "asks.jsonl"))
    headers = {"Content-Type": TYPE, "x-api-key": key}
    answer = serving.http.post("/v1/files", content=payload, headers=headers)
    return answer.status_code, answer.json().get("id") or answer.json()["error"]["message"]


def test_each_key_stores_so_many_bytes_and_others_go_on(
    store_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"ann": {"key": "a", "stored_bytes": 1000}, "bob": {"key": "b"}}
    with http_serving(store_file=store_file, keys=keys) as serving:
        _, first = upload_of(serving, b"x" * 600, "a")
        code, message = upload_of(serving, b"x" * 600, "a")
        assert (code, message) == (
            413,
            "the files of user 'ann' have 600 bytes, and 600 more are to come; at most 1000 are"
            " allowed: delete some",
        )
        assert upload_of(serving, b"x" * 600, "b")[0] == 200
        sweep, is_swept = Files.sweep, [False]
        monkeypatch.setattr(Files, "sweep", lambda self: is_swept[0] and sweep(self))
        headers = {"x-api-key": "a"}
        assert serving.http.delete(f"/v1/files/{first}", headers=headers).status_code == 200
        # What was deleted takes room until it is swept away.
        code, message = upload_of(serving, b"x" * 600, "a")
        assert (code, "600 that were deleted are being removed" in message) == (429, True)
        is_swept[0] = True
        serving.gateway._thread.call(serving.gateway._batching._sweep.poke)
        serving.until(lambda: upload_of(serving, b"x" * 600, "a")[0] == 200)


def test_on_a_full_disk_nothing_is_stored_and_all_can_be_deleted(
    store_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = 1 << 30
    monkeypatch.setattr(database.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with http_serving(store_file=store_file, api_key="a") as serving:
        code, name = upload_of(serving, b"x\n" * 600, "a")
        assert code == 200
        free = database.DISK_LEFT
        for _ in range(3):
            code, message = upload_of(serving, b"x", "a")
            assert code == 503
            assert str(store_file.parent) not in message
        # Once, with the path, for who can do something about it.
        assert sum(str(store_file) in one for one in caplog.messages) == 1
        assert "the disk is full" in caplog.text
        answer = serving.http.delete(f"/v1/files/{name}", headers={"x-api-key": "a"})
        assert answer.status_code == 200


def test_what_cannot_be_opened_tells_a_client_no_path(tmp_path: Path) -> None:
    with http_serving(store_file=tmp_path) as serving:
        answer = serving.http.get("/v1/files")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "store"
        assert str(tmp_path) not in answer.text
