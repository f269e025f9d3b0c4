"""The searches of the benchmark find their chats."""

from __future__ import annotations

from pathlib import Path

from app.store.query import parse
from app.store.store import Store
from benchmarks.interface.search import TYPED, measure
from benchmarks.interface.stored import LAST_WORD, store_chats


def test_all_words_but_those_of_a_filter_are_found(tmp_path: Path) -> None:
    path = tmp_path / "batchdeck.db"
    store_chats(path, chats=100, messages=1000)
    store = Store(path)
    found = {text: len(store.search.find(parse(text))) for text in TYPED}
    store.close()
    assert found.pop("model:qwen") == 0
    assert all(found.values())
    assert found[LAST_WORD] == 1


def test_figures_are_of_the_index_and_of_what_is_typed() -> None:
    figures = list(measure(rounds=1, chats=2, messages=8))
    assert [figure.unit for figure in figures] == ["s", "ms", "ms"]
    assert all(figure.value > 0 for figure in figures)
