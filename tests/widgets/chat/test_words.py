from __future__ import annotations

import pytest

from widgets.chat.passage import folded, pattern


@pytest.mark.parametrize("text", ["Abc", "Étude", "Straße", "İx", "e\u0301", "日本語", "\u0130"])
def test_folding_keeps_positions(text: str) -> None:
    assert len(folded(text)) == len(text)


@pytest.mark.parametrize(
    ("words", "text", "found"),
    [
        (["art"], "Art, start, artist", ["art", "art"]),
        (["etude"], "ÉTUDE", ["etude"]),
        (["a.b"], "a.b axb", ["a.b"]),
        (["本"], "日本語", ["本"]),
        (["b", "a"], "a b", ["a", "b"]),
    ],
)
def test_words_are_found_by_their_beginnings(words: list[str], text: str, found: list[str]) -> None:
    searched = pattern(words)
    assert searched is not None
    assert searched.findall(folded(text)) == found


def test_no_words_are_no_pattern() -> None:
    assert pattern([]) is pattern([""]) is None
