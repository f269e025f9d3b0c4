from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from app.bench.plots import Chart, Line, cumulative, to_svg, to_terminal, wants_colour

RATE = Chart(
    "Throughput against rate",
    "req/s",
    "tok/s",
    (
        Line("stall_free", [1, 2, 4, 8], [100, 200, 390, 400], ((4, 390, "knee"),)),
        Line("static", [0, 1, 2, 4], [5, 100, 180, 190]),
    ),
    log_x=True,
    log_y=True,
    points=True,
)


def test_the_empirical_distribution() -> None:
    assert cumulative([3.0, 1.0, 2.0, 2.0]) == ([1.0, 2.0, 2.0, 3.0], [0.25, 0.5, 0.75, 1.0])
    assert cumulative([]) == ([], [])
    values, shares = cumulative(range(10_000), most=11)
    assert len(values) == 11
    assert (values[0], values[-1], shares[-1]) == (0, 9_999, 1.0)
    assert all(share == (value + 1) / 10_000 for value, share in zip(values, shares, strict=True))


def test_lines_are_told_apart_without_colour() -> None:
    text = to_terminal(RATE, width=60, height=16, colour=False)
    assert "\x1b" not in text
    rows = text.splitlines()
    assert len(rows) == 17
    assert max(map(len, rows)) <= 60
    assert rows[0].strip() == RATE.title
    assert "knee" in text
    assert rows[-1] == "• stall_free   x static"
    assert any("•" in row for row in rows[1:-1])
    assert any("x" in row for row in rows[1:-2])


def test_a_logarithmic_axis_has_round_ticks_and_no_point_at_0() -> None:
    text = to_terminal(RATE, width=60, height=16, colour=False)
    assert text.splitlines()[-3].split() == ["1", "2", "5"]
    assert "100┤" in text


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
    coloured = to_terminal(RATE, width=60, height=16, colour=True)
    assert "\x1b[38;2;0;114;178m" in coloured  # Okabe-Ito's blue


@pytest.mark.parametrize(
    "line", [Line("none", [], []), Line("one", [3.0], [4.0]), Line("zeros", [1, 2], [0, 0])]
)
def test_few_points_are_no_trouble(line: Line, tmp_path: Path) -> None:
    for log in (False, True):
        chart = Chart("Few", "x", "y", (line,), log_x=log, log_y=log)
        assert "Few" in to_terminal(chart, width=40, height=10, colour=False)
        to_svg(chart, tmp_path / "few.svg")


def test_svg_is_the_same_for_the_same_chart_and_keeps_its_text(tmp_path: Path) -> None:
    to_svg(RATE, tmp_path / "a.svg")
    to_svg(RATE, tmp_path / "b.svg")
    data = (tmp_path / "a.svg").read_bytes()
    assert data == (tmp_path / "b.svg").read_bytes()
    root = ET.fromstring(data)
    texts = {"".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("text")}
    assert {RATE.title, "req/s", "tok/s", "stall_free", "static", "knee"} <= texts
    assert {"1", "2", "5", "100"} <= texts  # the ticks of the logarithmic axes
    styles = " ".join(node.get("style", "") for node in root.iter())
    assert "stroke: #0072b2" in styles
    assert "stroke: #e69f00" in styles
    assert "stroke-dasharray" in styles
    assert b"dc:date" not in data
