"""The ways of attention that are measured on a GPU, under Triton's interpreter."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from benchmarks.gpu import tiles
from engine.triton.ways import SHARED_MEMORY, Way, Ways, ways_for


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_what_a_card_has_now_is_among_what_is_tried(capability: int, head_dim: int) -> None:
    small, large = tiles.ways(capability, head_dim)
    now = ways_for(capability, head_dim, 2)
    assert now.small in small
    assert now.large in large


def test_the_fastest_are_printed_as_a_line_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = (Way(16, 64, 4, 3), Way(128, 32, 8, 3))
    asked: list[tuple[Way, int]] = []

    def seconds(work: object, repeats: int = 20) -> float:
        way, programs = asked[-1]
        return (1e-6 if way in fast else 2e-6) * (1 if programs == 4 else 1.5)

    class Device(tiles.Device):
        pass

    monkeypatch.setattr(Device, "seconds", lambda self, work, repeats=20: seconds(work))
    made = tiles.attending

    def attending(*arguments: object) -> object:
        by = made(*arguments)  # type: ignore[arg-type]

        def noted(way: Way, programs: int) -> object:
            asked.append((way, programs))
            launch = by(way, programs)
            if way in fast:
                launch()
            return launch

        return noted

    monkeypatch.setattr(tiles, "Device", Device)
    monkeypatch.setattr(tiles, "attending", attending)
    tiles.main(["--device", "cpu", "--heads", "64"])
    assert capsys.readouterr().out.splitlines()[-1] == tiles.line(64, Ways(*fast, 4))
