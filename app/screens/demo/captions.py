"""Captions: describes in one line what the engine is doing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from engine.api.telemetry import StepRecord
from engine.api.waiting import in_words
from widgets.figures import counted

# Seconds in which a line can be read. Rare events may come sooner.
READ_SECONDS, SELDOM_SECONDS = 5.0, 2.5
SELDOM = ("preempted", "back", "policy")


class Captions:
    """Chooses one of the last events: the kind that was shown least comes first.

    Args:
        name: the chat of a request, as a person calls it, by the request's id.
        clock: seconds.

    Attributes:
        text: the caption on view.
    """

    def __init__(self, name: Callable[[str], str], clock: Callable[[], float]) -> None:
        self.text = ""
        self._name = name
        self._clock = clock
        self._said: Counter[str] = Counter()
        self._since = -READ_SECONDS
        self._policy = ""
        self._preempted: set[str] = set()

    def add_steps(self, records: Sequence[StepRecord]) -> None:
        """Add new steps, and show a new line about them if the present one was read."""
        found = [event for record in records for event in self._events(record)]
        age = self._clock() - self._since
        if age < READ_SECONDS:
            found = (
                [event for event in found if event[0] in SELDOM] if age >= SELDOM_SECONDS else []
            )
        if not found:
            return
        kind, self.text = min(found, key=lambda event: self._said[event[0]])
        self._said[kind] += 1
        self._since = self._clock()

    def _events(self, record: StepRecord) -> Iterator[tuple[str, str]]:
        """The events of a step, each as its kind and a sentence."""
        if self._policy and record.policy != self._policy:
            yield "policy", f"The policy is {record.policy} now: batch and waiting chats change."
        self._policy = record.policy
        for request_id in record.preempted:
            fate = "copied to host memory" if request_id in record.swapped else "freed"
            then = "" if request_id in record.swapped else " and will be recomputed"
            self._preempted.add(request_id)
            chat = self._name(request_id)
            yield (
                "preempted",
                f"{chat} was preempted: the cache is full; its blocks were {fate}{then}.",
            )
        for request_id in self._preempted.intersection(record.admitted):
            self._preempted.discard(request_id)
            yield (
                "back",
                f"{self._name(request_id)} is back in the batch and continues where it stopped.",
            )
        if record.head_wait is not None:
            verb = "waits" if record.waiting == 1 else "wait"
            who = f"{counted(record.waiting, 'chat')} {verb}"
            yield "waits", f"{who}; why the first one does: {in_words(record.head_wait)}."
        if record.prefix_hit_tokens:
            hits, asked = record.prefix_hit_tokens, record.prefix_queried_tokens
            yield (
                "prefix",
                f"{hits} of {asked} prompt tokens were cached: chats share equal beginnings.",
            )
        if record.prefill_rows and record.decode_rows:
            rows = record.decode_rows
            replies = "a token of one reply" if rows == 1 else f"a token each of {rows} replies"
            tokens = counted(record.prefill_tokens, "prompt token")
            yield "mixed", f"One step computed {tokens}, and {replies} beside them."
        if record.decode_rows > 1:
            yield (
                "batch",
                f"{record.decode_rows} replies get a token each from one step of the model.",
            )
