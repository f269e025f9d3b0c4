"""GatewayPanel, HttpPanel and MqttPanel: the traffic over a gateway, and its bad messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.cells import cell_len
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from engine.api.glossary import gloss, glosses
from engine.api.telemetry import Distribution
from widgets.figures import compact, count, counted, duration, lasting, time_of_day
from widgets.glyphs import UNICODE, Glyphs
from widgets.harmless import spelt_out
from widgets.line import Line, pieces, shorten, wrap
from widgets.panels.gateway_readings import (
    BadMessage,
    GatewayReadings,
    HttpReadings,
    MqttReadings,
    UserView,
)
from widgets.panels.list_cursor import ListCursor
from widgets.panels.plot import Sparkline
from widgets.panels.scroll_panel import ScrollPanel, list_keys

R = TypeVar("R", bound=GatewayReadings)

_LABEL_WIDTH = 9
_CELL_WIDTH = 14  # a label and a figure of four characters, and a blank
_MAX_CELL_WIDTH = 20
_MIN_PAIR_WIDTH = 26  # the left one of two columns has shorter labels
_TIME_WIDTH = 9
_MIN_TIMED_WIDTH = 36
_CODE_WIDTH = 4
_INDENT = 2
_REASONS = 4
_USERS = 6
_EXCERPT_ROWS = 6
_ROOMY = 24  # rows of a panel that fills the screen
_COUNT_WIDTH = 10


class GatewayPanel(ScrollPanel, Generic[R], can_focus=True):
    """State and figures on top, and below them the bad messages. The one under the cursor is shown
    in full. A large panel also has a sparkline of the traffic, a row for each user, and every bad
    message in full as long as all fit.

    Attributes:
        NAME: the gateway's name.
        OFF: the text without a gateway.
        FIRST_TOKEN: the label of first-token times, which says when they start.
        EXPLAINED: the word that the edge explains while the panel has the focus.
    """

    NAME: ClassVar[str]
    OFF: ClassVar[str]
    FIRST_TOKEN: ClassVar[str]
    EXPLAINED: ClassVar[str]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.readings: R | None = None
        self._cursor = ListCursor[BadMessage](lambda message: message, start=-1)
        self._drawn: list[Line] = []
        self._chosen_rows = range(0)
        self._traffic = {"in/s": Sparkline(), "out/s": Sparkline()}

    def show(self, readings: R | None) -> None:
        """Show the gateway; None if there is none. Each call adds a point to the sparkline of the
        traffic."""
        self.readings = readings
        if readings is not None:
            self._traffic["in/s"].add(readings.received)
            self._traffic["out/s"].add(readings.sent)
        self._cursor.items = readings.bad if readings else ()
        if self.chosen is not None and self._chosen_rows:
            # Newer messages come above the chosen one, which must stay in place while it is read.
            before = self._chosen_rows.start
            self._lay_out(self._inner_width)
            self.scroll(self.first + self._chosen_rows.start - before)
        self.redraw()

    @property
    def chosen(self) -> BadMessage | None:
        """The bad message under the cursor; None while the cursor is above them."""
        return self._cursor.item

    @property
    def num_rows(self) -> int:
        return len(self._drawn)

    def action_step(self, rows: int) -> None:
        """Move through the bad messages. Above the first and below the last one, scroll."""
        if not self._cursor.go_to(self._cursor.place + rows):
            super().action_step(rows)
            return
        self._lay_out(self._inner_width)
        if self.chosen is None:
            self.scroll(0)
        else:
            self.reveal(self._chosen_rows.stop - 1)
            self.reveal(self._chosen_rows.start)
        self.redraw()

    def action_page(self, pages: int) -> None:
        super().action_step(self._rows_of(pages))

    def on_blur(self) -> None:
        # A user who has left the panel and only looks at it wants to see the state on top.
        self._cursor.key = None
        self.scroll(0)
        self.redraw()

    @abstractmethod
    def own_figure(self, readings: R) -> tuple[str, int, bool]:
        """The figure that no other gateway has: its label, its value, and whether that is bad."""

    def notes(self, readings: R) -> Sequence[str]:
        """Texts between the state and the address."""
        return ()

    def title(self) -> str:
        return self.NAME

    def footer(self) -> str:
        if self.chosen is not None:
            return ""
        # The bad messages come last, in one row each.
        below = min(len(self._cursor.items), self.num_rows - self.first - self.page)
        if below > 0:
            return f"{counted(below, 'bad message')} below"
        return gloss(self.EXPLAINED) if self.has_focus and self.readings else ""

    def draw(self, width: int, height: int) -> list[Line]:
        # The rows are laid out before the frame is drawn: its edge shows their number.
        self._lay_out(self._inner_width)
        self.scroll(self.first)
        return super().draw(width, height)

    def body(self, width: int, height: int) -> list[Line]:
        return self._drawn[self.first : self.first + height]

    @property
    def _inner_width(self) -> int:
        return max(self.size.width - (4 if self.framed else 0), 1)

    def _lay_out(self, width: int) -> None:
        readings, palette = self.readings, self.palette
        self._chosen_rows = range(0)
        if readings is None:
            self._drawn = list(self._text(self.OFF, width, palette.muted))
            return
        is_large = self.page >= _ROOMY
        lines = self._drawn = [*self._state(readings, width), *self._figures(readings, width)]
        if is_large:
            lines += self._courses(width)
        lines.append(self._first_token(readings.first_token, width))
        reasons = [f"{count(r.count)} {r.reason} ({r.code})" for r in readings.rejected[:_REASONS]]
        lines += self._flow("rejected", reasons, len(readings.rejected), width)
        if is_large:
            lines += self._table(readings.users, width)
        else:
            users = [_user(user) for user in readings.users[:_USERS]]
            lines += self._flow("users", users, len(readings.users), width)
        if readings.bad:
            text = counted(len(readings.bad), "bad message")
            lines.append(self.line(width).add(shorten(text, width), palette.muted))
        whole = (row for message in readings.bad for row in self._whole(message, width))
        all_fit = is_large and len(lines) + len(list(whole)) <= self.page
        for message in readings.bad:
            start = len(lines)
            if message == self.chosen or all_fit:
                lines += self._whole(message, width)
            else:
                lines.append(self._brief(message, width))
            if message == self.chosen:
                self._chosen_rows = range(start, len(lines))

    def _courses(self, width: int) -> Iterator[Line]:
        """Sparklines of messages in and out."""
        for name, course in self._traffic.items():
            line = self.line(width).cell(name, _LABEL_WIDTH, self.palette.muted)
            yield line.add(course.cells(self.glyphs.ramp, line.room), self.palette.decode)

    def _table(self, users: Sequence[UserView], width: int) -> Iterator[Line]:
        """The users, in a third of the panel."""
        if not users:
            return
        palette, shown = self.palette, users[: self.page // 3]
        names = [self._harmless(user.name) for user in shown]
        room = max(min(max(map(cell_len, names)), width - 3 * _COUNT_WIDTH), _LABEL_WIDTH)
        line = self.line(width).cell("users", room, palette.muted)
        for head in ("live", "no token", "rejected"):
            line.cell(head, _COUNT_WIDTH, palette.muted, "right")
        yield line
        for name, user in zip(names, shown, strict=True):
            line = self.line(width).cell(name, room, palette.text)
            for number in (user.running, user.waiting, user.rejected):
                style = palette.text if number else palette.muted
                line.cell(count(number), _COUNT_WIDTH, style, "right")
            yield line
        if len(shown) < len(users):
            yield self.line(width).add(f"+{count(len(users) - len(shown))} more", palette.muted)

    def _state(self, readings: R, width: int) -> Iterator[Line]:
        """State, notes and address, in one line if they fit, and the reason for the state."""
        palette, state = self.palette, readings.state
        line = self.line(width)
        line.add(f"{self.glyphs.marks[state.mark]} {state} ", palette.marks[state.mark])
        line.add(lasting(readings.lasted), palette.strong)
        for note in self.notes(readings):
            line.add(f" · {note}", palette.muted)
        if cell_len(address := f" · {readings.address}") <= line.room:
            yield line.add(address, palette.muted)
        else:
            yield line
            yield self.line(width).add(shorten(readings.address, width), palette.muted)
        if readings.detail:
            yield from self._text(readings.detail, width, palette.text)

    def _figures(self, readings: R, width: int) -> Iterator[Line]:
        """Figures in columns, in pairs if that fits. They keep their places whatever their
        values."""
        palette = self.palette
        rejected = sum(one.count for one in readings.rejected)
        figures = (
            ("in/s", readings.received, False),
            ("out/s", readings.sent, False),
            ("live", readings.running, False),
            ("accepted", readings.accepted, False),
            ("no token", readings.waiting, False),
            ("finished", readings.finished, False),
            self.own_figure(readings),
            ("rejected", rejected, rejected > 0),
        )
        fitting = max((width + 1) // _CELL_WIDTH, 2 if width >= _MIN_PAIR_WIDTH else 1)
        columns = max(n for n in (1, 2, 4, 8) if n <= fitting)
        cell = min(width // columns, _MAX_CELL_WIDTH)
        for start in range(0, len(figures), columns):
            line = self.line(width)
            for label, value, bad in figures[start : start + columns]:
                style = palette.warn if bad else palette.strong
                line.cell(label, _LABEL_WIDTH, palette.muted)
                line.cell(compact(value), cell - _LABEL_WIDTH, style)
            yield line

    def _first_token(self, first: Distribution, width: int) -> Line:
        palette = self.palette
        figures = [(" no sample", palette.muted)]
        if first.count:
            figures = [(" p50 ", palette.muted), (duration(first.p50), palette.strong)]
            figures += [(" p99 ", palette.muted), (duration(first.p99), palette.strong)]
        room = width - sum(len(text) for text, _ in figures)
        names = (self.FIRST_TOKEN, "first token", "ttft")
        name = next((name for name in names if len(name) <= room), names[-1])
        line = self.line(width).add(name, palette.muted)
        for text, style in figures:
            line.add(text, style)
        return line

    def _flow(self, label: str, parts: Sequence[str], total: int, width: int) -> Iterator[Line]:
        """Parts in a row, with line breaks only between them, and the number of further ones."""
        more = total - len(parts)
        pieces = [*(self._harmless(part) for part in parts), *([f"+{more} more"] if more else [])]
        if not pieces:
            return
        line = self.line(width).add(label, self.palette.muted)
        divider = " "
        for piece in pieces:
            if cell_len(divider + piece) > line.room and line.room < width - _INDENT:
                yield line
                line, divider = self.line(width), " " * _INDENT
            line.add(divider, self.palette.muted)
            line.add(shorten(piece, line.room), self.palette.text)
            divider = " · "
        yield line

    def _head(self, message: BadMessage, width: int) -> Line:
        """The beginning of a line: the cursor, the time, and the error code."""
        palette = self.palette
        chosen = message == self.chosen
        over = palette.cursor if chosen else Style.null()
        line = self.line(width).cell(self.glyphs.cursor if chosen else "", 2, palette.strong + over)
        if width >= _MIN_TIMED_WIDTH:
            line.cell(time_of_day(message.time), _TIME_WIDTH, palette.muted + over)
        return line.cell(str(message.code), _CODE_WIDTH, palette.bad + over)

    def _brief(self, message: BadMessage, width: int) -> Line:
        line, parts = self._head(message, width), (message.reason, message.topic, message.excerpt)
        text = " · ".join(map(self._harmless, parts))
        return line.add(shorten(text, line.room), self.palette.text)

    def _whole(self, message: BadMessage, width: int) -> Iterator[Line]:
        """The reason, the topic, and the excerpt of a message."""
        palette, line = self.palette, self._head(message, width)
        over = palette.cursor if message == self.chosen else Style.null()
        style, lead = palette.text + over, width - line.room
        for piece in wrap(self._harmless(message.reason), max(line.room, 1)):
            yield line.add(piece, style).pad(style)
            line = self.line(width).add(" " * lead, style)
        yield from self._indented(message.topic, width, palette.muted)
        yield from self._indented(message.excerpt, width, palette.text)

    def _indented(self, text: str, width: int, style: Style) -> Iterator[Line]:
        room = max(width - _INDENT, 1)
        for piece in list(pieces(self._harmless(text), room))[:_EXCERPT_ROWS]:
            yield self.line(width).add(" " * _INDENT, style).add(piece, style)

    def _text(self, text: str, width: int, style: Style) -> Iterator[Line]:
        for piece in wrap(self._harmless(text), width):
            yield self.line(width).add(piece, style)

    def _harmless(self, text: str) -> str:
        return spelt_out(text, ascii_only=not self.glyphs.unicode)


def _user(user: UserView) -> str:
    parts = [f"{user.name} {count(user.running)}"]
    parts += [f"{count(user.waiting)} no token"] if user.waiting else []
    parts += [f"{count(user.rejected)} rejected"] if user.rejected else []
    return ", ".join(parts)


class HttpPanel(GatewayPanel[HttpReadings]):
    """The state is that of the server in this process."""

    NAME = "HTTP"
    OFF = (
        "HTTP is off. `tui --http 8000` serves OpenAI's and Anthropic's API, /metrics, and a page"
        " for the browser."
    )
    FIRST_TOKEN = "arrival to first token"
    EXPLAINED = "open"
    GLOSS: ClassVar[Mapping[str, str]] = glosses("live", "no token", "open")

    BINDINGS: ClassVar[list[BindingType]] = [*list_keys("http")]

    def own_figure(self, readings: HttpReadings) -> tuple[str, int, bool]:
        return "open", readings.connections, False


class MqttPanel(GatewayPanel[MqttReadings]):
    """The state is that of the connection to the broker."""

    NAME = "MQTT"
    OFF = (
        "MQTT is off. `tui --mqtt mqtt://HOST` serves chats over a broker,"
        " `tui --embedded-broker` brings one along to try it."
    )
    FIRST_TOKEN = "publish to first token"
    EXPLAINED = "unacked"
    GLOSS: ClassVar[Mapping[str, str]] = glosses("live", "no token", "unacked")

    BINDINGS: ClassVar[list[BindingType]] = [
        *list_keys("mqtt"),
        Binding(
            "r", "reconnect", "Reconnect", tooltip="Connect to the broker now", id="mqtt.reconnect"
        ),
    ]

    class ReconnectWanted(Message):
        """The user wants a new connection."""

    def action_reconnect(self) -> None:
        self.post_message(self.ReconnectWanted())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action != "reconnect" or self.readings is not None

    def title(self) -> str:
        readings = self.readings
        return f"{self.NAME} · {readings.pool}/{readings.node}" if readings else self.NAME

    def notes(self, readings: MqttReadings) -> Sequence[str]:
        return [f"MQTT {readings.protocol}"] if readings.protocol else []

    def own_figure(self, readings: MqttReadings) -> tuple[str, int, bool]:
        return "unacked", readings.undelivered, readings.undelivered > 0
