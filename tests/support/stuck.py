"""`tui` whose model never loads, in a process that could not end as Python ends one."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Never

from app.commands.cli import main
from app.process import serving
from engine.api.client import LoadRequest
from engine.serving import host
from engine.serving.loading import Progress


def run(in_loader: Callable[[], object]) -> None:
    """Run `tui`, whose loader calls `in_loader` and then blocks for ever, as it does for seconds in
    an import of torch. So does the interpreter's end, which waits for the lock of such an import.
    """
    nothing_comes, _ = os.pipe()

    def block(*_: object) -> Never:
        os.read(nothing_comes, 1)
        raise AssertionError

    def load(request: LoadRequest, progress: Progress) -> Never:
        in_loader()
        block()

    serving.load_model = load
    host.JOIN_TIMEOUT = 3600.0
    atexit.register(block)
    main()
