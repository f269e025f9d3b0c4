"""Compiler: compiles grammars from the rules of `engine.structure.rules`, within bounds."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from engine.api.errors import InvalidRequestError, cause_of
from engine.structure.grammar import Grammar
from engine.structure.words import Words

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Bounds of llguidance. It spends a unit of fuel in some 20 to 70 ns: 100 ms to compile, and 10 ms
# for a mask. A lexer state has 1 to 2 KB, and each reply has its own. An optional property is 4
# items of the row after the brace: 1,500 take 12 ms for their most expensive mask, and 2,000 fit.
_LIMITS = {
    "initial_lexer_fuel": 2_000_000,
    "step_lexer_fuel": 150_000,
    "max_items_in_row": 8_000,
    "step_max_items": 50_000,
    "max_lexer_states": 30_000,
    "max_grammar_size": 200_000,
}
# llguidance cannot hold longer tokens. They are empty there, so that no grammar allows them.
_LONGEST_WORD = 1000
_LONGEST_REASON = 300
# llguidance recurses along references and rules, with 4 to 17 KB of stack for each. No source of
# `MAX_STRUCTURE_BYTES` needed more than 64 MiB. 8 MiB overflowed at 2,496 references, and the 2 MiB
# of a thread where stacks are unlimited at 614: that kills the process.
STACK_BYTES = 128 << 20
# The priority of this thread is low, because a source may take all of its 10 s while a server's
# other threads run.
_NICENESS = 10
_starting = threading.Lock()


class Compiler:
    """Compiles grammars for one vocabulary. Any thread may use it; the interpreter's lock is free
    meanwhile.

    Each grammar is compiled on a thread of its own, both in the process that tries it and in the
    program, so that both compile on a stack of the same size.
    """

    def __init__(self, words: Words) -> None:
        # Imported while a model is loaded, because the first screen waits for imports.
        from llguidance import LLTokenizer

        self._ends = frozenset(words.ends)
        speller = _Speller(words)
        self._tokenizer = LLTokenizer(speller, eos_token=list(words.ends))  # type: ignore[arg-type]
        speller.tokenizer = self._tokenizer

    def compile(self, rules: str, kind: str) -> Grammar:
        """Compile a grammar, ready for its first token.

        Args:
            rules: the output of `engine.structure.rules.write`.
            kind: kind of the structure, for the error.

        Raises:
            InvalidRequestError: the grammar is wrong, too large, or allows nothing at all.
        """
        made: list[LLMatcher] = []
        _on_own_thread(lambda: made.append(self._matcher(rules)))
        (matcher,) = made
        if not matcher.is_error():
            return Grammar(matcher, self._ends)
        reason = matcher.get_error()
        if reason.startswith("NoExtension"):
            reason = "no text has this structure"
        raise InvalidRequestError(
            f"structure.{kind} cannot be followed: {_on_one_line(reason)}", "structure"
        )

    def _matcher(self, rules: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False, **_LIMITS)  # type: ignore[arg-type]
        matcher = LLMatcher(self._tokenizer, rules, log_level=0, limits=limits)
        if not matcher.is_error():
            # Much of a lexer is built at its first use. Copies inherit it.
            matcher.compute_bitmask()
        return matcher


def _on_own_thread(call: Callable[[], None]) -> None:
    """Call a function on a thread with `STACK_BYTES`, and wait for it.

    Raises:
        BaseException: whatever `call` raises.
    """
    raised: list[BaseException] = []

    def run() -> None:
        if sys.platform == "linux":  # where this is the niceness of one thread
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            call()
        except BaseException as error:  # a panic is not an Exception
            raised.append(error)

    thread = threading.Thread(target=run, name="engine-compiling", daemon=True)
    with _starting:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            text = f"structure cannot be compiled now: {cause_of(error)}"
            raise InvalidRequestError(text, "structure") from None
        finally:
            threading.stack_size(before)
    thread.join()
    if raised:
        raise raised[0]


class _Speller:
    """A vocabulary in the interface of llguidance."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, words: Words) -> None:
        self.tokens = [one if len(one) <= _LONGEST_WORD else b"" for one in words.utf8]
        self.special_token_ids = sorted(words.special)
        self.eos_token_id = words.ends[0]
        self.tokenizer: LLTokenizer | None = None

    def __call__(self, text: str) -> Sequence[int]:
        """Encode a text. Only grammars with a fixed spelling of their texts call this."""
        return [] if self.tokenizer is None else self.tokenizer.greedy_tokenize(text)


def _on_one_line(reason: str) -> str:
    # The rest shows places in generated rules, which the user did not write.
    reason = reason.replace("<non-verbose/>", "").partition("<backtrace>")[0]
    lines = [line.strip() for line in reason.splitlines()]
    text = " ".join(line for line in lines if line and not _is_drawing(line))
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def _is_drawing(line: str) -> bool:
    """Whether a line of a reason shows the source, or points at it."""
    return not line.strip("^") or line.partition(" |")[0].isdecimal()
