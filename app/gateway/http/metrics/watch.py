"""Watch: follows the engine, model after model, and counts what it does."""

from __future__ import annotations

from collections import Counter

from app.gateway.http.metrics.counts import Counts
from engine.api.client import EngineClient
from engine.api.snapshot import Snapshot
from engine.api.status import ModelCard
from engine.api.telemetry import StepRecord

# The samples that are read, and the histograms that they go to.
_SAMPLES = {"ttft": "time_to_first_token_seconds", "itl": "inter_token_latency_seconds"}
# Of a snapshot's totals what no step record has, and what it is called here.
_TOTALS = {"requests": "requests", "refused": "requests_refused"}


class Watch:
    """Reads what the engine keeps of its last steps, often enough that nothing is lost, and counts
    what is lost nevertheless. It asks the engine for nothing that was not made already.

    The engine counts from zero with each model that is loaded; these counts go on.

    Attributes:
        counts: by the name of the model.
        snapshot: the last one that was looked at; None without a model.
        missed: how many step records and samples were gone before they were read, by their kind.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._card: ModelCard | None = None
        self._last: StepRecord | None = None
        self._read: Counter[str] = Counter()
        self.counts: dict[str, Counts] = {}
        self.snapshot: Snapshot | None = None
        self.missed: Counter[str] = Counter(dict.fromkeys(("records", *_SAMPLES), 0))

    def look(self, snapshot: Snapshot | None) -> None:
        """Take in a snapshot, and the steps that there were; once a second. Of a model that came
        and went between two looks nothing is known.

        Args:
            snapshot: the engine's newest.
        """
        self.snapshot = snapshot
        if snapshot is not None:
            self._take(snapshot)
        self.catch_up()

    def catch_up(self) -> None:
        """Take in the steps since the last one that was taken in. For between two looks, since
        those of a model are gone when another one is there.
        """
        last, first = self._last, 1
        records = self._client.step_records(last.step - 1 if last is not None else 0)
        if last is not None:
            # The last one is asked for, too: a record of the same number may be another load's.
            if records and records[0] is last:
                records = records[1:]
                first = last.step + 1
            else:
                records = self._client.step_records(0)
                if records and records[0].step > last.step:
                    first = last.step + 1  # It was overwritten: other loads begin at 1.
        if records and (counts := self.counts.get(records[-1].model)) is not None:
            self.missed["records"] += records[0].step - first
            self._last = records[-1]
            counts.take(records)

    def _take(self, snapshot: Snapshot) -> None:
        card = snapshot.model
        if card is not self._card:  # Each load makes a card of its own.
            self._card = card
            self._read.clear()
            self.counts.setdefault(card.name, Counts(card.max_model_len))
        counts = self.counts[card.name]
        for name, histogram in _SAMPLES.items():
            samples = snapshot.latency.samples[name]
            values = samples.since(self._read[name])
            self.missed[name] += samples.total - self._read[name] - len(values)
            self._read[name] = samples.total
            counts.histograms[histogram].add(values)
        for name, called in _TOTALS.items():
            total = getattr(snapshot.totals, name)
            counts.totals[called] += total - self._read[name]
            self._read[name] = total
