"""The pump collects the program's log and the loop's lag beside the engine."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from app.screens.chats.numbering import Numbering
from app.screens.feeds import cadence
from app.screens.feeds.cadence import LoopLag
from app.screens.feeds.log_feed import LONGEST, LogFeed
from widgets.panels.log_line import Level


def test_the_log_feed_takes_what_our_loggers_say() -> None:
    feed = LogFeed()
    feed.attach()
    try:
        logger = logging.getLogger("engine.model.checks.gate")
        logger.setLevel(logging.INFO)
        logger.info("read %d", 1)
        logger.warning("odd")
        logger.error("bad")
        logging.getLogger("asyncio").warning("not ours")
        lines = feed.drain(Numbering(lambda _: None).subject)
        assert [(line.level, line.source, line.text) for line in lines] == [
            (Level.INFO, "engine", "read 1"),
            (Level.WARNING, "engine", "odd"),
            (Level.ERROR, "engine", "bad"),
        ]
        assert feed.drain(Numbering(lambda _: None).subject) == []
    finally:
        feed.detach()
    logger.error("after")
    assert feed.drain(Numbering(lambda _: None).subject) == []


def test_the_log_feed_cuts_what_somebody_made_long() -> None:
    feed = LogFeed()
    feed.handle(logging.LogRecord("app", logging.INFO, "", 0, "x" * 400_000, (), None))
    assert [len(line.text) for line in feed.drain(Numbering(lambda _: None).subject)] == [LONGEST]


def test_the_log_feed_does_without_a_line_whose_arguments_do_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    feed = LogFeed()
    for text, arguments in (("none wanted", (1,)), ("after", ())):
        feed.handle(logging.LogRecord("engine", logging.INFO, "", 0, text, arguments, None))
    assert [line.text for line in feed.drain(Numbering(lambda _: None).subject)] == ["after"]
    assert "Logging error" in capsys.readouterr().err


async def test_the_loop_lag_is_what_a_blocked_loop_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadence, "INTERVAL", 0.001)
    lag = LoopLag()
    assert lag.p99() is None
    lag.start()
    try:
        async with asyncio.timeout(10):
            while lag.p99() is None:
                await asyncio.sleep(0)
            end = time.monotonic() + 0.05
            while time.monotonic() < end:
                pass
            while (late := lag.p99()) is None or late < 0.04:
                await asyncio.sleep(0)
    finally:
        lag.stop()
