"""Sides: what follows a reply to a structure, ours and its peer."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from engine.api.structure import Structure
from engine.structure.compiler import Compiler
from engine.structure.lead import NO_LEAD
from engine.structure.matcher import Matcher
from engine.structure.rules import write
from engine.structure.words import Words


class Follower(Protocol):
    """A reply that is followed by one of both."""

    def mask(self) -> np.ndarray[Any, Any]:
        """The tokens that it allows next: [words] int32."""
        ...

    def accept(self, token: int) -> None: ...


class Side(Protocol):
    """One of both, with a vocabulary."""

    def compile(self, stated: dict[str, Any]) -> Callable[[], Follower]:
        """A function that begins a reply with a structure.

        Raises:
            Exception: there is none, or it is refused.
        """
        ...


class Ours:
    """llguidance, as the engine uses it."""

    def __init__(self, words: Words) -> None:
        from llguidance import LLExecutor

        self._compiler = Compiler(words)
        self._executor = LLExecutor(1)
        self._bits = np.empty((1, -(-len(words.utf8) // 32)), np.int32)

    def compile(self, stated: dict[str, Any]) -> Callable[[], Follower]:
        structure = Structure.of(stated)
        grammar = self._compiler.compile(write(structure, NO_LEAD), structure.kind)
        return lambda: _Ours(grammar.matcher(), self._bits, self._executor)


class _Ours:
    def __init__(self, matcher: Matcher, bits: Any, executor: Any) -> None:
        self._matcher, self._bits, self._executor = matcher, bits, executor

    def mask(self) -> np.ndarray[Any, Any]:
        Matcher.fill([self._matcher], self._bits, self._executor)
        bits: np.ndarray[Any, Any] = self._bits[0]
        return bits

    def accept(self, token: int) -> None:
        self._matcher.accept([token])


class Theirs:
    """xgrammar, with nothing kept between structures, and one thread."""

    def __init__(self, words: Words) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        info = xgrammar.TokenizerInfo(
            list(words.utf8), vocab_size=len(words.utf8), stop_token_ids=list(words.ends)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bits = np.empty((1, -(-len(words.utf8) // 32)), np.int32)

    def compile(self, stated: dict[str, Any]) -> Callable[[], Follower]:
        (kind, value), *_ = stated.items()
        if kind == "json_schema":
            compiled = self._compiler.compile_json_schema(json.dumps(value))
        elif kind == "json_object":
            compiled = self._compiler.compile_json_schema('{"type": "object"}')
        elif kind == "choice":
            choices = " | ".join(map(json.dumps, value))
            compiled = self._compiler.compile_grammar(f"root ::= {choices}")
        else:
            compiled = self._compiler.compile_regex(value)
        return lambda: _Theirs(self._xgrammar.GrammarMatcher(compiled), self._bits)


class _Theirs:
    def __init__(self, matcher: Any, bits: Any) -> None:
        self._matcher, self._bits = matcher, bits

    def mask(self) -> np.ndarray[Any, Any]:
        # It leaves the mask as it is where everything is allowed.
        if not self._matcher.fill_next_token_bitmask(self._bits):
            self._bits.fill(-1)
        bits: np.ndarray[Any, Any] = self._bits[0]
        return bits

    def accept(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            raise RuntimeError(f"token {token} is not accepted")


SIDES: dict[str, Callable[[Words], Side]] = {"llguidance": Ours}
if importlib.util.find_spec("xgrammar") is not None:
    SIDES["xgrammar"] = Theirs
