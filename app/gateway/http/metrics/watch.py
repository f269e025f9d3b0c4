"""Watch: follows the engine, model after model, and counts its work."""

from __future__ import annotations

from collections import Counter

from app.gateway.http.metrics.counts import Counts
from engine.api.client import EngineClient
from engine.api.snapshot import Snapshot
from engine.api.status import ModelCard
from engine.api.telemetry import StepRecord

# The samples that are read, and their histograms.
_SAMPLES = {"ttft": "time_to_first_token_seconds", "itl": "inter_token_latency_seconds"}
# The totals of a snapshot that no step record has, and their names here.
_TOTALS = {"requests": "requests", "refused": "requests_refused"}


class Watch:
    """Reads the engine's records of its last steps, often enough that none are lost, and counts
    lost ones nevertheless. It makes the engine compute nothing extra.

    The engine counts from zero with each loaded model; these counts continue.

    Attributes:
        counts: by the name of the model.
        snapshot: the last one; None without a model.
        missed: how many step records and samples were lost before they were read, by kind.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._card: ModelCard | None = None
        self._last: StepRecord | None = None
        self._read: Counter[str] = Counter()
        self.counts: dict[str, Counts] = {}
        self.snapshot: Snapshot | None = None
        self.missed: Counter[str] = Counter(dict.fromkeys(("records", *_SAMPLES), 0))

    def update(self, snapshot: Snapshot | None) -> None:
        """Process a snapshot and the steps since the last one; once a second. A model that came and
        went between two calls is not counted.

        Args:
            snapshot: the engine's newest.
        """
        self.snapshot = snapshot
        if snapshot is not None:
            self._count_snapshot(snapshot)
        self.catch_up()

    def catch_up(self) -> None:
        """Process the steps since the last processed one. It is also called between two snapshots,
        because a model's records are gone once another one is loaded.
        """
        last, first = self._last, 1
        records = self._client.step_records(last.step - 1 if last is not None else 0)
        if last is not None:
            # The last one is requested, too: a record of the same number may be another load's.
            if records and records[0] is last:
                records = records[1:]
                first = last.step + 1
            else:
                records = self._client.step_records(0)
                if records and records[0].step > last.step:
                    first = last.step + 1  # The last one was overwritten: other loads begin at 1.
        if records and (counts := self.counts.get(records[-1].model)) is not None:
            self.missed["records"] += records[0].step - first
            self._last = records[-1]
            counts.count_steps(records)

    def _count_snapshot(self, snapshot: Snapshot) -> None:
        card = snapshot.model
        if card is not self._card:  # Each load makes its own card.
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
