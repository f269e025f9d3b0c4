"""Grammar: a structure compiled for one model, shared by many replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine.api.errors import InvalidRequestError
from engine.structure.matcher import Matcher

if TYPE_CHECKING:
    from llguidance import LLMatcher

_NONE: Mapping[int, float] = MappingProxyType({})


class Grammar:
    """The initial state of every reply with a structure. Immutable, so any thread may use it.

    Args:
        matcher: llguidance's matcher, which must not be advanced.

    Attributes:
        ends: token ids that end an output.
    """

    def __init__(self, matcher: LLMatcher, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self.ends = ends

    def matcher(
        self, token_ids: Sequence[int] = (), barred: Mapping[int, float] = _NONE
    ) -> Matcher:
        """Make the matcher of a reply.

        Args:
            token_ids: the reply so far.
            barred: see `Matcher`.
        """
        matcher = Matcher(self._matcher.deep_copy(), self.ends, barred)
        matcher.accept(token_ids)
        return matcher

    def behind(self, token_ids: Sequence[int]) -> Grammar:
        """The grammar of the rest of a reply.

        Raises:
            InvalidRequestError: the reply so far does not follow this one.
        """
        if not token_ids:
            return self
        matcher = self._matcher.deep_copy()
        if not matcher.consume_tokens(list(token_ids)):
            raise InvalidRequestError(
                "structure does not fit the reply that is to be continued", "structure"
            )
        return Grammar(matcher, self.ends)
