"""Words: a vocabulary as grammars see it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """What each token of a model says.

    Attributes:
        utf8: the bytes of each token by id, one for each logit of the model; empty for an id that
            stands for nothing, which no grammar allows.
        special: ids that no text becomes; a grammar names them by number.
        ends: ids that end an output, at least one. They are special too.
    """

    utf8: Sequence[bytes]
    special: Collection[int]
    ends: Sequence[int]

    @staticmethod
    def of(
        utf8: Sequence[bytes], special: Collection[int], ends: Collection[int], size: int
    ) -> Words:
        """The words of a model with logits for `size` tokens, whose tokenizer may know fewer or
        more.

        Raises:
            ValueError: it has no token that ends an output.
        """
        known = [token for token in sorted(ends) if token < size]
        if not known:
            raise ValueError("the model states no token that ends a reply")
        words = [*utf8[:size], *[b""] * (size - len(utf8))]
        return Words(words, {*known, *(token for token in special if token < size)}, known)
