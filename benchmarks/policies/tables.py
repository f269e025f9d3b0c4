"""Tables and remarks: what the parts print."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from app.process.columns import align

WIDTH = 100


def title(text: str) -> None:
    print(f"\n{text}\n{'=' * len(text)}", flush=True)


def say(text: str) -> None:
    """A paragraph."""
    print(f"\n{textwrap.fill(text, WIDTH)}", flush=True)


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1
) -> None:
    """Print rows as a table. The columns of `texts` are set flush left, the others flush right."""
    say(caption)
    print("\n".join(align([heads, *rows], range(texts, len(heads)))), flush=True)


def count(number: float) -> str:
    return f"{number:,.0f}"


def ratio(number: float) -> str:
    return f"{number:.2f}x"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
