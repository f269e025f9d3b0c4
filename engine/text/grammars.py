"""Grammars: the structures that a model has been asked for, compiled once each."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Protocol

from engine.api.errors import InvalidRequestError, UnavailableError, cause_of
from engine.api.structure import Structure
from engine.structure.compiler import Compiler
from engine.structure.grammar import Grammar
from engine.structure.lead import Lead
from engine.structure.words import Words

log = logging.getLogger(__name__)

# Most have some 100 KB each, and the largest that are allowed some 50 MB.
MAX_GRAMMARS = 64


class Trial(Protocol):
    """Compiles elsewhere, as `EncoderPool` does; its methods block."""

    def words(self) -> list[bytes]: ...

    def try_structure(
        self, structure: Structure, lead: Lead, ends: Sequence[int], size: int
    ) -> str: ...


class Grammars:
    """The grammars of one model, those that were used last kept. Any thread may call it.

    A source comes from a stranger, and may take the compiler more time or memory than there is, or
    end its process. So it is compiled in a process of its own first, which bounds both, and in this
    one once that has come to an end.

    Args:
        trial: of the same model.
        special: ids that no text becomes.
        ends: ids that end an output.
        size: how many logits the model has.

    Attributes:
        ends: as given.
    """

    def __init__(
        self, trial: Trial, special: Collection[int], ends: Collection[int], size: int
    ) -> None:
        self.ends = frozenset(ends)
        self._trial = trial
        self._special = special
        self._ends = tuple(sorted(ends))
        self._size = size
        self._kept: OrderedDict[tuple[Structure, Lead], Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self._compiler: Compiler | None = None
        self._making = threading.Lock()

    def prepare(self) -> None:
        """Make the compiler ready for the first structure; blocks.

        That takes 0.2 to 1.4 s and holds the interpreter's lock for some 0.3 s where a vocabulary
        has 150,000 words, which is better spent as soon as a model is loaded than while it serves
        many. A loading that waited for it would take up to a third longer. It is tried no more if
        the model is closed meanwhile.
        """
        try:
            if self._has_end:
                self._compiler_here()
        except UnavailableError:
            pass  # The model was closed, or could not be loaded.
        except BaseException as error:  # a panic is no Exception
            # It is tried again for each structure, and the error is told then.
            log.warning("structures of replies cannot be compiled: %s", cause_of(error))

    def grammar(self, structure: Structure, lead: Lead) -> Grammar:
        """The grammar of replies that have a structure behind a lead; blocks.

        Raises:
            InvalidRequestError: it cannot be compiled, within bounds or at all.
            EngineError: the process that compiles ended, or none can be started.
        """
        key = structure, lead
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        if not self._has_end:
            raise InvalidRequestError(
                "structure is stated, and the model has no token that ends a reply; ask another "
                "model",
                "structure",
            )
        rules = self._trial.try_structure(structure, lead, self._ends, self._size)
        grammar = self._compiler_here().compile(rules, structure.kind)
        with self._lock:
            self._kept[key] = grammar
            while len(self._kept) > MAX_GRAMMARS:
                self._kept.popitem(last=False)
        return grammar

    @property
    def _has_end(self) -> bool:
        return any(token < self._size for token in self._ends)

    def _compiler_here(self) -> Compiler:
        with self._making:
            if self._compiler is None:
                words = self._trial.words()
                self._compiler = Compiler(Words.of(words, self._special, self._ends, self._size))
            return self._compiler
