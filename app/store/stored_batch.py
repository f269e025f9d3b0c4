"""StoredBatch: requests of a file that are answered one by one, and how far they are."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from types import MappingProxyType


class BatchStatus(StrEnum):
    """Where a batch stands, in OpenAI's words."""

    VALIDATING = auto()
    FAILED = auto()
    IN_PROGRESS = auto()
    FINALIZING = auto()
    COMPLETED = auto()
    EXPIRED = auto()
    CANCELLING = auto()
    CANCELLED = auto()

    @property
    def is_end(self) -> bool:
        return not FOLLOWS[self]


# What may follow on each.
FOLLOWS: Mapping[BatchStatus, frozenset[BatchStatus]] = MappingProxyType(
    {
        BatchStatus.VALIDATING: frozenset(
            (BatchStatus.IN_PROGRESS, BatchStatus.FAILED, BatchStatus.CANCELLING)
        ),
        BatchStatus.IN_PROGRESS: frozenset((BatchStatus.FINALIZING, BatchStatus.CANCELLING)),
        BatchStatus.FINALIZING: frozenset((BatchStatus.COMPLETED, BatchStatus.EXPIRED)),
        BatchStatus.CANCELLING: frozenset((BatchStatus.CANCELLED,)),
        **dict.fromkeys(
            (
                BatchStatus.FAILED,
                BatchStatus.COMPLETED,
                BatchStatus.EXPIRED,
                BatchStatus.CANCELLED,
            ),
            frozenset[BatchStatus](),
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineError:
    """What is wrong with a file of requests: in OpenAI's words, and where."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of all answers; cached ones are of the input, reasoning ones of the output."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch. Times are seconds since the epoch.

    Attributes:
        number: in the order in which batches came.
        completion_window: as it was asked for.
        moments: when it came to each status that it has had.
        input: the id of the file that it reads.
        output, faults: the ids of the files with answers, and with answers that are errors; None
            before there are any, and where an ended batch has none.
        keep_seconds: how long those are kept.
        errors: what is wrong with the file that it was to read.
        total, completed, failed: requests, and how many have an answer, or an error.
        expires: when what is unanswered becomes an error.
        ended: None while it has not.
    """

    number: int
    id: str
    user: str
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str] | None
    status: BatchStatus
    moments: Mapping[str, float]
    input: str
    output: str | None
    faults: str | None
    keep_seconds: float
    errors: tuple[LineError, ...]
    total: int
    completed: int
    failed: int
    tokens: TokenCounts
    created: float
    expires: float
    ended: float | None


def new_batch_id() -> str:
    return f"batch_{uuid.uuid4().hex}"
