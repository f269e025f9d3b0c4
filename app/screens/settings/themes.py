"""Themes: the names under which the interface's themes are known, and the one of our own."""

from __future__ import annotations

from collections.abc import Mapping

from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from app.settings.settings import SettingsError
from widgets.palette import MIN_CONTRAST, contrast, faint, legible

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
    least = 1.02 * float(variables.get("least-contrast", MIN_CONTRAST))
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
