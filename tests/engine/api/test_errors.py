"""Errors: what their sentences may hold."""

from __future__ import annotations

from engine.api.errors import InvalidConfigError, ModelError, cause_of


def test_a_sentence_is_one_line_that_no_terminal_obeys() -> None:
    error = ModelError("a lacks \x1b[31mred\x07\n\u202egnp.\ud800")
    assert error.message == r"a lacks \x1b[31mred\x07\n\u202egnp.\ud800"
    assert str(error) == error.info().message == error.message


def test_what_prints_is_left_alone() -> None:
    text = "größer als 3 °C, 'ein Wort' und \\x1b"
    assert InvalidConfigError(text, "field").message == text


def test_a_sentence_that_quotes_a_whole_file_is_cut() -> None:
    message = ModelError(f"x is {'9' * 10_000_000}; it must be at most 3").message
    assert len(message) < 5000
    assert "…" in message
    assert message.endswith("99; it must be at most 3")


def test_the_cause_of_a_failure_is_one_short_line() -> None:
    assert cause_of(KeyError("a")) == "KeyError: 'a'"
    assert cause_of(ValueError("one\n  two")) == "ValueError: one two"
    assert cause_of(ValueError()) == "ValueError"
    assert cause_of(ValueError("9" * 1000)) == f"ValueError: {'9' * 300}…"
