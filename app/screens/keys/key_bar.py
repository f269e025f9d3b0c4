"""KeyBar: the keys that act now, as many as fit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.screen import Screen

from widgets.glyphs import Glyphs
from widgets.line import Line
from widgets.line_view import LineView

_PALETTE, _HELP = "app.palette", "app.help"
# The ids of the keys that are left out, the first one first. Keys that are not named here are left
# out after these, from the right.
_DROPPED = ("chat.regenerate", "chat.find", "chat.new", "table.reverse", _PALETTE, "app.quit")
_BLANKS = 3  # cells around a key and its label


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key that acts.

    Attributes:
        name: as Textual has it.
        sign: as a person reads it.
        words: its label.
        more: the same, in a sentence.
        id: the name by which the user changes the key; empty if it has none.
        enabled: whether it can act just now.
    """

    name: str
    sign: str
    words: str
    more: str
    id: str
    enabled: bool

    @property
    def width(self) -> int:
        return cell_len(self.sign) + cell_len(self.words) + _BLANKS

    @property
    def rank(self) -> int:
        """Its place in the order in which keys are left out."""
        return _DROPPED.index(self.id) if self.id in _DROPPED else len(_DROPPED)


class KeyBar(LineView):
    """A line of keys and their labels; a click on one presses it. The palette's is at the right.

    Textual's footer makes a widget for each key whenever the bindings change, which takes 40 ms,
    and is painted after everything else at the start.
    """

    DEFAULT_CSS = """
    KeyBar {
        dock: bottom;
        height: 1;
        color: $footer-description-foreground;
        & > .key-bar--key { color: $footer-key-foreground; text-style: bold; }
    }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key"}

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__(glyphs)
        self._acting: list[ShownKey] | None = None

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._others_act)

    def on_unmount(self) -> None:
        self.screen.bindings_updated_signal.unsubscribe(self)

    def visible_keys(self) -> list[ShownKey]:
        """The keys that fit, in their order."""
        if self._acting is None:
            self._acting = self._find()
        keys = list(self._acting)
        ranked = sorted(keys, key=lambda key: key.rank, reverse=True)
        while ranked and sum(key.width for key in keys) > self.size.width:
            keys.remove(ranked.pop())
        return keys

    def draw(self, width: int, height: int) -> list[Line]:
        line, does = self.line(width), self.rich_style
        sign = self.get_component_rich_style("key-bar--key")
        for key, (start, _) in self._spans():
            dim = Style(dim=not key.enabled)
            line.pad(does, until=width - start)
            line.add(f" {key.sign} ", sign + dim).add(f"{key.words} ", does + dim)
        return [line.pad(does)]

    def on_mouse_down(self, event: events.MouseDown) -> None:
        key = self._key_at(event.x)
        if key is None:
            return
        if key.enabled:
            self.app.simulate_key(key.name)
        else:
            self.app.bell()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        key = self._key_at(event.x)
        self.tooltip = key.more if key else None

    def _key_at(self, x: int) -> ShownKey | None:
        return next((key for key, (start, end) in self._spans() if start <= x < end), None)

    def _spans(self) -> list[tuple[ShownKey, tuple[int, int]]]:
        """The place of each key: its first cell, and the cell after its last."""
        keys = self.visible_keys()
        ends = accumulate((key.width for key in keys), initial=0)
        spans = list(zip(keys, pairwise(ends), strict=True))
        if keys and keys[-1].id == _PALETTE:
            spans[-1] = keys[-1], (self.size.width - keys[-1].width, self.size.width)
        return spans

    def _others_act(self, screen: Screen[object]) -> None:
        # While the terminal does not have the focus, no widget has it; the keys are still the same.
        if screen is self.screen and self.app.app_focus:
            self._acting = self._find()
            self.redraw()

    def _find(self) -> list[ShownKey]:
        """The enabled keys, one for each action: help's first, where a new user looks, and the
        palette's last. Below a dialog, which lists its own, only those of the application."""
        found: dict[str, ShownKey] = {}
        for active in self.screen.active_bindings.values():
            if not self.screen.is_active and active.node is not self.app:
                continue
            binding = active.binding
            action, name = binding.action, binding.id or ""
            if (binding.show or name == _PALETTE) and action not in found:
                sign = self.app.get_key_display(binding)
                more = active.tooltip or binding.description
                found[action] = ShownKey(
                    binding.key, sign, binding.description, more, name, active.enabled
                )
        return sorted(found.values(), key=lambda key: (key.id == _PALETTE, key.id != _HELP))
