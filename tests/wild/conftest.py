from __future__ import annotations

from tests.app.conftest import own_process as own_process
from tests.engine.text.conftest import byte_level as byte_level
