"""small: an SVG of Textual's with less in it that is not seen."""

from __future__ import annotations

import re

_RECT = re.compile(
    r'<rect fill="([^"]+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"'
    r' shape-rendering="crispEdges"/>'
)
_RUN = re.compile(rf"(?:{_RECT.pattern})+")
# Edges are given to a tenth.
_NEAR = 0.15


def small(svg: str) -> str:
    """The same picture: short names, no clips of single lines, blanks as they are, and one
    rectangle for neighbours of one colour."""
    svg = re.sub(r"terminal-\d+-", "t", svg)
    svg = re.sub(r'<clipPath id="tline-\d+">.*?</clipPath>\s*', "", svg, flags=re.DOTALL)
    svg = re.sub(r' clip-path="url\(#tline-\d+\)"', "", svg)
    svg = _RUN.sub(lambda run: _merged(run.group()), svg)
    svg = svg.replace("</style>", "rect { shape-rendering: crispEdges }</style>", 1)
    return svg.replace("&#160;", "\N{NO-BREAK SPACE}")


def _merged(run: str) -> str:
    merged: list[tuple[str, float, str, float, str]] = []
    for fill, x, y, width, height in _RECT.findall(run):
        left, right = float(x), float(x) + float(width)
        if merged:
            last_fill, last_left, last_y, last_right, last_height = merged[-1]
            if (fill, y, height) == (last_fill, last_y, last_height) and (
                abs(left - last_right) < _NEAR
            ):
                merged[-1] = (fill, last_left, y, right, height)
                continue
        merged.append((fill, left, y, right, height))
    return "".join(
        f'<rect fill="{fill}" x="{left:g}" y="{y}" width="{right - left:g}" height="{height}"/>'
        for fill, left, y, right, height in merged
    )
