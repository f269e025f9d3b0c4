"""Rates: request rates per second, stated as a range or one by one."""

from __future__ import annotations

import math
from itertools import pairwise

from app.settings.settings import SettingsError

MOST_RATES = 100


def parse_rates(text: str) -> list[float]:
    """Parse rising rates, in requests a second. `LOW:HIGH:xK` multiplies by K, `LOW:HIGH:+K` adds
    K, and commas separate single rates.

    Raises:
        SettingsError: the text has another form, a rate is not above 0 or not finite, the rates do
            not rise, or there are more than `MOST_RATES`.
    """
    allowed = "it must be LOW:HIGH:xK, LOW:HIGH:+K or rates separated by commas, above 0 and rising"
    wrong = SettingsError(f"--rate: it is {text!r}; {allowed}, at most {MOST_RATES} of them")
    parts = text.split(":")
    try:
        if len(parts) == 1:
            rates = [float(part) for part in text.split(",")]
        else:
            low, high, how = float(parts[0]), float(parts[1]), parts[2]
            by = float(how[1:])
            grows = (how[0] == "x" and by > 1) or (how[0] == "+" and by > 0)
            if len(parts) != 3 or not grows or not low > 0:
                raise wrong
            rates = []
            # A sum of small steps may miss the last rate by a rounding error.
            while (rate := low * by ** len(rates) if how[0] == "x" else low + by * len(rates)) <= (
                high * (1 + 1e-9)
            ) and len(rates) <= MOST_RATES:
                rates.append(rate)
    except (ValueError, IndexError, OverflowError):
        raise wrong from None
    rising = all(low < high for low, high in pairwise(rates))
    if not 1 <= len(rates) <= MOST_RATES or not rising or not 0 < rates[0] <= rates[-1] < math.inf:
        raise wrong
    return rates
