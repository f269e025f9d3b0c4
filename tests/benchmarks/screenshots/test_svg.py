"""The parts of a picture that remain."""

from __future__ import annotations

from benchmarks.screenshots.svg import small


def rect(fill: str, x: float, width: float, y: float = 1.5) -> str:
    return (
        f'<rect fill="{fill}" x="{x:g}" y="{y}" width="{width:g}" height="24.65"'
        ' shape-rendering="crispEdges"/>'
    )


def test_neighbours_of_one_colour_are_one_rectangle() -> None:
    svg = (
        "<style>.terminal-123-r1 { fill: red }</style>"
        + rect("#111111", 0, 12.2)
        + rect("#111111", 12.2, 24.4)
        + rect("#222222", 36.6, 12.2)
        + rect("#111111", 48.8, 12.2)
        + rect("#111111", 0, 12.2, y=25.9)
        + '<clipPath id="terminal-123-line-0"><rect x="0"/></clipPath>'
        + '<text class="terminal-123-r1" clip-path="url(#terminal-123-line-0)">a&#160;b</text>'
    )
    assert small(svg) == (
        "<style>.tr1 { fill: red }rect { shape-rendering: crispEdges }</style>"
        '<rect fill="#111111" x="0" y="1.5" width="36.6" height="24.65"/>'
        '<rect fill="#222222" x="36.6" y="1.5" width="12.2" height="24.65"/>'
        '<rect fill="#111111" x="48.8" y="1.5" width="12.2" height="24.65"/>'
        '<rect fill="#111111" x="0" y="25.9" width="12.2" height="24.65"/>'
        '<text class="tr1">a\N{NO-BREAK SPACE}b</text>'
    )
