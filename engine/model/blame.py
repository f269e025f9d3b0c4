"""Blame: turns what a library raises over a model's files into a ModelError that names them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine.api.errors import EngineError, ModelError, cause_of

logger = logging.getLogger(__name__)


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn whatever is raised inside into a ModelError that says `what`, and then the cause.

    This holds for BaseException, because a panic of a library in Rust is no Exception. Only what
    ends a thread or a program on purpose passes, and errors of ours, which say what they mean.
    """
    try:
        yield
    except (EngineError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        logger.info("%s", what, exc_info=True)
        raise ModelError(f"{what}: {cause_of(error)}") from error
