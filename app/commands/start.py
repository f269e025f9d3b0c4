"""start: begins the program `tui`, so that Ctrl-C ends it without a traceback from here on."""

from __future__ import annotations

import signal


def main() -> None:
    """Run `tui`, which takes 0.1 to 0.4 s to import. During that time Ctrl-C ends the process with
    the code that a shell expects. `run` then makes it raise, as Python does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from app.commands.cli import main as run

    run()
