"""Driver: what GPUs there are and how they do, and which of them CUDA shows, without CUDA."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

log = logging.getLogger(__name__)

VARIABLE = "CUDA_VISIBLE_DEVICES"

_INDEX = re.compile(r"\s*\+?([0-9]{1,9})")
_KINDS = ("GPU-", "MIG-")


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

    def parts(self) -> list[Any]:
        """Handles of the GPUs, with the MIG instances in place of one that is partitioned."""
        return [part for gpu in self.gpus for part in self.instances(gpu) or [gpu]]

    def instances(self, gpu: Any) -> list[Any]:
        """Handles of the MIG instances of a GPU. There are none unless it is partitioned."""
        places = range(self.ask("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)
        found = (self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, place) for place in places)
        return [handle for handle in found if handle is not None]


def visible_gpus(uuids: Sequence[str], environment: Mapping[str, str]) -> tuple[int, ...]:
    """The places in `uuids` of cuda:0, cuda:1 and so on, by `CUDA_VISIBLE_DEVICES`.

    Without this variable all GPUs are visible. It is a list with commas, of indices or of UUIDs as
    the driver writes them; of a UUID as much is enough as begins no other. The list ends before the
    first entry that is negative, of another kind or no GPU. It shows none if it is empty or names
    one twice (CUDA Programming Guide, "CUDA Environment Variables").

    Indices, and GPUs without the variable, are in CUDA's order. With `CUDA_DEVICE_ORDER=PCI_BUS_ID`
    this is the driver's. Otherwise it is the fastest first, by a rule that only CUDA knows. The
    driver's order is assumed then too, which is right where the GPUs are of one model.

    Args:
        uuids: of the GPUs in the driver's order, and of the MIG instances in place of one that is
            partitioned.
        environment: the variables of the process.
    """
    stated = environment.get(VARIABLE)
    if stated is None:
        return tuple(range(len(uuids)))
    kind = stated[:4] if stated.startswith(_KINDS) else ""
    places: list[int] = []
    for entry in stated.split(","):
        place = _by_uuid(entry, kind, uuids) if kind else _by_index(entry, len(uuids))
        if place is None:
            break
        if place in places:
            return ()
        places.append(place)
    return tuple(places)


def _by_index(entry: str, count: int) -> int | None:
    # As C reads a number: what follows its digits does not matter.
    digits = _INDEX.match(entry)
    return int(digits[1]) if digits and int(digits[1]) < count else None


def _by_uuid(entry: str, kind: str, uuids: Sequence[str]) -> int | None:
    found = [place for place, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return found[0] if entry.startswith(kind) and len(found) == 1 else None
