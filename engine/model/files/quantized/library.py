"""Library: imports the libraries of checkpoint formats, which a plain installation lacks."""

from __future__ import annotations

import importlib
from typing import Any

from engine.api.errors import ModelError, cause_of


def library(module: str, extra: str, format_name: str) -> Any:
    """Import a module of a library.

    Args:
        extra: batchdeck's extra that installs the library.
        format_name: the format that needs the library, for the message.

    Raises:
        ModelError: the library is not installed, or cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise ModelError(
                f"checkpoints in {format_name} need the extra {extra}: "
                f"pip install 'batchdeck[{extra}]'"
            ) from None
        raise ModelError(f"{module} cannot be imported: {cause_of(error)}") from error
