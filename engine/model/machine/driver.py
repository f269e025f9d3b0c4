"""Driver: GPUs, their state, and which of them CUDA shows, without using CUDA."""

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
    """NVIDIA's driver. Without a working one there are no GPUs; no method raises.

    Attributes:
        gpus: handles of the GPUs, in the driver's order.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self.gpus: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # no package, no library, no driver, or a broken one
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
        """A constant of NVML, for the arguments of some functions."""
        return getattr(self._nvml, name)

    def ask(self, question: str, *arguments: Any) -> Any:
        """Call a function of NVML; None if it fails. MIG instances and laptops do not support all
        functions.
        """
        try:
            return getattr(self._nvml, question)(*arguments)
        except self._nvml.NVMLError as error:
            log.debug("%s: %s", question, error)
            return None

    def name(self, handle: Any) -> str:
        return str(self.ask("nvmlDeviceGetName", handle) or "GPU")

    def uuid(self, handle: Any) -> str:
        """The UUID of a GPU (`GPU-…`) or a MIG instance (`MIG-…`); empty if unknown."""
        return str(self.ask("nvmlDeviceGetUUID", handle) or "")

    def parts(self) -> list[Any]:
        """Handles of the GPUs, with MIG instances in place of a partitioned GPU."""
        return [part for gpu in self.gpus for part in self.instances(gpu) or [gpu]]

    def instances(self, gpu: Any) -> list[Any]:
        """Handles of a GPU's MIG instances; none unless it is partitioned."""
        places = range(self.ask("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0)
        found = (self.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, place) for place in places)
        return [handle for handle in found if handle is not None]


def visible_gpus(uuids: Sequence[str], environment: Mapping[str, str]) -> tuple[int, ...]:
    """Indices in `uuids` of cuda:0, cuda:1 and so on, by `CUDA_VISIBLE_DEVICES`.

    Without this variable all GPUs are visible. It is a comma-separated list of indices, or of UUIDs
    as the driver writes them; an unambiguous prefix of a UUID suffices. The list ends before the
    first entry that is negative, of another kind or not a GPU. It is empty if the variable is empty
    or names a GPU twice (CUDA Programming Guide, "CUDA Environment Variables").

    Indices, and GPUs without the variable, are in CUDA's order. With `CUDA_DEVICE_ORDER=PCI_BUS_ID`
    this is the driver's order. Otherwise it is fastest first, by a rule that only CUDA knows. The
    driver's order is assumed then too, which is right if the GPUs are of one model.

    Args:
        uuids: UUIDs of the GPUs in the driver's order, with MIG instances in place of a partitioned
            GPU.
        environment: the environment variables of the process.
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
    # As C reads a number: text after the digits does not matter.
    digits = _INDEX.match(entry)
    return int(digits[1]) if digits and int(digits[1]) < count else None


def _by_uuid(entry: str, kind: str, uuids: Sequence[str]) -> int | None:
    found = [place for place, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return found[0] if entry.startswith(kind) and len(found) == 1 else None
