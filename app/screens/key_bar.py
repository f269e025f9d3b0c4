"""KeyBar: the keys that act now, as many as fit."""

from __future__ import annotations

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer

# Textual names this class in its CSS but does not export it. Only it has a key's action.
from textual.widgets._footer import FooterKey

# The actions whose keys are left out, the first one first. Keys that are not named here are left
# out after these, from the right.
_DROPPED = ("regenerate", "find", "new", "reverse", "command_palette", "quit")
_BLANKS = 3  # cells that Textual sets around a key and what it does


class KeyBar(Footer):
    """Textual's footer, which leaves out the least important keys where not all fit. Textual's own
    cuts off what does not fit.

    Textual asks for new keys whenever the focus moves or the chat changes, and most often the same
    ones act then. To make their widgets anew takes 40 ms, and so they stay.
    """

    _shown: tuple[object, ...] = ()

    async def recompose(self) -> None:
        acting = self._acting()
        if acting != self._shown or not self.children:
            self._shown = acting
            await super().recompose()

    def compose(self) -> ComposeResult:
        # Help comes first wherever it is bound: who needs it looks there.
        keys = sorted(super().compose(), key=lambda key: _action(key) != "help")
        ranked = sorted(keys, key=_rank, reverse=True)
        while ranked and sum(map(_width, keys)) > self.app.size.width:
            keys.remove(ranked.pop())
        yield from keys

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self.recompose)

    def _acting(self) -> tuple[object, ...]:
        """All that the keys shown depend on."""
        bindings = self.screen.active_bindings.values()
        return self.app.size.width, *(
            (active.binding, active.enabled, active.tooltip) for active in bindings
        )


def _rank(key: Widget) -> int:
    action = _action(key)
    return _DROPPED.index(action) if action in _DROPPED else len(_DROPPED)


def _action(key: Widget) -> str:
    return key.action.removeprefix("app.") if isinstance(key, FooterKey) else ""


def _width(key: Widget) -> int:
    if not isinstance(key, FooterKey):
        return 0
    edge = 2 if key.has_class("-command-palette") else 0
    return cell_len(key.key_display) + cell_len(key.description) + _BLANKS + edge
