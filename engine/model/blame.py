"""Blame: what a model's files make a library raise, told as a ModelError that names them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine.api.errors import EngineError, ModelError, cause_of

logger = logging.getLogger(__name__)


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Make whatever is raised inside a ModelError: `what`, then the cause.

    A panic of a library in Rust is no Exception, so only what ends a thread or a program on purpose
    passes, and errors of ours, which say what they mean.
    """
    try:
        yield
    except (EngineError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        logger.info("%s", what, exc_info=True)
        raise ModelError(f"{what}: {cause_of(error)}") from error
