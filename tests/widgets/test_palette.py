from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import pytest
from rich.color import ColorType
from rich.style import Style
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from widgets.chat_number import ChatNumber
from widgets.palette import MIN_CONTRAST, Palette, contrast

THEMES = [theme for theme in BUILTIN_THEMES.values() if not theme.ansi]


def base_of(theme: Theme) -> Style:
    colors = theme.to_color_system().generate()
    return Style(
        color=Color.parse(colors["foreground"]).rich_color,
        bgcolor=Color.parse(colors["background"]).rich_color,
    )


def styles(palette: Palette) -> Iterator[Style]:
    yield from palette.marks.values()
    yield from palette.owners
    for field in fields(palette):
        value = getattr(palette, field.name)
        if isinstance(value, Style) and field.name not in ("cursor", "frame"):
            yield value


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_all_text_is_legible_on_every_theme(theme: Theme) -> None:
    for style in styles(Palette.on(base_of(theme), False, False)):
        assert style.color is not None
        assert style.bgcolor is not None
        colors = Color.from_rich_color(style.color), Color.from_rich_color(style.bgcolor)
        assert contrast(*colors) >= MIN_CONTRAST


def test_contrast_is_that_of_wcag() -> None:
    assert contrast(Color.parse("#000"), Color.parse("#fff")) == pytest.approx(21)
    assert contrast(Color.parse("#777"), Color.parse("#fff")) == pytest.approx(4.48, abs=0.005)


def test_ansi_themes_keep_to_the_terminals_colours() -> None:
    base = Style(color="default", bgcolor="default")
    for style in styles(Palette.on(base, True, False)):
        assert style.color is not None
        assert style.color.type in (ColorType.STANDARD, ColorType.DEFAULT)


def test_without_colour_there_is_none_and_bad_is_underlined() -> None:
    base = base_of(BUILTIN_THEMES["textual-dark"])
    palette = Palette.on(base, False, True)
    for style in styles(palette):
        assert style.color in (base.color, palette.muted.color)
    assert palette.bad.underline
    assert palette.warn.bold


def test_letter_and_colour_together_are_one_chats() -> None:
    palette = Palette.on(base_of(BUILTIN_THEMES["textual-dark"]), False, False)
    numbers = [ChatNumber(n) for n in range(1, 211)]
    numbers += [ChatNumber(n, theirs=True) for n in range(1, 79)]
    looks = {(number.letter, palette.owner(number)) for number in numbers}
    assert len(looks) == 210 + 78
