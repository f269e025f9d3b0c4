from __future__ import annotations

from tests.engine.text.conftest import byte_level as byte_level
