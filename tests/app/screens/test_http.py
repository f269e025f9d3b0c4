"""The HTTP gateway on the screen: its panel, beside the one of MQTT."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from tests.app.screens.stage import REPLIES, staged
from tests.support.scripted_http import ScriptedHttp

LAYOUTS = [(80, 24), (110, 30), (110, 36), (120, 40), (150, 30), (160, 48)]


async def test_gateways_share_a_place_that_the_one_asked_for_has(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, mqtt=True, http=ScriptedHttp(), size=(80, 24)) as stage:
        panels = stage.deck.panels
        in_turn = (
            ("9", panels.http, panels.mqtt),
            ("8", panels.mqtt, panels.http),
            ("9", panels.http, panels.mqtt),
        )
        for size, (key, panel, other) in product(LAYOUTS, in_turn):
            await stage.pilot.resize_terminal(*size)
            await stage.press("f2", key)
            await stage.settle()
            assert panel.has_focus, size
            assert panel.display, size
            assert panel.region.height >= 8, size
            assert not other.display, size
            shown = [one for _, one in panels.numbered if one.display]
            regions = [one.region for one in shown]
            overlap = any(a.overlaps(b) for i, a in enumerate(regions) for b in regions[i + 1 :])
            assert not overlap, (size, key)
            assert all(stage.deck.region.contains_region(one) for one in regions), (size, key)
            await stage.press("escape")


async def test_where_http_is_served_is_on_view_if_there_is_room(tmp_path: Path) -> None:
    gateway = ScriptedHttp()
    gateway.show(accepted=3, running=2)
    async with staged(tmp_path, REPLIES, http=gateway, size=(120, 40)) as stage:
        for size in ((120, 40), (160, 48)):
            await stage.pilot.resize_terminal(*size)
            screen = await stage.screen()
            assert "✓ serving" in screen, size
            assert "http://127.0.0.1:8000" in screen, size


async def test_without_a_gateway_the_panel_says_how_to_have_one(tmp_path: Path) -> None:
    async with staged(tmp_path, REPLIES, size=(80, 24)) as stage:
        await stage.press("f2", "9")
        assert "HTTP is off." in await stage.screen()
        titles = {c.title for c in stage.app.get_system_commands(stage.deck)}
        assert "Panel: HTTP" in titles


async def test_that_it_has_stopped_is_told_once(tmp_path: Path) -> None:
    gateway = ScriptedHttp()
    async with staged(tmp_path, REPLIES, http=gateway) as stage:
        assert stage.toasts == []
        gateway.failure = "OSError: no file descriptors"
        await stage.turn()
        await stage.turn()
        assert stage.toasts == ["HTTP: the gateway has stopped; the log says why."]
