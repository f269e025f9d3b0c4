from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
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


def test_labels_of_svg_stay_in_the_frame_and_apart_and_the_legend_outside(tmp_path: Path) -> None:
    lines = tuple(Line(f"p{i}", [1, 8], [1, 9], ((8, 9, f"knee, goodput {i}"),)) for i in range(3))
    to_svg(Chart("C", "x", "y", lines, points=True), tmp_path / "c.svg")
    root = ET.parse(tmp_path / "c.svg").getroot()
    (frame,) = (node for node in root.iter() if node.get("id") == "patch_2")
    edges = [float(n) for n in re.findall(r"[\d.]+", frame[0].get("d", ""))]
    left, right, top, bottom = min(edges[::2]), max(edges[::2]), min(edges[1::2]), max(edges[1::2])
    texts = {"".join(n.itertext()).strip(): n for n in root.iter() if n.tag.endswith("text")}

    def place(text: str) -> tuple[float, float]:
        node = texts[text]
        where = node.get("transform") or ""
        found = re.search(r"translate\(([\d.]+)[ ,]+([\d.]+)\)", where)
        x, y = (found[1], found[2]) if found else (node.get("x"), node.get("y"))
        assert x is not None
        assert y is not None
        return float(x), float(y)

    heights = []
    for line in lines:
        x, y = place(line.marked[0][2])
        assert left < x <= right
        assert top < y < bottom
        heights.append(y)
        assert place(line.label)[1] > bottom
    assert min(b - a for a, b in pairwise(sorted(heights))) > 10


def test_a_distribution_is_drawn_as_steps(tmp_path: Path) -> None:
    line = Line("a", [1.0, 2.0], [0.5, 1.0])
    to_svg(Chart("C", "x", "y", (line,), steps=True), tmp_path / "c.svg")
    to_svg(Chart("C", "x", "y", (line,)), tmp_path / "d.svg")

    def points(name: str) -> int:
        nodes = [n for n in ET.parse(tmp_path / name).getroot().iter() if "clip-path" in n.attrib]
        return max(
            n.get("d", "").count("L")
            for n in nodes
            if "1f77b4" in n.get("style", "") or "0072b2" in n.get("style", "")
        )

    assert (points("c.svg"), points("d.svg")) == (2, 1)


def test_a_distribution_in_the_terminal_has_no_slope() -> None:
    chart = Chart("C", "x", "y", (Line("a", [1.0, 9.0], [0.0, 1.0]),), steps=True)
    rows = to_terminal(chart, width=40, height=16, colour=False).splitlines()
    assert sum(row.count("•") > 10 for row in rows) == 1
    assert sum(row.count("•") == 1 for row in rows) >= 10


def test_a_linear_axis_has_rounded_figures() -> None:
    chart = Chart("C", "x", "y", (Line("a", [0.0371, 7.313], [3.0, 913.7]),))
    text = to_terminal(chart, width=60, height=16, colour=False)
    assert text.splitlines()[-2].split() == ["2", "4", "6"]
    assert "800┤" in text


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
