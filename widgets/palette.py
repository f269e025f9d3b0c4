"""Palette: colours by meaning, legible on their background."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color as RichColor
from rich.style import Style
from textual.color import BLACK, WHITE, Color

from widgets.chat_number import ChatNumber
from widgets.glyphs import Mark

# The colours of Okabe and Ito, "Color Universal Design" (2008), are distinguishable with any common
# colour blindness.
ORANGE = Color.parse("#E69F00")
SKY = Color.parse("#56B4E9")
GREEN = Color.parse("#009E73")
YELLOW = Color.parse("#F0E442")
BLUE = Color.parse("#0072B2")
VERMILLION = Color.parse("#D55E00")
PURPLE = Color.parse("#CC79A7")

# The nearest of a terminal's own colours for each colour, for themes that only use those.
_ANSI = {
    ORANGE: "yellow",
    SKY: "cyan",
    GREEN: "green",
    YELLOW: "bright_yellow",
    BLUE: "blue",
    VERMILLION: "red",
    PURPLE: "magenta",
}

MIN_CONTRAST = 4.5  # WCAG 2.2, success criterion 1.4.3


@dataclass(frozen=True, slots=True)
class Palette:
    """Styles by meaning, each complete with its background.

    Attributes:
        muted: for labels.
        frame: for frames and rulers, which carry no text.
        strong: for the values that a reader looks for first.
        good, warn, bad: for values below the first threshold, above it, and above the second.
        cursor: added to the styles of the row with the cursor.
        owners: the colours of chats, which repeat. 6 colours and 35 letters have no common factor,
            so letter and colour together repeat only after 210 chats of the user. Chats of others
            have 26 letters, and repeat after 78.
    """

    text: Style
    muted: Style
    strong: Style
    good: Style
    warn: Style
    bad: Style
    prefill: Style
    decode: Style
    tick: Style
    shared: Style
    pinned: Style
    cached: Style
    frame: Style
    focused: Style
    cursor: Style
    marks: Mapping[Mark, Style]
    owners: tuple[Style, ...]

    def owner(self, number: ChatNumber) -> Style:
        """The style of a chat."""
        return self.owners[(number.value - 1) % len(self.owners)]

    @staticmethod
    @lru_cache(maxsize=16)
    def on(base: Style, ansi: bool, mono: bool, least: float = MIN_CONTRAST) -> Palette:
        """The palette on `base`, which provides foreground and background.

        Args:
            ansi: whether to use the terminal's own sixteen colours.
            mono: whether to use only the colours of `base`. Bad values are then underlined.
            least: the minimum contrast of text with the background, from 1 to 21.
        """
        back = BLACK if base.bgcolor is None or ansi else Color.from_rich_color(base.bgcolor)
        fore = WHITE if base.color is None or ansi else Color.from_rich_color(base.color)

        def rich(color: Color) -> RichColor:
            return RichColor.parse(_ANSI[color]) if ansi else legible(color, back, least).rich_color

        def colored(color: Color) -> Style:
            return base if mono else base + Style(color=rich(color))

        muted = base + (
            Style(dim=True) if ansi else Style(color=faint(fore, back, least).rich_color)
        )
        # Rulers and frames carry no text, and nine of them must not distract from it.
        quiet = not ansi and least <= MIN_CONTRAST
        ruler = base + Style(color=back.blend(fore, 0.3).rich_color) if quiet else muted
        strong = base + Style(bold=True)
        bad = colored(VERMILLION) + Style(bold=True, underline=mono)
        shade = Style(bgcolor=back.blend(fore, 0.16).rich_color, bold=True)
        reverse = Style(reverse=True)
        return Palette(
            text=base,
            muted=muted,
            strong=strong,
            good=colored(GREEN),
            warn=colored(ORANGE) + Style(bold=mono),
            bad=bad,
            prefill=colored(ORANGE),
            decode=colored(SKY),
            tick=colored(YELLOW),
            shared=strong,
            pinned=colored(BLUE),
            cached=muted,
            frame=ruler,
            focused=colored(SKY),
            cursor=reverse if ansi or mono else shade,
            marks={
                Mark.DECODE: colored(SKY),
                Mark.PREFILL: colored(ORANGE),
                Mark.QUEUED: colored(YELLOW),
                Mark.PREEMPTED: colored(PURPLE),
                Mark.PAUSED: colored(YELLOW),
                Mark.DONE: colored(GREEN),
                Mark.CUT: colored(YELLOW),
                Mark.STOPPED: muted,
                Mark.FAILED: bad,
                Mark.IDLE: muted,
            },
            owners=tuple(colored(c) for c in (SKY, ORANGE, GREEN, YELLOW, PURPLE, VERMILLION)),
        )


def least_contrast(variables: Mapping[str, str]) -> float:
    """The least contrast of text with its background in a theme, by its variables."""
    return float(variables.get("least-contrast", MIN_CONTRAST))


def contrast(one: Color, other: Color) -> float:
    """The contrast ratio of two colours, from 1 to 21 (WCAG 2.2, "contrast ratio")."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def legible(color: Color, background: Color, least: float = MIN_CONTRAST) -> Color:
    """`color`, moved towards black or white until it has the `least` contrast on `background`."""
    end = WHITE if _luminance(background) < 0.18 else BLACK
    for step in range(20):
        moved = color.blend(end, step / 20)
        if contrast(moved, background) >= least:
            return moved
    return end


def faint(color: Color, background: Color, least: float = MIN_CONTRAST) -> Color:
    """`color`, moved towards `background` as far as it stays legible."""
    for step in range(9, 0, -1):
        sunk = color.blend(background, step / 20)
        if contrast(sunk, background) >= least:
            return sunk
    return color


def _luminance(color: Color) -> float:
    """The relative luminance of an sRGB colour (WCAG 2.2)."""

    def linear(channel: int) -> float:
        part = channel / 255
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(color.r) + 0.7152 * linear(color.g) + 0.0722 * linear(color.b)
