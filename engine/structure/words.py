"""Words: a vocabulary, as grammars need it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """The bytes of each token of a model.

    Attributes:
        utf8: bytes of each token by id, one for each logit of the model; empty for an unused id,
            which no grammar allows.
        special: ids that text never encodes to; a grammar names them by number.
        ends: ids that end an output, at least one. They are special too.
    """

    utf8: Sequence[bytes]
    special: Collection[int]
    ends: Sequence[int]

    @staticmethod
    def of(
        utf8: Sequence[bytes], special: Collection[int], ends: Collection[int], size: int
    ) -> Words:
        """Words of a model with logits for `size` tokens, whose tokenizer may have fewer or more.

        Raises:
            ValueError: it has no token that ends an output.
        """
        known = [token for token in sorted(ends) if token < size]
        if not known:
            raise ValueError("the model states no token that ends a reply")
        words = [*utf8[:size], *[b""] * (size - len(utf8))]
        return Words(words, {*known, *(token for token in special if token < size)}, known)
