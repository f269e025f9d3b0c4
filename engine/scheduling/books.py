"""Books: running and waiting requests and pending copies, shared by the parts of a scheduler."""

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
    """State that the parts of one scheduler share.

    Attributes:
        running: requests that hold a slot, in the order of admission.
        groups: request-level batches that run.
        swaps: victims whose computed tokens are in host memory.
        shares: slots reserved for users who hold few.
        copies: (source, target) blocks that the next plan copies first, by the target's request.
        restores: for a request that continues from a snapshot with its first row: the prefix's hash
            and the snapshot.
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
        """Release the snapshot that a request was to continue from, if there is one."""
        if request in self.restores:
            hash, _ = self.restores.pop(request)
            assert self.cache.snapshots is not None
            self.cache.snapshots.release(hash)
