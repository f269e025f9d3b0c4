"""Groups: requests that start together and hold their slots and blocks until the last one ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.batch.plan import Request, Row


@dataclass(slots=True, eq=False)
class Group:
    """A request-level batch, as in FasterTransformer and Triton's dynamic batcher.

    Attributes:
        live: running members.
        longest_prompt: length to which every member's prompt is padded.
        parked: (sequence, blocks) of ended members, whose slots and blocks stay in use.
    """

    live: list[Request]
    longest_prompt: int
    parked: list[tuple[int, list[int]]] = field(default_factory=list)


class Groups:
    """The running request-level batches. There is one at a time, except after a policy change.

    Attributes:
        live: the group of each running member; empty if no group runs.
    """

    def __init__(self) -> None:
        self.live: dict[Request, Group] = {}
        self._groups: list[Group] = []

    @property
    def num_parked(self) -> int:
        """Slots held by ended members."""
        return sum(len(group.parked) for group in self._groups)

    def parked_tables(self) -> list[tuple[int, list[int]]]:
        """(sequence, blocks) of ended members."""
        return [entry for group in self._groups for entry in group.parked]

    def start(self, members: Sequence[Request]) -> None:
        """Group running requests."""
        group = Group(list(members), max(request.num_prompt_tokens for request in members))
        self._groups.append(group)
        for request in members:
            self.live[request] = group

    def leave(self, request: Request, blocks: list[int]) -> list[tuple[int, list[int]]]:
        """Remove a running member that ended; returns (sequence, blocks) that can now be freed.

        The blocks of a member stay with its group until the last member has ended.
        """
        group = self.live.pop(request)
        group.live.remove(request)
        group.parked.append((request.ordinal, blocks))
        return self._dissolve(group)

    def drop(self, request: Request) -> list[tuple[int, list[int]]]:
        """Remove a running member that was preempted; returns (sequence, blocks) that can now be
        freed.

        Its own blocks are not among them, because the caller has those.
        """
        group = self.live.pop(request)
        group.live.remove(request)
        return self._dissolve(group)

    def padding(self, rows: Mapping[Request, Row]) -> tuple[Row, ...]:
        """Rows that padded batches would compute in vain beside these.

        A prompt is left-padded to the longest, once, in the step of its first tokens. An ended
        member continues, one token a step, as long as the others decode.
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
        """Remove a group without running members; returns its members' (sequence, blocks)."""
        if group.live:
            return []
        self._groups.remove(group)
        return group.parked
