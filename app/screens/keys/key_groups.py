"""Key groups: the keys as they are bound now, by place, and their names; and the sections of the
help, which are made from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from textual.app import App
from textual.binding import Binding
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.keys import KEY_NAME_REPLACEMENTS, key_to_character

from app.screens.bound import action_of, bindings_of, key_of, sign_of
from app.screens.dialogs.dialog import Dialog
from app.screens.keys.help import HelpSection

EVERYWHERE, SCREEN, DIALOGS, PROMPT = "Everywhere", "Chat and view", "Dialogs", "Prompt"

# Textual's palette has no words of its own.
_PALETTE = {
    "letters": "find a command by letters of its name, not all of them",
    "up, down": "go from command to command; Enter runs the one under the cursor",
    "a key": "the key beside a command runs it without the palette",
}

# A heading and a node that has keys.
Place = tuple[str, DOMNode]


@dataclass(frozen=True, slots=True)
class Bound:
    """The keys that are bound under a name, before the user changes it.

    Attributes:
        place: where it acts.
        keys: separated by commas.
        meaning: of the first that is bound under the name.
        priority: whether it acts before the focused widget.
    """

    place: str
    keys: str
    meaning: str
    priority: bool


def bindings_by_name(app: App[int], places: Sequence[Place]) -> dict[str, Bound]:
    """The keys that the user may change, by their names."""
    found: dict[str, Bound] = {}
    lists = [(place, bindings_of(node)) for place, node in ((EVERYWHERE, app), *places)]
    lists += [(DIALOGS, _own(dialog)) for dialog in Dialog.kinds()]
    for place, bindings in lists:
        for binding in bindings:
            if binding.id is None:
                continue
            before = found.get(binding.id)
            keys, meaning = binding.key, binding.tooltip or binding.description
            if before is not None:
                keys = ",".join(dict.fromkeys((*before.keys.split(","), *keys.split(","))))
                meaning = before.meaning
            found[binding.id] = Bound(place, keys, meaning, binding.priority)
    return found


def clash(app: App[int], places: Sequence[Place], name: str, keys: str) -> str:
    """Why something cannot have these keys; empty if it can.

    Args:
        keys: separated by commas.
    """
    named = bindings_by_name(app, places)
    bound, wanted = named[name], {key.strip() for key in keys.split(",")}
    if "" in wanted:
        return f"{name}: a key is missing; it is a name such as f5 or ctrl+x"
    typed = [key for key in wanted if _is_text(key)]
    if typed and (bound.priority or bound.place in (EVERYWHERE, PROMPT)):
        return f"{name}: {typed[0]} could not be typed any more"
    for other, its in named.items():
        # Keys of the application and of the screen act beside those of all other places.
        meet = its.place == bound.place or {its.place, bound.place} & {EVERYWHERE, SCREEN}
        taken = {key.strip() for key in app._keymap.get(other, its.keys).split(",")}
        apart = other == name or not meet or DIALOGS in (its.place, bound.place)
        if not apart and (common := sorted(wanted & taken)):
            return f"{name}: {common[0]} is that of {other} ({its.meaning.lower()})"
    return ""


def help_sections(app: App[int], places: Sequence[Place]) -> list[HelpSection]:
    """The help on each place, that of the focus first, with the keys as the user has set them."""
    screen = app.screen
    if screen.is_modal:
        # In a dialog, only its own keys act and those of the application.
        places = ((_name(screen), screen), (EVERYWHERE, app))
        here = None
    else:
        places = ((EVERYWHERE, app), *places)
        here = screen.focused
    sections = [HelpSection(heading, _keys(app, node), _words(node)) for heading, node in places]
    chain = here.ancestors_with_self if here is not None else ()
    near = next((n for d in chain for n, (_, node) in enumerate(places) if node is d), 0)
    sections.insert(0, sections.pop(near))
    # The place of the focus has a section even if that is only its heading.
    return [s for place, s in enumerate(sections) if s.keys or s.words or not place]


def help_notes(app: App[int], places: Sequence[Place]) -> str:
    """The help on keys everywhere, in sentences."""
    screen = dict(places)[SCREEN]
    leave, back, copy = (
        key_of(action_of(command), screen, app)
        for command in ("panel.next", "view.leave", "chat.copy_selection")
    )
    return (
        f"{key_of('help', app, app)} shows first the keys of the focused place, a panel or a"
        " dialog.\n"
        f"Letters and digits act while the prompt does not have the focus: {leave} leaves it,"
        f" {back} returns.\n"
        f"Shift with the mouse selects in the terminal's own way; {copy} copies a selection.\n"
        f"Any key can be changed in the settings ({key_of('settings', app, app)}), by the name at"
        " the end of its line."
    )


def _words(node: DOMNode) -> Mapping[str, str]:
    """The meanings of the words there."""
    return _PALETTE if isinstance(node, CommandPalette) else getattr(node, "GLOSS", {})


def _name(screen: DOMNode) -> str:
    """The name of a dialog: that of its class, `FindChat` being "Find chat"."""
    return re.sub(r"(?<=[a-z])([A-Z])", r" \1", type(screen).__name__).capitalize()


def _keys(app: App[int], node: DOMNode) -> list[tuple[str, str, str]]:
    """The keys of a node as (key, action, name). A numbered row of keys is one entry."""
    rows: dict[str, list[Binding]] = {}
    for binding in bindings_of(node, app):
        if binding.id is not None:
            rows.setdefault(binding.id.rstrip("123456789"), []).append(binding)
    return [
        (
            _format_keys([sign_of(binding.key, app) for binding in bindings], name),
            (not name.endswith(".") and bindings[0].tooltip) or bindings[0].description,
            f"{name}1 …" if name.endswith(".") else name,
        )
        for name, bindings in rows.items()
    ]


def _is_text(key: str) -> bool:
    """Whether a key writes something: `a`, `full_stop`, `plus`."""
    full = {short: name for name, short in KEY_NAME_REPLACEMENTS.items()}
    character = key_to_character(full.get(key, key))
    return character is not None and character.isprintable()


def _own(dialog: type[Dialog[Any]]) -> list[Binding]:
    return [binding for binding in dialog.BINDINGS if isinstance(binding, Binding)]


def _format_keys(keys: list[str], name: str) -> str:
    """The keys of one meaning as text; of a numbered row, the first and the last."""
    return f"{keys[0]} … {keys[-1]}" if name.endswith(".") else ", ".join(dict.fromkeys(keys))
