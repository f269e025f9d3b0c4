"""Names and completions of lines that begin with a slash."""

from __future__ import annotations

import pytest

from app.screens.deck.slash import (
    Slash,
    UnknownSlashError,
    find,
    matching,
    name_of,
    split,
)


def slashes(*names: str) -> list[Slash]:
    return [Slash(name, "", lambda _: None) for name in names]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("New chat", "new-chat"),
        ("Find chat…", "find-chat"),
        ("Policy: stall_free", "policy-stall_free"),
        ("Panel: KV map", "panel-kv-map"),
    ],
)
def test_a_command_of_the_palette_has_a_name(title: str, name: str) -> None:
    assert name_of(title) == name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("/new", ("new", "")),
        ("/system Be brief.\nAnd kind.", ("system", "Be brief.\nAnd kind.")),
        ("/save name\nThe text.\n", ("save", "name\nThe text.")),
        ("/save\nThe text.", ("save", "The text.")),
        ("/", ("", "")),
    ],
)
def test_a_line_is_a_name_and_what_follows(text: str, parts: tuple[str, str]) -> None:
    assert split(text) == parts


def test_first_words_are_enough_where_they_mean_one_thing() -> None:
    all_of_them = slashes("new-chat", "stop-reply", "stop-loading", "export", "export-chat")
    assert find("new", all_of_them).name == "new-chat"
    assert find("export", all_of_them).name == "export"
    with pytest.raises(UnknownSlashError, match="close to it are /stop-reply, /stop-loading"):
        find("stop", all_of_them)


def test_of_close_names_the_one_that_begins_alike_comes_first() -> None:
    with pytest.raises(UnknownSlashError, match="close to it are /temperature, /tmpo\\."):
        find("tempo", slashes("tmpo", "temperature"))


def test_what_begins_so_comes_before_what_has_it_within() -> None:
    found = matching("chat", slashes("new-chat", "chat-or-engine", "export"))
    assert [slash.name for slash in found] == ["chat-or-engine", "new-chat"]
