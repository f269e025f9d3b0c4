"""Themes: the names under which the interface's themes are known, and the one of our own."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from app.settings.settings import SettingsError

# WCAG 2.2, success criterion 1.4.6 (AAA). Colours of chats and marks are held to it by the views,
# which read the theme's variable; the others are chosen for it.
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
        "text": "#FFFFFF",
        "text-muted": "#D0D0D0",
        "text-disabled": "#B0B0B0",
        "text-primary": "#5CC8FF",
        "text-secondary": "#FFFFFF",
        "text-accent": "#FFD75F",
        "text-warning": "#FFD75F",
        "text-error": "#FF9E9E",
        "text-success": "#6CE5A0",
        "foreground-muted": "#D0D0D0",
        "foreground-disabled": "#B0B0B0",
        "footer-key-foreground": "#FFD75F",
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

# What batchdeck calls some of them, so that nobody has to know Textual's names.
SHORT = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}
# Those that settings may name, the first of them first.
NAMES = (
    *("dark", "light", CONTRAST.name, "ansi"),
    *sorted(BUILTIN_THEMES.keys() - SHORT.values()),
)


def find_theme(name: str | None) -> str:
    """What Textual calls the theme of this name; None is the default one.

    Raises:
        SettingsError: there is no such theme.
    """
    own = SHORT.get(name or "dark", name or "")
    if own != CONTRAST.name and own not in BUILTIN_THEMES:
        raise SettingsError(f"theme is {name!r}; allowed are {', '.join(NAMES)}")
    return own
