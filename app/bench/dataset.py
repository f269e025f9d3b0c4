"""Dataset: recorded requests, read from a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from engine.api.errors import InvalidRequestError

Encode = Callable[[str], list[int]]


class DatasetError(Exception):
    """A dataset cannot be read; the message has the place and the allowed form."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a dataset.

    Attributes:
        arrival: seconds after the arrival of the first request.
        prompt_tokens, output_tokens: the lengths of prompt and output.
        max_tokens: the output length that the request announces, at least `output_tokens`.
        prompt: token ids of the prompt, if the file has its text. If empty, a prompt of
            `prompt_tokens` is made up.
        user: who sends the request, for fair share.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    prompt: tuple[int, ...] = ()
    user: str = ""
    priority: int = 0


class _Line(BaseModel):
    """A line of a dataset in our own form, JSON lines."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    arrival: float = Field(0.0, ge=0, allow_inf_nan=False)
    prompt_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=1)
    max_tokens: int | None = Field(None, ge=1)
    user: str = ""
    priority: int = 0

    def ask(self) -> Ask:
        announced = self.max_tokens or self.output_tokens
        if announced < self.output_tokens:
            raise ValueError(
                f"max_tokens is {announced}; it must be at least output_tokens "
                f"({self.output_tokens})"
            )
        return Ask(
            self.arrival,
            self.prompt_tokens,
            self.output_tokens,
            announced,
            user=self.user,
            priority=self.priority,
        )


class _AzureRow(BaseModel):
    """A row of the Azure LLM inference traces (Splitwise, ISCA'24; DynamoLLM, HPCA'25)."""

    model_config = ConfigDict(frozen=True)

    TIMESTAMP: datetime
    ContextTokens: int = Field(ge=1)
    GeneratedTokens: int = Field(ge=1)

    @field_validator("TIMESTAMP", mode="before")
    @classmethod
    def _to_microseconds(cls, value: Any) -> Any:
        """Cut the seconds to six decimals: the traces have seven, one more than a datetime."""
        whole, point, decimals = str(value).partition(".")
        head = len(decimals) - len(decimals.lstrip("0123456789"))
        return whole + point + decimals[:6] + decimals[head:]

    def ask(self) -> Ask:
        return Ask(
            self.TIMESTAMP.timestamp(),
            self.ContextTokens,
            self.GeneratedTokens,
            self.GeneratedTokens,
        )


class _Message(BaseModel):
    value: str


class _Conversation(BaseModel):
    """An entry of ShareGPT. Its first exchange is the request, as in other benchmarks."""

    conversations: list[_Message]


def read_dataset(path: Path, encode: Encode | None = None) -> list[Ask]:
    """The requests of a file in order of arrival; the first arrives at 0.

    The first character of the file selects one of three forms:
    - `{`: JSON lines with `prompt_tokens` and `output_tokens`, and optionally `arrival` (seconds),
      `max_tokens`, `user` and `priority`.
    - `[`: ShareGPT's JSON. The first message of each conversation is the prompt, and the second
      gives the length of the output. All arrive at once. Conversations with fewer than two
      messages, or in which one of these two is blank, are left out.
    - Anything else: CSV with the columns `TIMESTAMP`, `ContextTokens` and `GeneratedTokens` of the
      Azure LLM inference traces.

    Args:
        encode: returns the token ids of a prompt with one message, and may refuse a message.
            ShareGPT needs it, because that form states no lengths.

    Raises:
        DatasetError: the file cannot be read, or a line of it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DatasetError(f"{path}: {reason}") from None
    begins = text.lstrip()[:1]
    if not begins:
        raise DatasetError(f"{path}: it is empty; at least one request is needed")
    if begins == "{":
        asks = _read_lines(path, text)
    elif begins == "[":
        asks = _read_sharegpt(path, text, encode)
    else:
        asks = _read_azure(path, text)
    ordered = sorted(asks, key=lambda ask: ask.arrival)
    if not ordered:
        raise DatasetError(f"{path}: it has no request; at least one is needed")
    first = ordered[0].arrival
    return [replace(ask, arrival=ask.arrival - first) for ask in ordered]


def _read_lines(path: Path, text: str) -> Iterator[Ask]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield _Line.model_validate_json(line).ask()
            except ValueError as error:
                raise _wrong(f"{path}, line {number}", error) from None


def _read_azure(path: Path, text: str) -> Iterator[Ask]:
    rows = csv.DictReader(text.splitlines())
    wanted = tuple(_AzureRow.model_fields)
    if not set(wanted) <= set(rows.fieldnames or ()):
        raise DatasetError(
            f"{path}, line 1: the columns are {', '.join(rows.fieldnames or ('none',))}; "
            f"they must have {', '.join(wanted)}"
        )
    for row in rows:
        try:
            yield _AzureRow.model_validate(row).ask()
        except ValueError as error:
            raise _wrong(f"{path}, line {rows.line_num}", error) from None


def _read_sharegpt(path: Path, text: str, encode: Encode | None) -> Iterator[Ask]:
    if encode is None:
        raise DatasetError(
            f"{path}: it holds texts, and there is no tokenizer here to count their tokens with; "
            "a model must be loaded"
        )
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise DatasetError(f"{path}: {error}") from None
    for number, entry in enumerate(entries, 1):
        try:
            messages = _Conversation.model_validate(entry).conversations
        except ValidationError as error:
            raise _wrong(f"{path}, conversation {number}", error) from None
        if len(messages) < 2 or not messages[0].value.strip() or not messages[1].value.strip():
            continue
        asked, answer = messages[0].value, messages[1].value
        try:
            prompt = tuple(encode(asked))
            # Both counts include the chat template's frame around a message, so it cancels out.
            count = max(len(encode(asked + answer)) - len(prompt), 1)
        except InvalidRequestError as error:
            raise DatasetError(f"{path}, conversation {number}: {error.message}") from None
        yield Ask(0.0, len(prompt), count, count, prompt)


def _wrong(place: str, error: ValueError) -> DatasetError:
    """An error that states the first fault in one sentence."""
    if not isinstance(error, ValidationError):
        return DatasetError(f"{place}: {error}")
    detail = error.errors()[0]
    field = ".".join(map(str, detail["loc"]))
    if detail["type"] == "missing":
        return DatasetError(f"{place}: {field} is missing; it must be stated")
    if detail["type"] == "extra_forbidden":
        allowed = ", ".join(_Line.model_fields)
        return DatasetError(f"{place}: {field} is not a field of a request; allowed are {allowed}")
    rule = detail["msg"].removeprefix("Input ")
    if not field:
        return DatasetError(f"{place}: {rule}")
    return DatasetError(f"{place}: {field} is {detail['input']!r}; it {rule}")
