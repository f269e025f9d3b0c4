"""Plots: charts of lines, drawn in a terminal or as SVG."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from app.process.console import writing
from app.process.process import print_text
from app.settings.settings import SettingsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

# plotext and matplotlib are imported when something is drawn: matplotlib takes 0.3 s.

# The colours of Okabe and Ito (2008) without black: they are distinguishable with every kind of
# colour vision. Marks and dashes distinguish the lines without colour.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
_MARKS = ("•", "x", "+", "o", "*", "#", "%", "@")
_SVG_MARKS = ("o", "x", "+", "s", "*", "D", "^", "v")
_DASHES = ("-", "--", "-.", ":")
# Offsets of a label from its point, best first: to the right and up, both in units of 8 typographic
# points.
_OFFSETS = tuple(
    (across, up) for up in (1, -1, 2.5, -2.5, 4, -4, 5.5, -5.5) for across in (1, -1, 0)
)


@dataclass(frozen=True, slots=True)
class Line:
    """One series of a chart.

    Attributes:
        label: the line's name in the legend.
        marked: points with a label, such as the knee of a curve: (x, y, text).
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    marked: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over common axes. On a logarithmic axis, points not above 0 are left out.

    Attributes:
        log_x, log_y: whether the axis is logarithmic.
        points: whether the SVG marks each point of a line.
        steps: whether a line keeps its height until its next point, as an empirical distribution
            does; otherwise straight lines join the points.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    points: bool = False
    steps: bool = False


def cumulative(samples: Sequence[float], most: int = 500) -> tuple[list[float], list[float]]:
    """The empirical distribution: values, and for each the share of samples at or below it.

    Args:
        most: the maximum number of points after thinning.
    """
    ordered, count = sorted(samples), len(samples)
    ranks = sorted({round(i * (count - 1) / (most - 1)) for i in range(most)}) if count else []
    return [ordered[rank] for rank in ranks], [(rank + 1) / count for rank in ranks]


def wants_colour(stream: TextIO) -> bool:
    """Whether output to the stream may have colours: it is a terminal, and `NO_COLOR` is not
    set."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def to_terminal(chart: Chart, *, width: int = 80, height: int = 20, colour: bool) -> str:
    """The chart as text of `height` rows; a chart of several lines has a legend in one more row.

    Args:
        width: in characters.
        height: in rows.
        colour: whether the text has colours.
    """
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.title(chart.title)
    plotext.xlabel(chart.x_label)
    plotext.ylabel(chart.y_label)
    lines = [_drawable(chart, line) for line in chart.lines]
    for number, line in enumerate(lines):
        style = {"marker": _MARKS[number % len(_MARKS)], "color": _rgb(number)}
        if len(line.x) > 1:
            plotext.plot(*(_stairs(line) if chart.steps else (line.x, line.y)), **style)
        else:
            plotext.scatter(line.x, line.y, **style)
    for line in lines:
        for x, y, text in line.marked:
            # At an edge, half of a centred text would be cut off.
            side = {min(line.x): "left", max(line.x): "right"}.get(x, "center")
            plotext.text(text, x, y, alignment=side)
    for axis, log in (("x", chart.log_x), ("y", chart.log_y)):
        values = [value for line in lines for value in getattr(line, axis)]
        if log and values:
            ticks = _log_ticks(min(values), max(values))
            getattr(plotext, f"{axis}scale")("log")
            getattr(plotext, f"{axis}ticks")(ticks, [f"{tick:g}" for tick in ticks])
        elif axis == "y" and values:
            low, high = min(0, *values), max(values) or 1
            plotext.ylim(low, high)
        if not log and values:
            bounds = (low, high) if axis == "y" else (min(values), max(values))
            ticks = _linear_ticks(*bounds)
            getattr(plotext, f"{axis}ticks")(ticks, [f"{tick:,.6g}" for tick in ticks])
    text = plotext.build()
    plotext.clear_figure()
    keys = [
        (f"{_MARKS[n % len(_MARKS)]} {line.label}", _rgb(n)) for n, line in enumerate(chart.lines)
    ]
    if not colour:
        text = plotext.uncolorize(text)
        legend = "   ".join(key for key, _ in keys)
    else:
        legend = "   ".join(plotext.colorize(key, rgb) for key, rgb in keys)
    drawn = "\n".join(row.rstrip() for row in text.splitlines())
    return f"{drawn}\n{legend}" if len(keys) > 1 else drawn


def to_svg(chart: Chart, path: Path) -> None:
    """Write the chart as SVG. The same chart gives the same bytes.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    # Text stays text, so that it can be searched and read aloud.
    with rc_context({"svg.hashsalt": "batchdeck", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.add_subplot()
        labels: list[tuple[float, float, str]] = []
        axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
        lines = [_drawable(chart, line) for line in chart.lines]
        for number, line in enumerate(lines):
            colour = _COLOURS[number % len(_COLOURS)]
            axes.plot(
                line.x,
                line.y,
                label=line.label,
                color=colour,
                drawstyle="steps-post" if chart.steps else "default",
                linestyle=_DASHES[number % len(_DASHES)],
                marker=_SVG_MARKS[number % len(_SVG_MARKS)] if chart.points else "",
                markersize=5,
            )
            for x, y, text in line.marked:
                axes.plot(x, y, marker="o", markersize=11, fillstyle="none", color=colour)
                labels.append((x, y, text))
        for axis, log in (("x", chart.log_x), ("y", chart.log_y)):
            values = [value for line in lines for value in getattr(line, axis)]
            if log and values:
                ticks = _log_ticks(min(values), max(values))
                getattr(axes, f"set_{axis}scale")("log")
                getattr(axes, f"set_{axis}ticks")(ticks, [f"{tick:g}" for tick in ticks])
                getattr(axes, f"{axis}axis").set_minor_locator(NullLocator())
            elif axis == "y":
                axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.grid(True, alpha=0.3)
        if len(chart.lines) > 1:
            figure.legend(loc="outside lower center", ncols=min(3, len(chart.lines)))
        _annotate(figure, axes, labels)
        figure.savefig(path, format="svg", metadata={"Date": None})


def print_charts(charts: Iterable[Chart]) -> None:
    """Draw the charts on standard output, as wide as the terminal, but at most 120 characters."""
    colour = wants_colour(sys.stdout)
    width = min(shutil.get_terminal_size().columns, 120)
    for chart in charts:
        print_text("\n" + to_terminal(chart, width=width, height=18, colour=colour), as_it_is=True)


def check_charts(flag: str, folder: Path) -> None:
    """Check, before anything is measured, that charts can be written.

    Raises:
        SettingsError: the folder can be neither written nor created.
    """
    places = (folder.absolute(), *folder.absolute().parents)
    there = next(path for path in places if os.path.exists(path))
    if not there.is_dir():
        raise SettingsError(f"{flag}: {there} is not a folder; it must be one, or not exist yet")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingsError(f"{flag}: {there} must be writable, but is not")


def write_charts(charts: Mapping[str, Chart], folder: Path) -> None:
    """Write each chart to an SVG file of its name.

    Raises:
        StreamError: a file cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, chart in charts.items():
            to_svg(chart, folder / f"{name}.svg")


def _drawable(chart: Chart, line: Line) -> Line:
    """The line without the points that the axes cannot show."""

    def fits(x: float, y: float) -> bool:
        finite = math.isfinite(x) and math.isfinite(y)
        return finite and (x > 0 or not chart.log_x) and (y > 0 or not chart.log_y)

    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if fits(x, y)]
    marked = tuple(point for point in line.marked if fits(*point[:2]))
    return Line(line.label, [x for x, _ in points], [y for _, y in points], marked)


def _annotate(figure: Figure, axes: Axes, labels: Sequence[tuple[float, float, str]]) -> None:
    """Write labels beside their points, inside the axes and without overlap. A label that fits at
    no offset gets the last one tried."""
    figure.draw_without_rendering()  # the layout is known from here on
    frame = axes.get_window_extent()
    taken: list[Bbox] = []
    for x, y, text in labels:
        label = axes.annotate(text, (x, y), xytext=(0, 0), textcoords="offset points")
        for across, up in _OFFSETS:
            label.set(ha={-1: "right", 0: "center", 1: "left"}[across])
            label.set(va="bottom" if up > 0 else "top")
            label.xyann = (8 * across, 8 * up)
            box = label.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
            inside = inside and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)


def _stairs(line: Line) -> tuple[list[float], list[float]]:
    """The points of a line that keeps its height until its next point."""
    x = [line.x[0], *(value for value in line.x[1:] for _ in range(2))]
    y = [*(value for value in line.y[:-1] for _ in range(2)), line.y[-1]]
    return x, y


def _linear_ticks(low: float, high: float) -> list[float]:
    """Ticks for a linear axis: up to six multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(head * power for head in (1, 2, 5, 10) if head * power * 5 >= high - low)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Ticks for a logarithmic axis: 1, 2 and 5 times each power of ten, or only the powers where
    there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    heads = (1, 2, 5) if len(powers) <= 4 else (1,)
    ticks = [head * 10.0**power for power in powers for head in heads]
    return [tick for tick in ticks if low <= tick <= high] or [low, high]


def _rgb(number: int) -> tuple[int, int, int]:
    colour = _COLOURS[number % len(_COLOURS)]
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue
