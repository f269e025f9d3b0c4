"""Command line: takes a broker's password out of it, where every user of the machine can read it.

The password is there until Python has started. One that is stated in TUI_MQTT_PASSWORD, or in a
file named by --password-file, is never there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

OPTION = "--mqtt"
VARIABLE = "TUI_MQTT_PASSWORD"
# Other variables that may state a password, which must not count beside that of `--mqtt`.
_OTHERS = ("TUI_MQTT", "TUI_MQTT_PASSWORD_FILE")


def hide_password() -> None:
    """Start the program anew, with the password of `--mqtt` moved to its environment.

    This does nothing if there is no password. It is called before anything else is done or
    imported.
    """
    # This look is cheap enough for every start; importing the parser of URLs is not.
    if not any(argument.startswith(OPTION) for argument in sys.argv[1:]):
        return
    environment = dict(os.environ)
    arguments = without_password(sys.argv[1:], environment)
    if arguments != sys.argv[1:]:
        # The interpreter with its options, and the script, come before our arguments.
        before = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
        os.execve(sys.executable, [*before, *arguments], environment)


def without_password(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """The arguments without the passwords in `--mqtt`. That of the last one is put into the
    environment."""
    from app.gateway.mqtt.transport.address import split_password

    result, last = list(arguments), None
    for index, argument in enumerate(arguments):
        if index and arguments[index - 1] == OPTION:
            option, url = "", argument
        elif argument.startswith(f"{OPTION}="):
            option, url = f"{OPTION}=", argument.removeprefix(f"{OPTION}=")
        else:
            continue
        shown, last = split_password(url)
        result[index] = f"{option}{shown}"
    if last is not None:
        for name in _OTHERS:
            environment.pop(name, None)
        environment[VARIABLE] = last
    return result
