"""Groups: requests that were started together and hold their places until the last one ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.plan import Row
from engine.request import Request


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
    """The request-level batches that run. One at a time, but for a change of policy."""

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
        """A running request ended: (sequence, blocks) that are free now.

        A member's wait in the group for its last one.
        """
        group = self._of.pop(request, None)
        if group is None:
            return [(request.ordinal, blocks)]
        group.live.remove(request)
        group.parked.append((request.ordinal, blocks))
        return self._dissolve(group)

    def drop(self, request: Request) -> list[tuple[int, list[int]]]:
        """A running request was preempted and is a member no more: what is free now but for its own
        blocks, which the caller has.
        """
        group = self._of.pop(request, None)
        if group is None:
            return []
        group.live.remove(request)
        return self._dissolve(group)

    def padding(self, rows: Mapping[Request, Row]) -> tuple[Row, ...]:
        """What padded batches would compute for nothing beside these rows.

        Prompts are filled up on the left to the longest, once, with their first tokens; a member
        that has ended goes on, one token a step, as long as the others.
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
        """Blocks of a group that nobody of runs any more."""
        if group.live:
            return []
        self._groups.remove(group)
        return group.parked
