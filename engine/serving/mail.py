"""Mail: a message to the engine's thread, either a command for the core or the model to load
next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from engine.api.client import LoadRequest

if TYPE_CHECKING:
    from engine.core.core import EngineCore

Mail: TypeAlias = "Callable[[EngineCore], None] | LoadRequest"
