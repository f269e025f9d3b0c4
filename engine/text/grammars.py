"""Grammars: the requested structures of a model, compiled once each."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection

from engine.api.errors import InvalidRequestError, UnavailableError, cause_of
from engine.api.structure import Structure
from engine.native import trim_heap
from engine.structure.compiler import Compiler
from engine.structure.grammar import Grammar
from engine.structure.lead import Lead
from engine.structure.words import Words
from engine.text.job import Encoder, StructureJob, WordsJob

log = logging.getLogger(__name__)

# Most take some 100 KB each, and the largest allowed ones some 50 MB.
MAX_GRAMMARS = 64


class Grammars:
    """A cache of one model's most recently used grammars. Any thread may call it.

    A source comes from a stranger, and may need more time or memory than there is, or crash the
    compiler's process. So it is first compiled in a separate process, which bounds both, and then
    in this one if that succeeds.

    Args:
        encoder: of the same model, in another process.
        special: ids that text never encodes to.
        ends: ids that end an output.
        size: number of the model's logits.

    Attributes:
        ends: as passed.
    """

    def __init__(
        self, encoder: Encoder, special: Collection[int], ends: Collection[int], size: int
    ) -> None:
        self.ends = frozenset(ends)
        self._encoder = encoder
        self._special = special
        self._ends = tuple(sorted(ends))
        self._size = size
        self._kept: OrderedDict[tuple[Structure, Lead], Grammar] = OrderedDict()
        self._lock = threading.Lock()
        self._compiler: Compiler | None = None
        self._making = threading.Lock()

    def prepare(self) -> None:
        """Make the compiler ready for the first structure; blocks.

        That takes 0.2 to 1.4 s and holds the interpreter's lock for some 0.3 s with a vocabulary of
        150,000 words, which is better spent right after loading than while the model serves many.
        If loading waited for it, loading would take up to a third longer. If the model is closed
        meanwhile, nothing is prepared.
        """
        try:
            if self._has_end:
                self._compiler_here()
        except UnavailableError:
            pass  # The model was closed, or could not be loaded.
        except BaseException as error:  # a panic is not an Exception
            # Each structure tries again, and then reports the error.
            log.warning("structures of replies cannot be compiled: %s", cause_of(error))

    def grammar(self, structure: Structure, lead: Lead) -> Grammar:
        """The grammar of replies with a structure after a lead; blocks.

        Raises:
            InvalidRequestError: it cannot be compiled, within bounds or at all.
            EngineError: the compiling process ended, or none can be started.
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
        rules = self._encoder.run(StructureJob(structure, lead, self._ends, self._size))
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
                words = self._encoder.run(WordsJob())
                self._compiler = Compiler(Words.of(words, self._special, self._ends, self._size))
                trim_heap()  # 40 MB of 262,144 words
            return self._compiler
