"""Command line: a broker's password does not stay in it, where every user of the machine reads it.

It is there until Python has started. A password in TUI_MQTT_PASSWORD, or in a file named by
--password-file, never is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

OPTION = "--mqtt"
VARIABLE = "TUI_MQTT_PASSWORD"
# What else of the environment would go before that password.
_OTHERS = ("TUI_MQTT", "TUI_MQTT_PASSWORD_FILE")


def hide_password() -> None:
    """Start the program anew, with the password of `--mqtt` in its environment instead.

    Does nothing where there is none. To be called before anything else is done or imported.
    """
    # Cheap enough for every start; the parser of URLs is not.
    if not any(argument.startswith(OPTION) for argument in sys.argv[1:]):
        return
    environment = dict(os.environ)
    arguments = without_password(sys.argv[1:], environment)
    if arguments != sys.argv[1:]:
        # What came before our arguments: the interpreter with its options, and the script.
        before = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
        os.execve(sys.executable, [*before, *arguments], environment)


def without_password(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """The arguments without the password of the last `--mqtt`, which goes to the environment."""
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
