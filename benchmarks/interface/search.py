"""search: how soon chats are found by their words, and how long it takes to index those."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate
from pathlib import Path

from app.store.query import parse
from app.store.search import Search
from benchmarks.figure import Figure
from benchmarks.interface.start import CHATS, MESSAGES
from benchmarks.interface.stored import LAST_WORD, store_chats

# Words of every reply, of every question, of one chat's messages and of one message, and none.
TYPED = ("list code", '"a little code"', "question 5", "chat 77", LAST_WORD, "model:qwen", "")


def measure(rounds: int, chats: int = CHATS, messages: int = MESSAGES) -> Iterator[Figure]:
    """All that is searched for while these are typed, letter by letter, so many times."""
    stored = f"{chats:,} chats, {messages:,} messages stored"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "batchdeck.db")
        store_chats(path, chats, messages)
        with closing(Search(path)) as search:
            began = time.perf_counter()
            search.catch_up()
            taken = time.perf_counter() - began
            yield Figure("search", "all messages are indexed", taken, "s", stored)
            found = [_find(search, text) for _ in range(rounds) for text in _typed()]
    milliseconds = [1000 * seconds for seconds in found]
    p99 = statistics.quantiles(milliseconds, n=100)[-1]
    yield Figure(
        "search", "letter to what it finds, p50", statistics.median(milliseconds), "ms", stored
    )
    yield Figure("search", "letter to what it finds, p99", p99, "ms", stored).below(100)


def _typed() -> Iterator[str]:
    """The content of the dialog's field after each letter, and at its beginning."""
    for text in TYPED:
        yield from accumulate(text, initial="")


def _find(search: Search, text: str) -> float:
    """Seconds until chats are found."""
    began = time.perf_counter()
    search.find(parse(text))
    return time.perf_counter() - began
