"""A tokenizer, one token a character, that does what the text which it encodes tells it to."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Panic(BaseException):
    """As tokenizers raise where Rust panics: no Exception."""


class UnrulyTokenizer:
    """Of `engine.text.vocabulary.Tokenizer`; it is pickled by its attributes.

    Args:
        at_once: what is wrong with every text, also with those that are tried at the start.
    """

    added_tokens_decoder: Mapping[int, Any] = {}

    def __init__(self, at_once: str = "", chat_template: str | None = None) -> None:
        self.at_once = at_once
        self.chat_template = chat_template

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(128)}

    def convert_ids_to_tokens(self, token_id: int, /) -> str:
        return chr(token_id)

    def encode(self, text: str, /, *, add_special_tokens: bool) -> list[int]:
        self._obey(text + self.at_once)
        return [ord(char) % 128 for char in text]

    def decode(self, token_ids: list[int], /, **_: bool) -> str:
        text = "".join(map(chr, token_ids))
        if "\a" in text:
            raise Panic("the decoder panicked")
        return text

    def apply_chat_template(self, conversation: list[dict[str, str]], /, **_: bool) -> str:
        self._obey("".join(message["content"] for message in conversation))
        return "".join(message["content"] for message in conversation)

    def _obey(self, text: str) -> None:
        if "panic" in text:
            raise Panic("retry-limit-in-match over\nat line 1")
        if "raise" in text:
            raise TypeError("no such thing")
        if "hang" in text:
            signal.pause()
        if text.startswith("once "):
            killed = Path(text.split()[1])
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        if "crash" in text:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "die" in text:
            os.kill(os.getpid(), signal.SIGKILL)
        if "abort" in text:  # as Rust where there is no memory left
            os.write(
                2, b"memory allocation of 99 bytes failed\nnote: run with `RUST_BACKTRACE=1`\n"
            )
            os.abort()
        if "overflow" in text:  # of its stack
            os.kill(os.getpid(), signal.SIGSEGV)
        if "grow" in text:
            bytearray(1 << 40)
        if "print" in text:
            print("something in passing", flush=True)
