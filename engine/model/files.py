"""Files: what the files of a model may be, checked before anything reads them.

A folder may come from anyone. Reading a FIFO waits for ever, reading a device fills the memory, and
so does a file that is much larger than what it is named after.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from engine.api.errors import ModelError
from engine.model.size_text import show_bytes

# Bounds on sizes. The longest default configuration of transformers 5.23's language models has
# 8 kB, and the index of a mixture of 61 layers of 256 experts, three matrices each, 4 MB: 91 bytes
# for each of 46,848 tensors. The bounds for tokenizers and templates limit what parsing them may
# take.
CONFIG_BYTES = 4 << 20
INDEX_BYTES = 100 << 20
TEMPLATE_BYTES = 1 << 20
TOKENIZER_BYTES = 128 << 20
REGISTRY_BYTES = 1 << 20

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def check_file(path: Path, most: int | None = None) -> int:
    """Check a file, or the file that a link leads to, without opening it.

    Args:
        most: bytes that it may have; None sets no limit.

    Returns:
        its size in bytes.

    Raises:
        FileNotFoundError: there is none.
        ModelError: it is no regular file, too large, or cannot be asked about.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:  # a zero byte, or half of a surrogate pair
        raise ModelError(f"{path} cannot be read: no file has such a name") from None
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "no file")
        raise ModelError(f"{path} is {kind}; only regular files are read")
    if most is not None and found.st_size > most:
        raise _too_large(path, show_bytes(found.st_size), most)
    return found.st_size


def read_file(path: Path, most: int) -> bytes:
    """A file's bytes.

    Raises:
        FileNotFoundError: there is none.
        ModelError: as `check_file`, or it cannot be read.
    """
    check_file(path, most)
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > most:  # it grew, or its size says nothing, as in /proc
        raise _too_large(path, "more", most)
    return data


def read_json(path: Path, most: int) -> dict[str, Any] | None:
    """The object in a file; None without the file.

    Raises:
        ModelError: as `read_file`, or it holds no object.
    """
    try:
        value = parse_json(read_file(path, most))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ModelError(f"{path} is broken: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is broken: it holds no JSON object")
    return value


def parse_json(data: bytes) -> Any:
    """The value that some bytes spell.

    Raises:
        ValueError: they are no JSON, no UTF-8, or nested too deeply.
    """
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _too_large(path: Path, has: str, most: int) -> ModelError:
    return ModelError(f"{path} has {has}; at most {show_bytes(most)} are allowed")
