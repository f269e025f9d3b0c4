"""Key groups: the keys as they are bound now, by where they act, and the names of all of them; with
the words of each place, they are what help tells."""

from __future__ import annotations

import re

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode

from app.screens.deck import Deck
from app.screens.dialogs.ask_text import AskText
from app.screens.dialogs.confirm import Confirm
from app.screens.dialogs.edit_settings import EditSettings
from app.screens.dialogs.find_chat import FindChat
from app.screens.dialogs.load_model import LoadModel
from app.screens.dialogs.pick_policy import PickPolicy
from app.screens.help import HelpScreen, HelpSection


def key_names(app: App[int], deck: Deck) -> list[str]:
    """The names under which the user may change keys."""
    bindings = [binding for _, node in _places(app, deck) for binding in _bindings(node)]
    for dialog in (AskText, Confirm, EditSettings, FindChat, LoadModel, PickPolicy, HelpScreen):
        bindings += [binding for binding in dialog.BINDINGS if isinstance(binding, Binding)]
    return sorted({binding.id for binding in bindings if binding.id is not None})


def help_sections(app: App[int], deck: Deck) -> list[HelpSection]:
    """What there is to know of each place, first of where the focus is. Keys are those that the
    user has set."""
    screen = app.screen
    if screen is not deck:
        # Of a dialog nothing but its own keys acts, and those that act everywhere.
        places: tuple[tuple[str, DOMNode], ...] = ((_name(screen), screen), ("Everywhere", app))
        here = None
    else:
        places = _places(app, deck)
        here = deck.focused
    sections = [
        HelpSection(heading, _keys(app, node), getattr(node, "GLOSS", {}))
        for heading, node in places
    ]
    chain = here.ancestors_with_self if here is not None else ()
    near = next((n for d in chain for n, (_, node) in enumerate(places) if node is d), 0)
    sections.insert(0, sections.pop(near))
    # Where one is has a section, though there be nothing to say but its name.
    return [s for place, s in enumerate(sections) if s.keys or s.words or not place]


def _name(screen: DOMNode) -> str:
    """What a dialog is called: by its class, `FindChat` being "Find chat"."""
    return re.sub(r"(?<=[a-z])([A-Z])", r" \1", type(screen).__name__).capitalize()


def _keys(app: App[int], node: DOMNode) -> list[tuple[str, str, str]]:
    """The keys of a node as (key, what it does, name)."""
    rows: dict[str, list[Binding]] = {}
    for binding in _bindings(node, app):
        if binding.id is not None:
            rows.setdefault(binding.id.rstrip("123456789"), []).append(binding)
    return [
        (
            _shown([app.get_key_display(binding) for binding in bindings], name),
            bindings[0].tooltip or bindings[0].description,
            f"{name}1 …" if name.endswith(".") else name,
        )
        for name, bindings in rows.items()
    ]


def _places(app: App[int], deck: Deck) -> tuple[tuple[str, DOMNode], ...]:
    """A heading for each node that has keys."""
    return (
        ("Everywhere", app),
        ("Chat and view", deck),
        ("Prompt", deck.chat.prompt.area),
        ("Messages", deck.chat.transcript),
        ("Chats", deck.panels.table),
        ("Batch", deck.panels.batch),
        ("KV map", deck.panels.kv),
        ("Latency", deck.panels.latency),
        ("Devices", deck.panels.devices),
        ("Knobs", deck.panels.knobs),
        ("Log", deck.panels.log),
        ("MQTT", deck.panels.mqtt),
        ("Strip", deck.panels.kpi),
    )


def _bindings(node: DOMNode, app: App[int] | None = None) -> list[Binding]:
    """The bindings of a node; if `app` is given, as its keymap changes them.

    This reads private parts of Textual 8.2. Its public `Screen.active_bindings` has only the nodes
    around the focus, and nothing public gives the keymap.
    """
    bindings = node._bindings.copy()
    if app is not None:
        bindings.apply_keymap(app._keymap)
    return [binding for _key, binding in bindings]


def _shown(keys: list[str], name: str) -> str:
    """The keys of one meaning as text; of a numbered row, the first and the last."""
    return f"{keys[0]} … {keys[-1]}" if name.endswith(".") else ", ".join(keys)
