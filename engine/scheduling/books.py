"""Books: who runs, who waits, and what is yet to be copied; what the steps of a scheduler share."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.batch.request import Request
from engine.cache.manager import KVCache
from engine.scheduling.groups import Groups
from engine.scheduling.queue import WaitingQueue
from engine.scheduling.reclaim import Reclaim
from engine.scheduling.shares import Shares
from engine.scheduling.swaps import Swaps


@dataclass(slots=True)
class Books:
    """What the steps of one scheduler share.

    Attributes:
        running: requests that hold a slot, in the order of admission.
        groups: running requests that were started together.
        swaps: victims that keep what they have computed in host memory.
        shares: of the slots, for users who have few.
        copies: (source, target) blocks that the next plan copies first, by the target's request.
        restores: the prefix whose state a request goes on from with its first row, and the snapshot
            of it.
    """

    cache: KVCache
    running: list[Request]
    waiting: WaitingQueue
    groups: Groups
    reclaim: Reclaim
    swaps: Swaps
    shares: Shares = field(default_factory=Shares)
    copies: dict[Request, tuple[int, int]] = field(default_factory=dict)
    restores: dict[Request, tuple[bytes, int]] = field(default_factory=dict)

    def give_restore_up(self, request: Request) -> None:
        """Let go of the snapshot that a request was to go on from, if it was to."""
        if request in self.restores:
            hash, _ = self.restores.pop(request)
            assert self.cache.snapshots is not None
            self.cache.snapshots.release(hash)
