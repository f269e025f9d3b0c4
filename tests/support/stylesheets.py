"""Stylesheets of Textual, parsed once for all applications that tests open, not once for each."""

from __future__ import annotations

from functools import lru_cache

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.css.types import CSSLocation

_parse = Stylesheet._parse_rules


def parse_once() -> None:
    Stylesheet._parse_rules = _parse_rules


def _parse_rules(
    sheet: Stylesheet,
    css: str,
    read_from: CSSLocation,
    is_default_rules: bool = False,
    tie_breaker: int = 0,
    scope: str = "",
) -> list[RuleSet]:
    variables = tuple(sheet._variables.items())
    return _parsed(variables, css, read_from, is_default_rules, tie_breaker, scope)


@lru_cache(maxsize=256)  # ten themes or so
def _parsed(variables: tuple[tuple[str, str], ...], *source: object) -> list[RuleSet]:
    return _parse(Stylesheet(variables=dict(variables)), *source)
