"""Key groups: the keys as they are bound now, by where they act, and the names of all of them."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode

from app.screens.deck import Deck
from app.screens.dialogs.ask_text import AskText
from app.screens.dialogs.confirm import Confirm
from app.screens.dialogs.find_chat import FindChat
from app.screens.dialogs.pick_policy import PickPolicy
from app.screens.help import HelpScreen


def key_names(app: App[int], deck: Deck) -> list[str]:
    """The names under which the user may change keys."""
    bindings = [binding for _, node in _places(app, deck) for binding in _bindings(node)]
    for dialog in (AskText, Confirm, FindChat, PickPolicy, HelpScreen):
        bindings += [binding for binding in dialog.BINDINGS if isinstance(binding, Binding)]
    return sorted({binding.id for binding in bindings if binding.id is not None})


def key_groups(app: App[int], deck: Deck) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Headings, each with its keys as (key, what it does, name). Keys are those that the user has
    set."""
    for heading, node in _places(app, deck):
        rows: dict[str, list[Binding]] = {}
        for binding in _bindings(node, app):
            if binding.id is not None:
                rows.setdefault(binding.id.rstrip("123456789"), []).append(binding)
        keys = [
            (
                _shown([app.get_key_display(binding) for binding in bindings], name),
                bindings[0].tooltip or bindings[0].description,
                f"{name}1 …" if name.endswith(".") else name,
            )
            for name, bindings in rows.items()
        ]
        if keys:
            yield heading, keys


def _places(app: App[int], deck: Deck) -> tuple[tuple[str, DOMNode], ...]:
    """A heading for each node that has keys."""
    return (
        ("Everywhere", app),
        ("Chat and view", deck),
        ("Prompt", deck.chat.prompt.area),
        ("Messages", deck.chat.transcript),
        ("Sessions", deck.panels.table),
        ("Batch", deck.panels.batch),
        ("KV map", deck.panels.kv),
        ("Knobs", deck.panels.knobs),
        ("Log", deck.panels.log),
        ("MQTT", deck.panels.mqtt),
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
