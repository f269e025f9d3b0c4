"""Figures: numbers and settings as short text. A dash means unknown.

These rules hold for every quantity that people read, in panels, tables, notes and after `tui ask`:

- times have their unit beside them and two or three digits, also 2.0ms: ms below a second, s below
  a minute, then minutes, hours and days (`duration`); the age of a state, and the length of a time
  window, is in whole seconds (`lasting`);
- counts of tokens, blocks and requests are whole, with commas, if they fit (`count`), else of two
  or three digits with k, M, G (`compact`); a rate is such a count and "tok/s";
- bytes are in KiB, MiB, GiB (`size`), shares in percent (`percent`, or `fine_percent` if the last
  percent counts).

Output for programs (--json, MQTT, the rows of `tui bench`) has one unit throughout, named beside
it.
"""

from __future__ import annotations

import math
import time
from datetime import date, datetime

from engine.api.knobs import KnobChange

UNKNOWN = "–"


def count(number: int | None) -> str:
    """A whole number with commas: 1284 becomes 1,284."""
    return UNKNOWN if number is None else f"{number:,}"


def counted(number: int, one: str) -> str:
    """A count with its noun: 1 chat, 1,284 chats; `one` is the singular."""
    return f"{count(number)} {one}" if number == 1 else f"{count(number)} {one}s"


def compact(number: float | None) -> str:
    """A number in at most four characters, if it is below 10^12: 47, 9.8k, 112k, 1.3M."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    if number < 9.95:
        return f"{number:.1f}".removesuffix(".0")
    if number < 999.5:
        return f"{number:.0f}"
    for unit in "kMG":
        number /= 1000
        if number < 9.95:
            return f"{number:.1f}{unit}"
        if number < 999.5:
            return f"{number:.0f}{unit}"
    return f"{number / 1000:.0f}T"


def duration(seconds: float | None) -> str:
    """A time in at most five characters: 0.4ms, 2.0ms, 21ms, 184ms, 1.23s, 13.8s, 3m04s, 12m,
    2h14m. Its number of decimals depends on its size alone, so that columns of them are uniform."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f}ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 59.95:
        return f"{seconds:.2f}s" if seconds < 9.995 else f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 3600:
        seconds = whole % 60 if whole < 600 else 0
        return f"{whole // 60}m" + (f"{seconds:02d}s" if seconds else "")
    hours = whole // 3600
    if hours < 10:
        return f"{hours}h{whole // 60 % 60:02d}m"
    return f"{hours}h" if hours < 100 else f"{hours // 24}d"


def lasting(seconds: float | None) -> str:
    """The age of a state, in whole seconds below a minute: 0s, 54s, 3m04s. It is read while it
    grows, and fractions of a second would never stand still."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{int(seconds)}s" if seconds < 60 else duration(int(seconds))


def percent(share: float | None) -> str:
    """A share in percent: 0.71 becomes 71%. Small but positive shares become <1%, and nearly
    complete ones never become 100%."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    if 0 < share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return "99%"
    return f"{share * 100:.0f}%"


def fine_percent(share: float) -> str:
    """A share whose last percent counts, with a decimal: 98.9%. Nearly complete ones never become
    100%."""
    tenths = min(round(share * 1000), 999) if share < 1 else 1000
    return f"{tenths / 10:.1f}".removesuffix(".0") + "%"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def _unit(number: float) -> tuple[float, str]:
    scale, unit = 1.0, _UNITS[0]
    for larger in _UNITS[1:]:
        if number < scale * 999.5:
            break
        scale, unit = scale * 1024, larger
    return scale, unit


def _decimals(value: float) -> int:
    return 0 if value >= 99.95 or f"{value:.1f}".endswith(".0") else 1


def size(number: float | None) -> str:
    """A number of bytes: 612 MiB, 31.2 GiB."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    scale, unit = _unit(number)
    value = number / scale
    return f"{value:.{_decimals(value)}f} {unit}"


def size_of(part: float | None, whole: float | None) -> str:
    """Two numbers of bytes, a part and the whole, in one unit: 117/381 MiB, 3.1/15 GiB. The part
    has a decimal if the whole has one: 6.0/23.5 GiB."""
    if part is None or whole is None or not math.isfinite(part + whole):
        return UNKNOWN
    scale, unit = _unit(whole)
    part, whole = part / scale, whole / scale
    of_whole = _decimals(whole)
    return f"{part:.{max(_decimals(part), of_whole)}f}/{whole:.{of_whole}f} {unit}"


def time_of_day(seconds: float) -> str:
    """A time in seconds since the epoch as local time: 14:02:11."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def day_and_time(seconds: float, today: date) -> str:
    """A time in seconds since the epoch as local time, with its day if that is not today: 14:02, 12
    Mar 14:02, 12 Mar 2024 14:02."""
    moment = datetime.fromtimestamp(seconds)
    if moment.date() == today:
        return f"{moment:%H:%M}"
    year = "" if moment.year == today.year else f" {moment.year}"
    return f"{moment.day} {moment:%b}{year} {moment:%H:%M}"


def setting(value: object) -> str:
    """A knob's value as text: 512, 0.01, true, stall_free."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def change_text(change: KnobChange) -> str:
    """A change of knobs as text: max_num_seqs 8→16, paused false→true. A dash is an empty text."""
    return ", ".join(
        f"{name} {setting(before) or UNKNOWN}→{setting(after) or UNKNOWN}"
        for name, (before, after) in change.changed.items()
    )
