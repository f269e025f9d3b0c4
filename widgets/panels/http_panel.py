"""HttpPanel: the HTTP gateway's address, its traffic, and its bad requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.binding import BindingType

from widgets.panels.gateway_panel import GatewayPanel
from widgets.panels.http_readings import HttpReadings
from widgets.panels.scroll_panel import list_keys
from widgets.words import glosses


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
