from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import XTermParser

from app.screens.keys.legacy_keys import read_alt_keys


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    """Leaves Textual's table as it was."""
    before = dict(ANSI_SEQUENCES_KEYS)
    yield
    ANSI_SEQUENCES_KEYS.clear()  # type: ignore[attr-defined]
    ANSI_SEQUENCES_KEYS.update(before)  # type: ignore[attr-defined]


def keys(data: str) -> list[str]:
    parser = XTermParser()
    # A sequence that is not known may go on, until there is an end.
    read = [*parser.feed(data), *parser.feed("")]
    return [event.key for event in read if isinstance(event, events.Key)]


def test_alt_is_read_as_such_and_at_once() -> None:
    read_alt_keys()
    assert keys("\x1b1\x1b9a") == ["alt+1", "alt+9", "a"]
    assert keys("two\x1b\rlines\r") == [*"two", "alt+enter", *"lines", "enter"]


def test_the_characters_themselves_stay_characters() -> None:
    read_alt_keys()
    assert keys("¡1") == ["inverted_exclamation_mark", "1"]


def test_textual_still_reads_them_otherwise() -> None:
    # When this fails, `legacy_keys` is no longer needed. In a process where nobody has changed it.
    code = (
        "from tests.app.screens.keys.test_legacy_keys import keys;"
        "print(*keys('\\x1b1'), *keys('\\x1b\\r'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["inverted_exclamation_mark", "enter"]
