"""TokenCounter: counts the tokens of a text that is not asked yet."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from engine.api.errors import UnavailableError
from engine.text.codec import ChatCodec


class TokenCounter:
    """Counts with the tokenizer of the model that is served, in the processes that encode prompts.

    Attributes:
        codec: of the model that is served; None while none is.
    """

    def __init__(self) -> None:
        self.codec: ChatCodec | None = None

    def count(self, text: str) -> Future[int]:
        """As `EngineClient.count_tokens`."""
        future: Future[int] = Future()
        if (codec := self.codec) is None:
            future.set_exception(UnavailableError("no model is loaded"))
            return future
        # A thread for each: it waits for a process, and nobody counts often.
        arguments = (codec, text, future)
        threading.Thread(target=_count, args=arguments, name="engine-count", daemon=True).start()
        return future


def _count(codec: ChatCodec, text: str, future: Future[int]) -> None:
    try:
        number = len(codec.encode_text(text, is_whole=False))
    except BaseException as error:  # the model's own code may raise anything
        future.set_exception(error)
    else:
        future.set_result(number)
