"""ExitCode: the exit codes of the program."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of docs/operating.md. Those from 129 on are 128 + the number of a signal, as
    in shells."""

    OK = 0
    FAILED = 1
    """A line was refused, a reply or a measurement failed, or the doctor found that something
    necessary is missing."""
    USAGE = 2
    """A flag, an environment variable or the configuration file is wrong."""
    NO_MODEL = 3
    """The model could not be loaded."""
    NO_FILE = 4
    """Standard input, standard output or the store cannot be read or written."""
    CRASHED = 70
    HUNG_UP = 129
    """The terminal of the interface was closed, or that of the server before it served."""
    INTERRUPTED = 130
    CLOSED_PIPE = 141
    TERMINATED = 143
