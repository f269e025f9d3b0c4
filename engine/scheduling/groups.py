"""Groups: requests that were started together and hold their places until the last one ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.batch.plan import Row
from engine.batch.request import Request


@dataclass(slots=True, eq=False)
class Group:
    """A request-level batch: FasterTransformer's, and Triton's dynamic batcher's.

    Attributes:
        live: members that still run.
        longest_prompt: tokens that every member's prompt is padded to.
        parked: (sequence, blocks) of members that have ended; slot and blocks stay taken.
    """

    live: list[Request]
    longest_prompt: int
    parked: list[tuple[int, list[int]]] = field(default_factory=list)


class Groups:
    """The request-level batches that run. There is one at a time, except after a policy change."""

    def __init__(self) -> None:
        self._groups: list[Group] = []
        self._of: dict[Request, Group] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def num_parked(self) -> int:
        """Slots held by members that have ended."""
        return sum(len(group.parked) for group in self._groups) if self._groups else 0

    def parked_tables(self) -> list[tuple[int, list[int]]]:
        """(sequence, blocks) of members that have ended."""
        return [entry for group in self._groups for entry in group.parked]

    def start(self, members: Sequence[Request]) -> None:
        """Bind running requests together."""
        group = Group(list(members), max(request.num_prompt_tokens for request in members))
        self._groups.append(group)
        for request in members:
            self._of[request] = group

    def leave(self, request: Request, blocks: list[int]) -> list[tuple[int, list[int]]]:
        """Take out a running request that ended; returns (sequence, blocks) that are free now.

        The blocks of a member stay with its group until the last member has ended.
        """
        group = self._of.pop(request, None)
        if group is None:
            return [(request.ordinal, blocks)]
        group.live.remove(request)
        group.parked.append((request.ordinal, blocks))
        return self._dissolve(group)

    def drop(self, request: Request) -> list[tuple[int, list[int]]]:
        """Take out a running request that was preempted; returns (sequence, blocks) free now.

        Its own blocks are not among them: the caller has those.
        """
        group = self._of.pop(request, None)
        if group is None:
            return []
        group.live.remove(request)
        return self._dissolve(group)

    def padding(self, rows: Mapping[Request, Row]) -> tuple[Row, ...]:
        """What padded batches would compute for nothing beside these rows.

        A prompt is padded on the left to the length of the longest, once, in the step of its first
        tokens. A member that has ended goes on, one token a step, as long as the others decode.
        """
        padding: list[Row] = []
        for group in self._groups:
            members = [rows[request] for request in group.live if request in rows]
            for request in group.live:
                row = rows.get(request)
                if row is None or row.start != request.num_cached_tokens or not row.prefill:
                    continue
                short = group.longest_prompt - request.num_prompt_tokens
                if short:
                    padding.append(Row(-1, 0, short, (), False, True))
            decodes = [row.start for row in members if not row.prefill]
            if decodes:
                bubble = Row(-1, max(decodes), 1, (), False, False)
                padding += [bubble] * len(group.parked)
        return tuple(padding)

    def _dissolve(self, group: Group) -> list[tuple[int, list[int]]]:
        """End a group if no member runs any more; returns its members' (sequence, blocks) then."""
        if group.live:
            return []
        self._groups.remove(group)
        return group.parked
