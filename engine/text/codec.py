"""ChatCodec: what the text thread and those that encode use of a model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.api.client import ChatMessage
from engine.api.errors import InvalidRequestError
from engine.api.stream import Context
from engine.text.detokenizer import Detokenizer
from engine.text.job import num_bytes
from engine.text.vocabulary import Vocabulary


class Encoder(Protocol):
    """Makes prompts of chats: an `EncoderPool`. Its methods block, and any thread may call them."""

    def encode(self, messages: Sequence[ChatMessage], context: Context | None) -> list[int]: ...

    def common_prefix(self, messages: Sequence[ChatMessage]) -> list[int]: ...


class ChatCodec:
    """Chats to token ids by an encoder, elsewhere; token ids to text by a vocabulary, here.

    The methods that encode are called from any thread; the others, and the detokenizers, from one.

    Args:
        model_key: `LoadedModel.key`.
    """

    def __init__(self, vocabulary: Vocabulary, encoder: Encoder, model_key: str) -> None:
        self.model_key = model_key
        self._vocabulary = vocabulary
        self._encoder = encoder

    def encode(self, messages: Sequence[ChatMessage], context: Context | None) -> list[int]:
        """As `ChatEncoder.encode`."""
        return self._encoder.encode(messages, context)

    def common_prefix(self, messages: Sequence[ChatMessage]) -> list[int]:
        """As `ChatEncoder.common_prefix`."""
        return self._encoder.common_prefix(messages)

    def check_size(self, messages: Sequence[ChatMessage], max_model_len: int) -> None:
        """Check that messages may fit, before anything is spent on encoding them.

        No token stands for more bytes than the longest one. A normalizer or a template may drop
        some of the text, so that this is a limit of its own, if one that no usual text comes to.

        Raises:
            InvalidRequestError: they have more bytes than so many of the longest tokens.
        """
        size, longest = num_bytes(messages), self._vocabulary.longest
        most = max_model_len * longest
        if size > most:
            raise InvalidRequestError(
                f"the prompt has {size} bytes of text; at most {most} are allowed, {longest} (of "
                f"the longest token) for each token of the context of {max_model_len}",
                "prompt",
            )

    def check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Check that token ids are in the vocabulary.

        Raises:
            InvalidRequestError: one is not; `param` is the field's name.
        """
        last = self._vocabulary.size - 1
        for i, token_id in enumerate(token_ids):
            if type(token_id) is not int or not 0 <= token_id <= last:
                raise InvalidRequestError(
                    f"{param}[{i}] is {token_id!r}; it must be a token id from 0 to {last}", param
                )

    def detokenizer(self) -> Detokenizer:
        """A new one, for one reply."""
        return Detokenizer(self._vocabulary)

    def utf8(self, token_id: int) -> bytes:
        """Bytes of one token by itself (`Vocabulary.utf8`)."""
        return self._vocabulary.utf8(token_id)
