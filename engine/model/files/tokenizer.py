"""Tokenizer: reads the tokenizer of a model folder, in any process. It needs no torch."""

from __future__ import annotations

import hashlib
import logging
import reprlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from engine.api.errors import ModelError, cause_of
from engine.model.files import kept
from engine.model.files.blame import blaming
from engine.model.files.reading import TEMPLATE_BYTES, read_json
from engine.text.copied import CopiedTokenizer, unpickle_tokenizer
from engine.text.table import TokenTable

logger = logging.getLogger(__name__)

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
# Copies that are kept: one of 49,152 tokens has 1.6 MB.
_MOST_BYTES = 256 << 20
TEMPLATE_FILE = "chat_template.json"  # where processors of older versions store it


class FolderTokenizer:
    """The tokenizer of a folder, which a process reads when it unpickles this: from the copy in the
    cache folder that an earlier load has made, else by transformers.

    Args:
        files: all files in the folder that transformers may open.

    Raises:
        ModelError: the folder has none.
    """

    def __init__(self, folder: Path, files: Iterable[Path] = ()) -> None:
        if not has_tokenizer(folder):
            raise ModelError(f"{folder} has no tokenizer: none of {', '.join(TOKENIZER_FILES)}")
        self._folder = folder
        self._kept = _kept_file(folder, files) if kept.KEPT else None

    def build(self) -> Any:
        """Read it here; see `read_tokenizer`."""
        return read_tokenizer(self._folder)

    def copied(self, copy: Callable[[], bytes]) -> CopiedTokenizer:
        """A copy, which is kept for later loads.

        Args:
            copy: gets it from a process that has read the tokenizer (`CopyJob`).
        """
        if self._kept is None:
            return CopiedTokenizer(copy())
        return CopiedTokenizer(kept.content_of(self._kept, copy, most=_MOST_BYTES))

    def table(self, read: Callable[[], TokenTable | None]) -> TokenTable | None:
        """The tokens, for decoding, which are kept for later loads; None if only the tokenizer's
        own code decodes.

        Args:
            read: gets them from a process that has read the tokenizer (`TableJob`).
        """
        if self._kept is None:
            return read()

        def pack() -> bytes:
            table = read()
            return b"" if table is None else table.pack()

        path = self._kept.with_suffix(".tokens")
        packed = kept.content_of(path, pack, most=_MOST_BYTES)
        return TokenTable.unpack(packed) if packed else None

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self._folder, self._kept)


def _open(folder: Path, copy: Path | None) -> Any:
    """The tokenizer of a folder, from its kept copy if there is one."""
    if copy is not None and (content := kept.read(copy)) is not None:
        try:
            return unpickle_tokenizer(content)
        except Exception as error:
            logger.warning("%s is not used: %s", copy, cause_of(error))
            with suppress(OSError):  # else every process that starts later would get it
                copy.unlink()
    return read_tokenizer(folder)


def _kept_file(folder: Path, files: Iterable[Path]) -> Path:
    """Where the copy of a tokenizer is kept; its name depends on all that the copy depends on."""
    facts = [str(folder.absolute()), *map(version, ("tokenizers", "transformers"))]
    facts += [repr(kept.stamp(one)) for one in files]
    digest = hashlib.sha256("\0".join(facts).encode("utf-8", "surrogatepass"))
    return kept.cache_folder() / "tokenizers" / digest.hexdigest()


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def read_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder that `engine.model.files.folder.check_folder` has checked.

    Raises:
        ModelError: transformers refuses it.
    """
    with blaming(f"the tokenizer in {folder} is broken"):
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    own = tokenizer.chat_template
    if (own is None or not str(own).strip()) and (found := _read_template(folder)) is not None:
        tokenizer.chat_template = found
    return tokenizer


def _read_template(folder: Path) -> str | dict[str, str] | None:
    """The chat template in its own file, or several by name; None if there is none.

    Raises:
        ModelError: the file is broken.
    """
    path = folder / TEMPLATE_FILE
    stated = (read_json(path, TEMPLATE_BYTES) or {}).get("chat_template")
    texts = stated.values() if isinstance(stated, dict) else () if stated is None else (stated,)
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(
            f"{path} has chat_template {reprlib.repr(stated)}; it must be a text, or a map of "
            "names to texts"
        )
    template: str | dict[str, str] | None = stated
    return template
