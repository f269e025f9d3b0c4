"""Driver: asks NVIDIA's driver, by NVML, what GPUs there are and how they do."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


class Driver:
    """NVIDIA's driver. Without one, or with one that is broken, there are no GPUs; no method
    raises.

    Attributes:
        gpus: handles of the GPUs, in the driver's order.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self.gpus: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # no package, no library, no driver, or one that is broken
            log.debug("no NVIDIA GPU: %s", error)
            return
        self._nvml = pynvml
        count = self.ask("nvmlDeviceGetCount") or 0
        handles = (self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(count))
        self.gpus = [handle for handle in handles if handle is not None]

    def close(self) -> None:
        if self._nvml is not None:
            self.ask("nvmlShutdown")
            self._nvml, self.gpus = None, []

    def constant(self, name: str) -> Any:
        """A constant of NVML, which some questions want."""
        return getattr(self._nvml, name)

    def ask(self, question: str, *arguments: Any) -> Any:
        """The answer of a function of NVML, or None if it has none. MIG instances and laptops do
        not answer all questions."""
        try:
            return getattr(self._nvml, question)(*arguments)
        except self._nvml.NVMLError as error:
            log.debug("%s: %s", question, error)
            return None

    def name(self, handle: Any) -> str:
        return str(self.ask("nvmlDeviceGetName", handle) or "GPU")

    def uuid(self, handle: Any) -> str:
        """The UUID of a GPU (`GPU-…`) or a MIG instance (`MIG-…`); empty if it is not told."""
        return str(self.ask("nvmlDeviceGetUUID", handle) or "")

    def instances(self, gpu: Any) -> list[Any]:
        """Handles of the MIG instances of a GPU. There are none unless it is partitioned."""
        places = range(self.ask("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)
        found = (self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, place) for place in places)
        return [handle for handle in found if handle is not None]
