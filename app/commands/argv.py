"""Command line: takes secrets out of it, where every user of the machine can read them.

A broker's password, or an API key, is there until Python has started. One that is stated in
TUI_MQTT_PASSWORD or TUI_API_KEY, or in a file, is never there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence

OPTION = "--mqtt"
VARIABLE = "TUI_MQTT_PASSWORD"
# Other variables that may state a password, which must not count beside that of `--mqtt`.
_OTHERS = ("TUI_MQTT", "TUI_MQTT_PASSWORD_FILE")
KEY_OPTION = "--api-key"
KEY_VARIABLE = "TUI_API_KEY"
# What stands on the command line for a key that is in the environment.
ELSEWHERE = "-"


def hide_secrets() -> None:
    """Start the program anew, with the secrets of the command line moved to its environment.

    This does nothing if there is none. It is called before anything else is done or imported.
    """
    # This look is cheap enough for every start; importing the parser of URLs is not.
    if not any(argument.startswith((OPTION, KEY_OPTION)) for argument in sys.argv[1:]):
        return
    environment = dict(os.environ)
    arguments = without_secrets(sys.argv[1:], environment)
    if arguments != sys.argv[1:]:
        # The interpreter with its options, and the script, come before our arguments.
        before = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
        os.execve(sys.executable, [*before, *arguments], environment)


def without_secrets(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """The arguments without keys, and without the passwords in `--mqtt`. Those that came last are
    put into the environment."""
    from app.gateway.mqtt.transport.address import split_password

    result, last = list(arguments), None
    for index, option, url in _values(arguments, OPTION):
        shown, last = split_password(url)
        result[index] = f"{option}{shown}"
    if last is not None:
        for name in _OTHERS:
            environment.pop(name, None)
        environment[VARIABLE] = last
    for index, option, key in _values(arguments, KEY_OPTION):
        if key not in ("", ELSEWHERE):
            result[index] = f"{option}{ELSEWHERE}"
            environment[KEY_VARIABLE] = key
    return result


def _values(arguments: Sequence[str], name: str) -> Iterator[tuple[int, str, str]]:
    """Where values of an option are, what stands before each in its argument, and the value."""
    for index, argument in enumerate(arguments):
        if index and arguments[index - 1] == name:
            yield index, "", argument
        elif argument.startswith(f"{name}="):
            yield index, f"{name}=", argument.removeprefix(f"{name}=")
