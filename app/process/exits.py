"""Exit codes: what the way the program ended tells the shell."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """As docs/operating.md has them; those from 129 on are 128 + the signal, as shells count."""

    OK = 0
    FAILED = 1
    """A line was refused or its reply failed; the doctor found something that is needed missing."""
    USAGE = 2
    """A flag, an environment variable or the configuration file is wrong."""
    NO_MODEL = 3
    """The model could not be loaded."""
    NO_FILE = 4
    """Standard input, standard output or the store cannot be read or written."""
    CRASHED = 70
    HUNG_UP = 129
    """The terminal of the interface was closed, or of the server before it served."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143
