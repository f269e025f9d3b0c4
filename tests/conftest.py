"""What holds for every test."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from app.process import heap
from app.store import database
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where all system packages are there, a skipped test is a failed one."""
    report = yield
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report
