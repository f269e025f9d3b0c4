from __future__ import annotations

import pytest
from textual.app import RenderResult
from textual.geometry import Size
from textual.widget import Widget

from tests.widgets.hosting import hosted, resize, settle


class Fragile(Widget):
    """Cannot be drawn in this width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def render(self) -> RenderResult:
        if self.size.width == self._width:
            raise LookupError("nothing to draw")
        return ""


async def narrow(widget: Widget) -> None:
    async with hosted(widget) as (app, _):
        assert widget.size == Size(80, 12)
        await resize(app, widget, 60, 12)
        await settle(app)


@pytest.mark.parametrize("width", [80, 60])
async def test_what_a_widget_raises_while_it_is_drawn_fails_the_test(width: int) -> None:
    with pytest.raises(LookupError, match="nothing to draw"):
        await narrow(Fragile(width))
