"""Refusal: the log line for a request that can never be served."""

from __future__ import annotations

import logging

from engine.api.client import Submission
from engine.api.errors import InvalidRequestError

log = logging.getLogger(__name__)


def log_refusal(submission: Submission, error: InvalidRequestError) -> None:
    """Log why a request is refused. The record has the submission, for screens to name it."""
    log.warning(
        "refuse request %s of %s: %s",
        submission.request_id,
        submission.origin.user,
        error.message,
        extra={"submission": submission, "refusal": error.message},
    )
