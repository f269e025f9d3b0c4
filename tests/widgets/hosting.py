"""An app that holds nothing but the widget under test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Size
from textual.message import Message
from textual.pilot import Pilot
from textual.widget import Widget

M = TypeVar("M", bound=Message)

_CHARACTERS = {"space": " ", "slash": "/", "minus": "-", "plus": "+", "full_stop": "."}


class Host(App[None]):
    """Shows one widget as large as the terminal.

    Attributes:
        messages: what the widget posted, in order.
    """

    CSS = "Screen > * { width: 100%; height: 100%; }"

    def __init__(self, widget: Widget) -> None:
        super().__init__()
        self.widget = widget
        self.messages: list[Message] = []

    def compose(self) -> ComposeResult:
        yield self.widget

    def sent(self, kind: type[M]) -> list[M]:
        return [message for message in self.messages if isinstance(message, kind)]


@asynccontextmanager
async def hosted(
    widget: Widget, width: int = 80, height: int = 12, *, focus: bool = False
) -> AsyncIterator[tuple[Host, Pilot[None]]]:
    """Run `widget` in a terminal of this size."""
    app = Host(widget)

    def keep(message: Message) -> None:
        own = type(message).__qualname__.startswith(type(widget).__name__)
        if own and message not in app.messages:  # it comes by once for each ancestor
            app.messages.append(message)

    async with app.run_test(size=(width, height), message_hook=keep) as pilot:
        app.set_focus(widget if focus else None)
        await settle(app)
        yield app, pilot


async def settle(app: App[None]) -> None:
    """Let every message be handled. `Pilot.pause` waits for the processor to be idle instead, which
    takes 20 ms and more and, beside other work, has no fixed end.

    What a widget raises meanwhile is raised here: nobody handles the messages of a dead app.
    """
    quiet = 0
    while quiet < 20:
        await _yield_to(app)
        pumps = (app, *app.screen.walk_children(with_self=True))
        quiet = 0 if any(pump.message_queue_size for pump in pumps) else quiet + 1


async def press(app: App[None], *keys: str) -> None:
    """Press keys one after the other, named as in bindings."""
    for key in keys:
        character = key if len(key) == 1 else _CHARACTERS.get(key)
        app.post_message(events.Key(key, character))
        await settle(app)


async def burst(app: App[None], *keys: str) -> None:
    """Press keys faster than they are handled."""
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else _CHARACTERS.get(key)))
    await settle(app)


async def paste(app: App[None], text: str) -> None:
    app.post_message(events.Paste(text))
    await settle(app)


async def resize(app: App[None], widget: Widget, width: int, height: int) -> None:
    """Give the terminal another size and wait until the widget has it."""
    size = Size(width, height)
    app.post_message(events.Resize(size, size))
    while widget.size != size:
        await _yield_to(app)
    await settle(app)


def rows(widget: Widget) -> list[str]:
    """The text on the screen, line by line, without the blanks at the ends."""
    return [widget.render_line(y).text.rstrip() for y in range(widget.size.height)]


# What Textual shows and says can be had of its private parts only: for all tests here.


def screen(app: App[Any]) -> list[str]:
    """The text on the screen, one widget over the other."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def is_grey(app: App[Any]) -> bool:
    """Whether what is on the screen has no colour."""
    styles = [one.style for strip in app.screen._compositor.render_strips() for one in strip]
    colors = [color for style in styles if style for color in (style.color, style.bgcolor)]
    return all(color is None or len(set(color.get_truecolor())) == 1 for color in colors)


async def lay_out(app: App[Any]) -> None:
    """Lay out what has moved, and do what was put off until then, as asking for the keys that act.
    A timer of the screen does so 60 times a second; no test waits."""
    await settle(app)
    while app.screen._layout_required or app.screen._scroll_required or app.screen._callbacks:
        app.screen._on_timer_update()
        await settle(app)


async def _yield_to(app: App[Any]) -> None:
    """Let the app go on for a moment, and raise what it died of."""
    await asyncio.sleep(0)
    if app._exception is not None:
        raise app._exception


def toasts(app: App[Any]) -> list[str]:
    """The notices on the screen, oldest first."""
    return [toast.message for toast in app._notifications]
