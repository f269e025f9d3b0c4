from __future__ import annotations

from engine.text.turns import Turns


def served(turns: Turns[str]) -> list[str]:
    """All that waits, served one after the other."""
    found = []
    while (turn := turns.pop()) is not None:
        user, item = turn
        found.append(item)
        turns.end(user)
    return found


def test_one_user_s_items_keep_their_order() -> None:
    turns: Turns[str] = Turns()
    for name, cost in (("long", 100), ("short", 1), ("middle", 10)):
        turns.put("anna", name, cost)
    assert served(turns) == ["long", "short", "middle"]


def test_short_ones_are_not_kept_by_long_ones_of_others() -> None:
    turns: Turns[str] = Turns()
    for i in range(4):
        turns.put("bob", f"long {i}", 256)
    for i in range(4):
        turns.put("anna", f"short {i}", 100)
    assert served(turns) == [
        *("long 0", "short 0", "short 1", "short 2"),
        *("long 1", "short 3", "long 2", "long 3"),
    ]


def test_who_comes_later_has_saved_nothing() -> None:
    turns: Turns[str] = Turns()
    for i in range(3):
        turns.put("bob", f"bob {i}", 10)
    for _ in range(2):
        user, _item = turns.pop() or ("", "")
        turns.end(user)
    for i in range(3):
        turns.put("anna", f"anna {i}", 10)
    assert served(turns) == ["anna 0", "bob 2", "anna 1", "anna 2"]


def test_one_item_of_a_user_is_served_at_a_time() -> None:
    turns: Turns[str] = Turns()
    turns.put("bob", "first", 1)
    turns.put("bob", "second", 1)
    assert turns.pop() == ("bob", "first")
    assert turns.pop() is None
    turns.put("anna", "hers", 1)
    assert turns.pop() == ("anna", "hers")
    turns.end("bob")
    assert turns.pop() == ("bob", "second")


def test_nothing_is_kept_of_users_once_all_is_served() -> None:
    turns: Turns[str] = Turns()
    turns.put("bob", "x", 1000)
    assert served(turns) == ["x"]
    turns.put("bob", "bob", 1)
    turns.put("anna", "anna", 1)
    assert served(turns) == ["bob", "anna"]
