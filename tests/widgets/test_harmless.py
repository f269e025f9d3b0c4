from __future__ import annotations

import unicodedata

import pytest

from widgets.harmless import harmless, spelt_out


def test_all_that_a_terminal_obeys_or_turns_by_is_shown() -> None:
    for code in range(0x110000):
        character = chr(code)
        turns = unicodedata.bidirectional(character) in (
            *("LRE", "RLE", "LRO", "RLO", "PDF"),
            *("LRI", "RLI", "FSI", "PDI"),
        )
        if character not in "\n\t" and (turns or unicodedata.category(character) in ("Cc", "Cs")):
            shown = harmless(character)
            assert shown.isascii()
            assert shown.isprintable()
            assert shown.startswith("\\")


@pytest.mark.parametrize(
    "text", ["two\nlines\tand a tab", "می‌خواهم", "\U0001f469‍\U0001f4bb", "back\\slash", "a b"]
)
def test_what_text_is_made_of_stays(text: str) -> None:
    assert harmless(text) == text
    assert harmless(harmless(text)) == text


def test_ends_of_lines_are_ends_of_lines() -> None:
    assert harmless("a\r\nb\rc") == "a\nb\\rc"


def test_what_is_spelt_out_has_nothing_that_cannot_be_seen() -> None:
    assert spelt_out("a\n\u200d\u202e\xa0é") == r"a\n\u200d\u202e\xa0é"
    assert spelt_out("é–", ascii_only=True) == r"\xe9\u2013"
