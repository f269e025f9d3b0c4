"""Every theme shows all text so that it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.segment import Segment
from textual import constants
from textual.color import Color

from app.screens.settings.themes import CONTRAST, LEAST_CONTRAST, NAMES, find_theme
from tests.app.screens.stage import Stage, staged
from widgets.palette import MIN_CONTRAST, contrast

UNDER_CURSOR = "A"  # of "Ask…", on the cursor, which Textual paints half through
REPLY = """\
<think>So.</think>Some `code` and **bold**.

```python
# a comment
@decorator
def f(x: int = 1.5) -> str:
    return not print("text")
```
"""
PAINTED = [name for name in NAMES if not name.startswith("ansi")]
# The chosen row of the last one has the least contrast of all.
SOME = ["dark", "light", CONTRAST.name, "solarized-light", "atom-one-dark"]


@pytest.mark.parametrize("depth", ["truecolor", "256"])
async def test_all_text_on_the_screen_is_legible(
    depth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "COLOR_SYSTEM", depth)
    async with staged(tmp_path, {"one": REPLY}, size=(160, 48)) as stage:
        await stage.send("one")
        await stage.turn(2)
        assert await faint_in(stage, SOME) == {}
        await stage.finish()
        stage.deck.chat.transcript.go_to(stage.sessions.current.chat.messages[-1].id, ["bold"])
        assert await faint_in(stage, PAINTED) == {}


@pytest.mark.parametrize("depth", ["truecolor", "256"])
async def test_all_text_of_a_dialog_is_legible(
    depth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "COLOR_SYSTEM", depth)
    async with staged(tmp_path) as stage:
        for keys in (("f1",), ("f3",), ("f9", "down"), ("f2", "p")):
            await stage.press(*keys)
            assert stage.app.screen is not stage.deck, keys
            assert await faint_in(stage, SOME) == {}, keys
            await stage.press("escape")


async def faint_in(stage: Stage, themes: list[str]) -> dict[str, list[str]]:
    """The text on the screen that has too little contrast, by the theme in which it has."""
    found = {}
    for name in themes:
        stage.app.theme = find_theme(name)
        await stage.screen()
        if texts := faint(stage, LEAST_CONTRAST if name == CONTRAST.name else MIN_CONTRAST):
            found[name] = texts
    return found


def faint(stage: Stage, least: float) -> list[str]:
    """The text on the screen that has less contrast."""
    return [
        f"{segment.text!r} {ratio:.1f} {segment.style}"
        for segment, ratio in ratios(stage)
        if ratio < least and has_text(segment)
    ]


def has_text(segment: Segment) -> bool:
    """Whether a segment is text: frames and bars are not."""
    return any(map(str.isalnum, segment.text)) and segment.text != UNDER_CURSOR


async def test_no_colour_leaves_the_background_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with staged(tmp_path, {"one": "Some `code` and **bold**."}) as stage:
        await stage.send("one")
        await stage.press("ctrl+p")
        styles = [s for strip in shown(stage) for s in (x.style for x in strip) if s is not None]
        grounds = {style.bgcolor and style.bgcolor.name for style in styles}
        assert {style.color and style.color.name for style in styles} | grounds <= {None, "default"}


def shown(stage: Stage) -> Iterator[list[Segment]]:
    """The lines on the screen as the terminal gets them."""
    for strip in stage.app.screen._compositor.render_strips():
        yield list(strip)


def ratios(stage: Stage) -> Iterator[tuple[Segment, float]]:
    """All that is on the screen, or in the dialog that is over it, with its contrast."""
    screen, depth = stage.app.screen, stage.app.console._color_system
    assert depth is not None
    region = screen.region if screen is stage.deck else screen.children[0].region
    for strip in screen._compositor.render_strips()[region.y : region.bottom]:
        for segment in strip.crop(region.x, region.right):
            style = segment.style
            if segment.text.strip() and style is not None:
                assert style.color is not None
                assert style.bgcolor is not None
                painted = (one.downgrade(depth) for one in (style.color, style.bgcolor))
                colors = [Color.from_rich_color(one) for one in painted]
                yield segment, contrast(*colors)
