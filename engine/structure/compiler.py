"""Compiler: makes grammars of what `engine.structure.rules` writes, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.api.errors import InvalidRequestError
from engine.structure.grammar import Grammar
from engine.structure.words import Words

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# What llguidance may do. It spends a unit of fuel in some 20 to 70 ns: 100 ms to compile, and 10 ms
# for a mask. A state of a lexer has 1 to 2 KB, and each reply has its own.
_LIMITS = {
    "initial_lexer_fuel": 2_000_000,
    "step_lexer_fuel": 150_000,
    "step_max_items": 50_000,
    "max_lexer_states": 30_000,
    "max_grammar_size": 200_000,
}
# llguidance has no room for longer words. They say nothing there, so that no grammar allows them.
_LONGEST_WORD = 1000
_LONGEST_REASON = 300


class Compiler:
    """Compiles grammars for one vocabulary. Any thread may use it; the interpreter's lock is free
    meanwhile.
    """

    def __init__(self, words: Words) -> None:
        # It is imported while a model is loaded, for the first screen is waited for.
        from llguidance import LLTokenizer

        self._ends = frozenset(words.ends)
        speller = _Speller(words)
        self._tokenizer = LLTokenizer(speller, eos_token=list(words.ends))  # type: ignore[arg-type]
        speller.tokenizer = self._tokenizer

    def compile(self, rules: str, kind: str) -> Grammar:
        """A grammar that is ready for its first token.

        Args:
            rules: as `engine.structure.rules.write` gives them.
            kind: of the structure, for the error.

        Raises:
            InvalidRequestError: the grammar is wrong, too large, or allows nothing at all.
        """
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False, **_LIMITS)  # type: ignore[arg-type]
        matcher = LLMatcher(self._tokenizer, rules, log_level=0, limits=limits)
        if not matcher.is_error():
            # Much of a lexer is made when it is first asked. Copies have what there is.
            matcher.compute_bitmask()
        if not matcher.is_error():
            return Grammar(matcher, self._ends)
        reason = matcher.get_error()
        if reason.startswith("NoExtension"):
            reason = "no text has this structure"
        raise InvalidRequestError(
            f"structure.{kind} cannot be followed: {_on_one_line(reason)}", "structure"
        )


class _Speller:
    """A vocabulary, in the form that llguidance takes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, words: Words) -> None:
        self.tokens = [one if len(one) <= _LONGEST_WORD else b"" for one in words.utf8]
        self.special_token_ids = sorted(words.special)
        self.eos_token_id = words.ends[0]
        self.tokenizer: LLTokenizer | None = None

    def __call__(self, text: str) -> Sequence[int]:
        """Token ids of a text. Only grammars that want their texts spelled in one way ask."""
        return [] if self.tokenizer is None else self.tokenizer.greedy_tokenize(text)


def _on_one_line(reason: str) -> str:
    # The rest of it shows places in the rules, which nobody has written like that.
    lines = [line.strip() for line in reason.replace("<non-verbose/>", "").splitlines()]
    text = " ".join(line for line in lines if line and not _is_drawing(line))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def _is_drawing(line: str) -> bool:
    """Whether a line of a reason shows the source, or points at it."""
    return not line.strip("^") or line.partition(" |")[0].isdecimal()
