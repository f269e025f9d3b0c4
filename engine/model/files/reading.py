"""Files: checks a model's files before anything reads them.

A folder may come from anyone. Reading a FIFO waits for ever, and reading a device, or a file far
larger than its kind, fills the memory.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from engine.api.errors import ModelError
from engine.model.files.size_text import format_bytes

# Size limits. The longest default configuration of transformers 5.23's language models has 8 kB,
# and the index of a mixture of 61 layers of 256 experts, three matrices each, 4 MB: 91 bytes for
# each of 46,848 tensors. The limits for tokenizers and templates bound the cost of parsing them.
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
    """Check a file, or the target of a link, without opening it.

    Args:
        most: size limit in bytes; None for no limit.

    Returns:
        its size in bytes.

    Raises:
        FileNotFoundError: there is no such file.
        ModelError: it is not a regular file, too large, or its status cannot be read.
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
        raise _too_large(path, format_bytes(found.st_size), most)
    return found.st_size


def read_file(path: Path, most: int) -> bytes:
    """Read a file.

    Raises:
        FileNotFoundError: there is no such file.
        ModelError: as `check_file`, or it cannot be read.
    """
    check_file(path, most)
    try:
        with path.open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > most:  # it grew, or its size is meaningless, as in /proc
        raise _too_large(path, "more", most)
    return data


def read_json(path: Path, most: int) -> dict[str, Any] | None:
    """Read the object in a JSON file; None without the file.

    Raises:
        ModelError: as `read_file`, or it does not contain an object.
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
    """Parse JSON.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested too deeply.
    """
    try:
        return json.loads(data.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _too_large(path: Path, has: str, most: int) -> ModelError:
    return ModelError(f"{path} has {has}; at most {format_bytes(most)} are allowed")
