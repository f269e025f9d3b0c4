"""Rules for every test."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from app.process import heap, logs
from app.store import database
from engine.model.files import kept
from engine.native import kernels
from tests.support.native import LEVELS, NEEDS, WANT, why_skipped
from tests.support.smollm2 import smollm2  # noqa: F401

# Before triton is imported: its interpreter runs the kernels where there is no GPU.
if os.environ.get("BATCHDECK_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"

# The same examples every time: a test that fails once fails always.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
settings.register_profile("long", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deterministic"))

# No test turns the machine off: the stores of a thousand tests need not wait for its disk.
database.SYNCHRONOUS = "OFF"

# A model is checked whenever a test loads it.
kept.KEPT = False

NO_SKIP = os.environ.get("BATCHDECK_NO_SKIP") == "1"


def pytest_collection_finish() -> None:
    """Leave the modules and 5,000 tests out of the full collections that each loading asks for. All
    that tests import is there, so that what is slow in it can be mended."""
    if "triton.runtime.interpreter" in sys.modules:
        from tests.support.interpreter import look_once

        look_once()
    if "textual.css.stylesheet" in sys.modules:
        from tests.support.stylesheets import parse_once

        parse_once()
    gc.collect()
    gc.freeze()


# Few collections: what the application of one test leaves in cycles can wait for that of the next.
# The last number is one that `heap` never sets: another one after a test tells that the test has
# settled or unsettled the heap. To ask for the number of frozen objects is to have them counted, 40
# to 100 ms each time.
THRESHOLD = (5_000, 10, heap.USUAL_BEFORE_FULL + 1)
gc.set_threshold(*THRESHOLD)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave what the tests of a file have imported and cached out of full collections, too. Give a
    heap that a test has settled for a model back to all tests (`app.process.heap`), also if the
    test did not close the model.
    """
    is_settled = gc.get_threshold() != THRESHOLD
    if is_settled:
        gc.set_threshold(*THRESHOLD)
        gc.unfreeze()
    if is_settled or (nextitem is not None and nextitem.path != item.path):
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore the log handlers and levels that a test changes, also by running the program in its
    process. The handler of a finished test writes to a closed stream, and logging reports that on
    the standard error of a later test."""
    root = logging.getLogger()
    handlers = tuple(root.handlers)
    loggers = (root, *(logging.getLogger(name) for name in logs.OURS))
    levels = [logger.level for logger in loggers]
    yield
    for handler in tuple(root.handlers):
        if handler not in handlers:
            root.removeHandler(handler)
            handler.close()
    for handler in handlers:
        if handler not in root.handlers:
            root.addHandler(handler)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    logging.captureWarnings(False)


# How many tests each thing that the machine lacks has left out, as the processes of pytest-xdist
# send it to the one that prints.
LEFT_OUT = "left_out"
_left_out: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    text = f"needs(name): left out where the machine lacks it; one of {', '.join(NEEDS)}"
    config.addinivalue_line("markers", text)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, of the tests that are asked for, those that this machine cannot run."""
    lacking = {item: name for item in items if (name := _lacking(item))}
    if lacking:
        items[:] = [item for item in items if item not in lacking]
        config.hook.pytest_deselected(items=list(lacking))
        _left_out.update(lacking.values())


def _lacking(item: pytest.Item) -> str:
    """The missing requirement of a test; empty if there is none."""
    for mark in item.iter_markers("needs"):
        if len(mark.args) != 1 or mark.args[0] not in NEEDS or mark.kwargs:
            text = f"{item.nodeid}: needs{mark.args} must name one of {', '.join(NEEDS)}"
            raise pytest.UsageError(text)
        (name,) = mark.args
        if name == "gpu":
            import torch  # which few tests need

            is_here = torch.cuda.is_available()
        elif kernels() is None and not (reason := why_skipped()).startswith(WANT):
            item.add_marker(pytest.mark.skip(reason=reason))
            is_here = True
        else:
            is_here = name in LEVELS
        if not is_here:
            return NEEDS[name]
    return ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[LEFT_OUT] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of pytest-xdist collects the same."""
    _left_out.update(Counter(node.workeroutput[LEFT_OUT]) - _left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, number in sorted(_left_out.items()):
        terminalreporter.write_line(f"not run here, {WANT}{name}: {number}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where all system packages are there, a skipped test is a failed one."""
    report = yield
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """So is a skipped file, unless its tests are of what the machine lacks."""
    report = yield
    if NO_SKIP and report.skipped and f"Skipped: {WANT}" not in str(report.longrepr):
        report.outcome = "failed"
    return report
