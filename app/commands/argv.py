"""Command line: removes its secrets, because every user of the machine can read it.

A broker's password, or an API key, is visible until Python has started. A secret in
TUI_MQTT_PASSWORD or TUI_API_KEY, or in a file, is never visible.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence

OPTION = "--mqtt"
VARIABLE = "TUI_MQTT_PASSWORD"
# Other variables that may hold a password, which must not override that of `--mqtt`.
_OTHERS = ("TUI_MQTT", "TUI_MQTT_PASSWORD_FILE")
KEY_OPTION = "--api-key"
KEY_VARIABLE = "TUI_API_KEY"
# Replaces, on the command line, a key that is in the environment.
ELSEWHERE = "-"


def hide_secrets() -> None:
    """Restart the program with the secrets of the command line moved to its environment.

    Without secrets this does nothing. Call it before anything else is done or imported.
    """
    # This check is cheap enough for every start; importing the URL parser is not.
    if not any(argument.startswith((OPTION, KEY_OPTION)) for argument in sys.argv[1:]):
        return
    environment = dict(os.environ)
    arguments = without_secrets(sys.argv[1:], environment)
    if arguments != sys.argv[1:]:
        # The interpreter with its options, and the script, come before our arguments.
        before = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
        os.execve(sys.executable, [*before, *arguments], environment)


def without_secrets(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """The arguments without keys, and without the passwords in `--mqtt`. The last key and the last
    password go into the environment."""
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
    """For each value of an option: its index, the text before it in its argument, and the value."""
    for index, argument in enumerate(arguments):
        if index and arguments[index - 1] == name:
            yield index, "", argument
        elif argument.startswith(f"{name}="):
            yield index, f"{name}=", argument.removeprefix(f"{name}=")
