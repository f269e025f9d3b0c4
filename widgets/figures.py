"""Figures: numbers and settings as short text. A dash stands for what is not known."""

from __future__ import annotations

import math
import time

from engine.api.knobs import KnobChange

UNKNOWN = "–"


def count(number: int | None) -> str:
    """A whole number with commas: 1284 becomes 1,284."""
    return UNKNOWN if number is None else f"{number:,}"


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


def ms(seconds: float | None) -> str:
    """A time in milliseconds without its unit, for columns: 21.4, 184. Above 99,999 it is given in
    seconds: 120s."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    value = seconds * 1000
    if value < 99.95:
        return f"{value:.1f}"
    return f"{value:.0f}" if value < 99_999.5 else f"{seconds:.0f}s"


def duration(seconds: float | None) -> str:
    """A time with its unit: 21.4ms, 184ms, 1.2s, 3m04s, 2h14m."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 0.9995:
        return f"{ms(seconds)}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole // 60 % 60:02d}m"


def percent(share: float | None) -> str:
    """A share in percent: 0.71 becomes 71%. What is small but not nothing becomes <1%, and what is
    not quite all never becomes 100%."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    if 0 < share < 0.01:
        return "<1%"
    if 0.99 < share < 1:
        return "99%"
    return f"{share * 100:.0f}%"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def _unit(number: float) -> tuple[float, str]:
    scale, unit = 1.0, _UNITS[0]
    for larger in _UNITS[1:]:
        if number < scale * 999.5:
            break
        scale, unit = scale * 1024, larger
    return scale, unit


def _mantissa(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0") if 0 < value < 99.95 else f"{value:.0f}"


def size(number: float | None) -> str:
    """A number of bytes: 612 MiB, 31.2 GiB."""
    if number is None or not math.isfinite(number):
        return UNKNOWN
    scale, unit = _unit(number)
    return f"{_mantissa(number / scale)} {unit}"


def size_of(part: float | None, whole: float | None) -> str:
    """Two numbers of bytes, a part and the whole, in one unit: 117/381 MiB."""
    if part is None or whole is None or not math.isfinite(part + whole):
        return UNKNOWN
    scale, unit = _unit(whole)
    return f"{_mantissa(part / scale)}/{_mantissa(whole / scale)} {unit}"


def time_of_day(seconds: float) -> str:
    """A time in seconds since the epoch as local time: 14:02:11."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def setting(value: object) -> str:
    """A knob's value as text: 512, 0.01, true, stall_free."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def change_text(change: KnobChange) -> str:
    """What a change of knobs did: max_num_seqs 8→16, paused false→true."""
    return ", ".join(
        f"{name} {setting(before)}→{setting(after)}"
        for name, (before, after) in change.changed.items()
    )
