"""Visible: which GPUs CUDA shows to this process, and in which order, without asking CUDA."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"

_INDEX = re.compile(r"\s*\+?([0-9]{1,9})")
_KINDS = ("GPU-", "MIG-")


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
