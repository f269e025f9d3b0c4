"""Blame: turns a library's errors over a model's files into a ModelError that names them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine.api.errors import EngineError, ModelError, cause_of

logger = logging.getLogger(__name__)


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn any error inside into a ModelError that says `what`, followed by the cause.

    This includes BaseException, because a panic of a Rust library is not an Exception. Only
    deliberate ends of a thread or program pass, and our own errors, which explain themselves.
    """
    try:
        yield
    except (EngineError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        logger.info("%s", what, exc_info=True)
        raise ModelError(f"{what}: {cause_of(error)}") from error
