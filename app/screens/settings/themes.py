"""Themes: the names under which the interface's themes are known, and the one of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from rich.color import Color as RichColor
from rich.color import ColorSystem, ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from app.settings.settings import SettingsError
from widgets.palette import contrast, faint, least_contrast, legible

# WCAG 2.2, success criterion 1.4.6 (AAA). Views read it as a variable of the theme.
LEAST_CONTRAST = 7.0

CONTRAST = Theme(
    name="contrast",
    dark=True,
    foreground="#FFFFFF",
    background="#000000",
    surface="#000000",
    panel="#1A1A1A",
    boost="#1A1A1A",
    primary="#5CC8FF",
    secondary="#FFFFFF",
    accent="#FFD75F",
    warning="#FFD75F",
    error="#FF9E9E",
    success="#6CE5A0",
    text_alpha=1.0,
    variables={
        "least-contrast": str(LEAST_CONTRAST),
        "block-cursor-foreground": "#000000",
        "block-cursor-background": "#FFD75F",
        "block-cursor-blurred-foreground": "#FFFFFF",
        "block-cursor-blurred-background": "#404040",
        "input-selection-background": "#FFD75F",
        "input-selection-foreground": "#000000",
        "screen-selection-background": "#FFD75F",
        "screen-selection-foreground": "#000000",
        "border": "#5CC8FF",
        "border-blurred": "#D0D0D0",
        "scrollbar": "#D0D0D0",
    },
)

# batchdeck's names for some of them, so that users need not know Textual's.
SHORT = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}
# Those that settings may name, the first of them first.
NAMES = (
    *("dark", "light", CONTRAST.name, "ansi"),
    *sorted(BUILTIN_THEMES.keys() - SHORT.values()),
)

# The largest share of the foreground colour in the backgrounds of code, fields and chosen rows, as
# in the style sheets.
SHADE = 0.12
_PLAIN = ("foreground", "footer-foreground", "footer-description-foreground")
_MUTED = ("text-muted", "text-disabled", "foreground-muted", "foreground-disabled")
_COLOURED = (
    *(f"text-{kind}" for kind in ("primary", "secondary", "accent", "warning", "error", "success")),
    "footer-key-foreground",
)


def find_theme(name: str | None) -> str:
    """Textual's name for the theme of this name; None is the default one.

    Raises:
        SettingsError: there is no such theme.
    """
    own = SHORT.get(name or "dark", name or "")
    if own != CONTRAST.name and own not in BUILTIN_THEMES:
        raise SettingsError(f"theme is {name!r}; allowed are {', '.join(NAMES)}")
    return own


def readable(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a theme, with every text colour adjusted until it is legible on every
    background of text. Without this, 20 of Textual's 21 themes with their own colours have text
    below WCAG's 4.5:1.
    """
    changed = dict(variables)
    if "ansi" in variables["background"]:
        return changed
    # A little more, because colours are rounded where they are blended.
    least = 1.02 * least_contrast(variables)
    background = Color.parse(variables["background"])
    fore = legible(Color.parse(variables["foreground"]), background, least)
    # Code, fields and dialogs have shaded backgrounds. Text that is legible on the shade nearest to
    # its own colour is legible on all.
    grounds = [background, Color.parse(variables["surface"])]
    for _ in range(2):  # a shade is blended from the foreground, which it moves
        shades = [ground.blend(fore, SHADE) for ground in grounds]
        shade = min(*grounds, *shades, key=lambda ground: contrast(fore, ground))
        fore = legible(fore, shade, least)
    muted = faint(fore, shade, least).hex
    changed |= {**dict.fromkeys(_PLAIN, fore.hex), **dict.fromkeys(_MUTED, muted)}
    for name in _COLOURED:
        changed[name] = legible(Color.parse(variables[name]), shade, least).hex
    badge = Color.parse(variables["accent-muted"])
    changed["text-accent"] = legible(Color.parse(changed["text-accent"]), badge, least).hex
    return changed


class EightBitColors(LineFilter):
    """Draws with the 240 fixed colours of a terminal that has 256, so that text stays legible.
    Where the nearest of them to the colour of a text has too little contrast with the nearest to
    its background, another one is used: of dark, light, contrast, solarized-light and
    atom-one-dark, four had too faint text without this.

    Args:
        variables: provides those of the theme.
    """

    def __init__(self, variables: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._variables = variables

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        least = least_contrast(self._variables())
        return [
            segment
            if segment.style is None or not any(map(str.isalnum, segment.text))
            else Segment(segment.text, _in_256(segment.style, least), segment.control)
            for segment in segments
        ]


@lru_cache(maxsize=4096)
def _in_256(style: Style, least: float) -> Style:
    """A style of text with colours of which both are among the 240, and legible."""
    fore, back = style.color, style.bgcolor
    if fore is None or back is None or {fore.type, back.type} != {ColorType.TRUECOLOR}:
        return style  # The terminal's own colours are unknown.
    fore, back = (one.downgrade(ColorSystem.EIGHT_BIT) for one in (fore, back))
    wanted, ground = Color.from_rich_color(style.color), Color.from_rich_color(back)
    if contrast(Color.from_rich_color(fore), ground) < least:
        legible = [one for one, color in _fixed() if contrast(color, ground) >= least]
        if legible:
            colors = dict(_fixed())
            fore = min(legible, key=lambda one: _distance(colors[one], wanted))
    return style + Style(color=fore, bgcolor=back)


@cache
def _fixed() -> list[tuple[RichColor, Color]]:
    """The colours that all terminals with 256 share: the cube and the greys."""
    numbers = map(RichColor.from_ansi, range(16, 256))
    return [(one, Color.from_rich_color(one)) for one in numbers]


def _distance(one: Color, other: Color) -> float:
    return sum((a - b) ** 2 for a, b in zip(one.rgb, other.rgb, strict=True))
