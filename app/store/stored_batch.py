"""StoredBatch: requests of a file that are answered one by one, and their progress."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from types import MappingProxyType


class BatchStatus(StrEnum):
    """The state of a batch, in OpenAI's words."""

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


# The allowed transitions from each status.
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
    """An error in a file of requests, in OpenAI's words, and its place."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of all answers; cached ones are part of the input, reasoning ones of the output."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch. Times are seconds since the epoch.

    Attributes:
        number: in order of creation.
        completion_window: as requested.
        moments: when it entered each status that it has had.
        input: the id of its input file.
        output, faults: the ids of the files with answers, and with errors; None before there are
            any, and if an ended batch has none.
        keep_seconds: how long those are kept.
        errors: the errors in its input file.
        total, completed, failed: the number of requests, of answers, and of errors.
        expires: when unanswered requests become errors.
        ended: None while it is unfinished.
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
