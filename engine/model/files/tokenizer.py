"""Tokenizer: reads the tokenizer of a model folder, in any process. It needs no torch."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from engine.api.errors import ModelError
from engine.model.files.blame import blaming
from engine.model.files.reading import TEMPLATE_BYTES, read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
TEMPLATE_FILE = "chat_template.json"  # where processors of older versions store it


class FolderTokenizer:
    """The tokenizer of a folder, which a process reads when it unpickles this.

    Raises:
        ModelError: the folder has none.
    """

    def __init__(self, folder: Path) -> None:
        if not has_tokenizer(folder):
            raise ModelError(f"{folder} has no tokenizer: none of {', '.join(TOKENIZER_FILES)}")
        self._folder = folder

    def build(self) -> Any:
        """Read it here; see `read_tokenizer`."""
        return read_tokenizer(self._folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return read_tokenizer, (self._folder,)


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
