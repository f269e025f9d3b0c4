"""KeyBar: the keys that act now, as many as fit."""

from __future__ import annotations

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer

# Textual names the class in its CSS and does not export it; a key's action is to be had there only.
from textual.widgets._footer import FooterKey

# What goes first stands first; what is not named goes after these, from the right.
_DROPPED = ("regenerate", "list", "new", "reverse", "command_palette", "quit")
_BLANKS = 3  # that Textual sets around a key and what it does


class KeyBar(Footer):
    """Textual's footer, which cuts off what does not fit, without its least important keys."""

    def compose(self) -> ComposeResult:
        keys = list(super().compose())
        ranked = sorted(keys, key=_rank, reverse=True)
        while ranked and sum(map(_width, keys)) > self.app.size.width:
            keys.remove(ranked.pop())
        yield from keys

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.recompose)


def _rank(key: Widget) -> int:
    action = key.action.removeprefix("app.") if isinstance(key, FooterKey) else ""
    return _DROPPED.index(action) if action in _DROPPED else len(_DROPPED)


def _width(key: Widget) -> int:
    if not isinstance(key, FooterKey):
        return 0
    edge = 2 if key.has_class("-command-palette") else 0
    return cell_len(key.key_display) + cell_len(key.description) + _BLANKS + edge
