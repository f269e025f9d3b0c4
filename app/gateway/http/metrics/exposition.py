"""Exposition: all metrics for Prometheus, as families of series, and what sends them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from app.gateway.http.endpoint import Endpoint
from app.gateway.http.metrics.counts import Counts
from app.gateway.http.metrics.watch import Watch
from app.gateway.http.service import Service
from app.gateway.http.view import HttpView
from app.system.versions import version
from engine.api.knobs import KnobState
from engine.api.lifecycle import FinishReason, RequestState
from engine.api.snapshot import Snapshot
from engine.api.status import ModelCard
from engine.api.waiting import Cause
from engine.model.machine.driver import Driver

OWN = "batchdeck:"
# vLLM numbers the engines behind one address; there is one here.
_ENGINE = "0"
_LABELS = ("model_name", "engine")
# The causes of waiting that mean a lack of capacity.
_CAPACITY = (
    *(Cause.NEXT, Cause.PREEMPTION, Cause.SLOT, Cause.BUDGET, Cause.WHOLE_PROMPT),
    *(Cause.BLOCKS, Cause.TIME),
)

# vLLM's counters, and our own engine counters, by names of `Counts.totals`.
_COUNTERS = {
    "prompt_tokens": "Prompt tokens of admitted requests, including cached ones.",
    "generation_tokens": "Output tokens of requests.",
    "prefix_cache_queries": "Prompt tokens that were looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens that were found in the prefix cache.",
    "prompt_tokens_cached": "Prompt tokens of admitted requests that were cached.",
    "num_preemptions": "Preemptions of running requests.",
}
_OWN_COUNTERS = {
    "requests": "Requests that reached the engine, including refused ones.",
    "requests_refused": "Requests that the engine refused.",
    "steps": "Steps, including failed ones.",
    "failed_steps": "Steps that raised.",
    "prefill_tokens": "Prompt tokens computed, including recomputation after preemptions.",
    "decode_tokens": "Output tokens computed on.",
    "padding_tokens": "Prompt tokens that a padded batch would compute in vain.",
    "bubble_tokens": "Tokens that such a batch would compute for members that have ended.",
    "step_flops": "Floating-point operations of steps, from the model's shape.",
    "step_bytes": "Bytes moved to and from memory in steps, from the model's shape.",
    "swaps": "Preemptions whose victims were swapped out to host memory.",
    "swapped_out_blocks": "Blocks copied to host memory.",
    "swapped_in_blocks": "Blocks copied back from host memory.",
    "evictions": "Cached blocks that were evicted.",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "Between a request's tokens.",
    "request_time_per_output_token_seconds": "Mean of a request, from its first token to its end.",
    "e2e_request_latency_seconds": "From arrival to the end.",
    "request_queue_time_seconds": "From arrival to when a request is first scheduled.",
    "request_inference_time_seconds": "From when a request is first scheduled to its last token.",
    "request_prefill_time_seconds": "From when a request is first scheduled to its first token.",
    "request_decode_time_seconds": "From a request's first token to its last.",
    "request_prompt_tokens": "Tokens of a request's prompt.",
    "request_generation_tokens": "Output tokens of a request.",
    "request_max_num_generation_tokens": "Output tokens of a reply.",
    "request_prefill_kv_computed_tokens": "Tokens of a request's prompt that were not cached.",
    "iteration_tokens_total": "Tokens computed in a step.",
}


class Exposition(Collector):
    """Makes metric families of the last known state; it does not call the engine. GPUs are read
    anew.

    Counters and histograms have a series for each model that was ever loaded, gauges one for the
    loaded model.

    Args:
        view: returns the gateway's newest view.
        driver: the GPUs' driver.
        prefix: replaces the prefix of vLLM's names.
    """

    def __init__(
        self, watch: Watch, view: Callable[[], HttpView], driver: Driver, prefix: str
    ) -> None:
        self._watch = watch
        self._view = view
        self._driver = driver
        self._prefix = prefix
        # Not in the library's registry: that is global to the process, and there may be two
        # gateways.
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        snapshot = self._watch.snapshot
        yield from self._vllm_gauges(snapshot)
        for name, help_text in _COUNTERS.items():
            yield self._counter(self._prefix + name, help_text, name)
        yield self._sources()
        yield self._endings()
        for name, help_text in _HISTOGRAMS.items():
            yield self._histogram(name, help_text)
        for name, help_text in _OWN_COUNTERS.items():
            yield self._counter(OWN + name, help_text, name)
        yield self._phases()
        missed = CounterMetricFamily(
            f"{OWN}missed", "Records and samples that were lost unread.", labels=("kind",)
        )
        for kind, number in self._watch.missed.items():
            missed.add_metric((kind,), number)
        yield missed
        yield from _of_engine(snapshot)
        yield from _of_http(self._view())
        yield from _of_gpus(self._driver)
        yield from self._process.collect()

    def _vllm_gauges(self, snapshot: Snapshot | None) -> Iterator[Metric]:
        usage = "Share of the KV cache's blocks that requests hold, from 0 to 1."
        gauges: dict[str, tuple[str, Callable[[Snapshot], float]]] = {
            "num_requests_running": ("Requests that run.", lambda at: at.num_running),
            "num_requests_waiting": ("Requests that wait.", lambda at: at.num_waiting),
            "kv_cache_usage_perc": (usage, _usage),
            "gpu_cache_usage_perc": (f"{usage} The older name.", _usage),
        }
        for name, (help_text, value) in gauges.items():
            family = GaugeMetricFamily(self._prefix + name, help_text, labels=_LABELS)
            if snapshot is not None:
                family.add_metric((snapshot.model.name, _ENGINE), value(snapshot))
            yield family
        family = GaugeMetricFamily(
            f"{self._prefix}num_requests_waiting_by_reason",
            "Waiting requests, by whether they wait for capacity.",
            labels=(*_LABELS, "reason"),
        )
        if snapshot is not None:
            causes = _causes(snapshot)
            capacity = sum(causes[cause] for cause in _CAPACITY)
            deferred = snapshot.num_waiting - capacity
            for reason, number in (("capacity", capacity), ("deferred", deferred)):
                family.add_metric((snapshot.model.name, _ENGINE, reason), number)
        yield family
        info = {} if snapshot is None else _cache_config(snapshot)
        family = GaugeMetricFamily(
            f"{self._prefix}cache_config_info",
            "How the KV cache was set up, in labels.",
            labels=tuple(info),
        )
        if info:
            family.add_metric(tuple(info.values()), 1)
        yield family

    def _counts(self) -> Iterable[tuple[tuple[str, str], Counts]]:
        return (((name, _ENGINE), counts) for name, counts in self._watch.counts.items())

    def _counter(self, name: str, help_text: str, key: str) -> Metric:
        family = CounterMetricFamily(name, help_text, labels=_LABELS)
        for labels, counts in self._counts():
            family.add_metric(labels, counts.totals[key])
        return family

    def _sources(self) -> Metric:
        family = CounterMetricFamily(
            f"{self._prefix}prompt_tokens_by_source",
            "Prompt tokens of admitted requests, by whether they were computed or cached.",
            labels=(*_LABELS, "source"),
        )
        for labels, counts in self._counts():
            cached = counts.totals["prompt_tokens_cached"]
            computed = counts.totals["prompt_tokens"] - cached
            family.add_metric((*labels, "local_compute"), computed)
            family.add_metric((*labels, "local_cache_hit"), cached)
        return family

    def _endings(self) -> Metric:
        family = CounterMetricFamily(
            f"{self._prefix}request_success",
            "Requests that ended, by finish reason.",
            labels=(*_LABELS, "finished_reason"),
        )
        for labels, counts in self._counts():
            for reason in FinishReason:
                family.add_metric((*labels, reason.value), counts.ended[reason])
        return family

    def _histogram(self, name: str, help_text: str) -> Metric:
        family = HistogramMetricFamily(self._prefix + name, help_text, labels=_LABELS)
        for labels, counts in self._counts():
            histogram = counts.histograms[name]
            family.add_metric(labels, histogram.buckets, histogram.sum)
        return family

    def _phases(self) -> Metric:
        family = CounterMetricFamily(
            f"{OWN}step_phase_seconds",
            "Seconds of steps: planning, the runner's phases, and committing.",
            labels=(*_LABELS, "phase"),
        )
        for labels, counts in self._counts():
            for phase, seconds in counts.phases.items():
                family.add_metric((*labels, phase), seconds)
        return family


def _usage(snapshot: Snapshot) -> float:
    return snapshot.blocks.used / snapshot.blocks.num_blocks


def _cache_config(snapshot: Snapshot) -> dict[str, str]:
    """Labels, by vLLM's names where both have them."""
    config = snapshot.config
    knobs = {state.name: state.effective for state in snapshot.knobs}
    return {
        "model_name": snapshot.model.name,
        "engine": _ENGINE,
        "block_size": str(config.block_size),
        "cache_dtype": config.dtype,
        "kv_cache_size_tokens": str(config.num_slots),
        "enable_prefix_caching": str(knobs["prefix_caching"]),
        "num_cpu_blocks": str(config.num_host_blocks),
        "num_gpu_blocks": str(config.num_blocks),
    }


def _of_engine(snapshot: Snapshot | None) -> Iterator[Metric]:
    """Current values that have no name in vLLM."""
    build = GaugeMetricFamily(
        f"{OWN}build_info", "Name and version of this program.", labels=("version",)
    )
    build.add_metric((version("batchdeck") or "unknown",), 1)
    yield build
    if snapshot is None:
        return
    blocks = snapshot.blocks
    yield _gauges(
        "requests_waiting", "Waiting requests by what they wait for.", "cause", _causes(snapshot)
    )
    yield _gauges(
        "blocks",
        "Blocks of the KV cache; each is in one state.",
        "state",
        {
            "used": blocks.used - blocks.shared - blocks.reserved,
            "shared": blocks.shared,
            "reserved": blocks.reserved,
            "pinned": blocks.pinned,
            "cached": blocks.cached - blocks.pinned,
            "free": blocks.free,
        },
    )
    yield _gauges(
        "host_blocks",
        "Blocks of host memory for swapped requests.",
        "state",
        {"used": blocks.host_used, "free": blocks.host_blocks - blocks.host_used},
    )
    yield _gauges(
        "state_snapshots",
        "States of prefixes, of a model that has some.",
        "state",
        {"kept": blocks.snapshots_kept, "free": blocks.snapshots - blocks.snapshots_kept},
    )
    yield from _off_path(snapshot.model)
    yield from _knobs(snapshot.knobs)
    if (goodput := snapshot.goodput) is not None:
        window = f"over the last {goodput.window:g} s"
        if not math.isnan(goodput.share):
            help_text = f"Share of requests that met both latency targets, {window}."
            yield GaugeMetricFamily(f"{OWN}goodput_ratio", help_text, goodput.share)
        help_text = f"Requests a second that met both latency targets, {window}."
        yield GaugeMetricFamily(f"{OWN}goodput_requests_per_second", help_text, goodput.rate)
        help_text = "Unfinished requests that miss a latency target already."
        yield GaugeMetricFamily(f"{OWN}late_requests", help_text, goodput.late)


def _off_path(model: ModelCard) -> Iterator[Metric]:
    """The operations of the model that our kernels do not compute, a sample for each kind, and none
    if the model is wholly on the fast path.
    """
    labels = ("operation", "columns")
    counts = GaugeMetricFamily(
        f"{OWN}off_kernels_operations",
        "Operations of the model that torch computes in place of our kernels, and why.",
        labels=(*labels, "reason"),
    )
    shares = GaugeMetricFamily(
        f"{OWN}off_kernels_step_ratio",
        "Share of a decode step's time that these took when the model was loaded, from 0 to 1.",
        labels=labels,
    )
    for one in model.off_path:
        counts.add_metric((one.name, str(one.columns), one.reason), one.count)
        if one.share is not None:
            shares.add_metric((one.name, str(one.columns)), one.share)
    whole = GaugeMetricFamily(
        f"{OWN}off_kernels_model",
        "1 if the whole model runs module by module, and why.",
        labels=("reason",),
    )
    if model.off_kernels:
        whole.add_metric((model.off_kernels,), 1)
    yield from (counts, shares, whole)


def _causes(snapshot: Snapshot) -> Mapping[str, int]:
    """The number of waiting requests by cause. A request that queues behind others counts with the
    cause of the first one, and so do those beyond the number that a snapshot lists.
    """
    states = (RequestState.WAITING, RequestState.PREEMPTED)
    waits = [request.wait for request in snapshot.requests if request.state in states]
    causes = Counter({cause.value: 0 for cause in Cause})
    causes.update(wait.cause.value for wait in waits if wait is not None)
    if snapshot.head_wait is not None:
        causes[snapshot.head_wait.cause.value] += snapshot.num_waiting - len(waits)
    return causes


def _knobs(knobs: Iterable[KnobState]) -> Iterator[Metric]:
    """Numbers and switches as values, choices as labels."""
    choices = {
        state.name: state.effective
        for state in knobs
        if isinstance(state.effective, str) and state.allowed.choices
    }
    yield _gauges(
        "knob",
        "Values in force of the scheduler's knobs; 1 is on.",
        "knob",
        {state.name: state.effective for state in knobs if not isinstance(state.effective, str)},
    )
    family = GaugeMetricFamily(
        f"{OWN}policy_info", "The scheduler's choices in force, in labels.", labels=tuple(choices)
    )
    family.add_metric(tuple(choices.values()), 1)
    yield family


def _gauges(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """A gauge of ours, with a value for each value of a label."""
    family = GaugeMetricFamily(OWN + name, help_text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), value)
    return family


def _of_http(view: HttpView) -> Iterator[Metric]:
    for name, help_text, value in (
        ("http_connections", "Open connections.", view.connections),
        ("http_requests_running", "Requests over HTTP that have not ended.", view.running),
        ("http_requests_waiting", "How many of these have no first token.", view.waiting),
    ):
        yield GaugeMetricFamily(OWN + name, help_text, value)
    for name, help_text, value in (
        ("http_requests_accepted", "Requests over HTTP that were accepted.", view.accepted),
        ("http_requests_finished", "Requests over HTTP that have ended.", view.finished),
    ):
        yield CounterMetricFamily(OWN + name, help_text, value)
    for name, help_text in (
        ("replies", "Replies over HTTP that ended."),
        ("prompt_tokens", "Prompt tokens of these replies, including cached ones."),
        ("cached_tokens", "Prompt tokens of these replies that were cached."),
        ("output_tokens", "Output tokens of these replies."),
    ):
        of_users = CounterMetricFamily(f"{OWN}user_{name}", help_text, labels=("user",))
        for user, used in view.used.items():
            of_users.add_metric((user,), getattr(used, name))
        yield of_users
    refusals = CounterMetricFamily(
        f"{OWN}http_refusals", "Requests over HTTP that were refused.", labels=("code", "reason")
    )
    for one in view.rejected:
        refusals.add_metric((str(one.code), one.reason), one.count)
    yield refusals


def _of_gpus(driver: Driver) -> Iterator[Metric]:
    """A sample for each GPU; for a partitioned one, for each instance, which reports no
    utilization."""
    labels = ("uuid", "name")
    used, total, utilization = (
        GaugeMetricFamily(f"{OWN}gpu_{name}", help_text, labels=labels)
        for name, help_text in (
            ("memory_used_bytes", "Memory of a GPU that is used, by others too."),
            ("memory_total_bytes", "Memory of a GPU."),
            ("utilization_ratio", "Share of time in which a GPU was busy, as its driver reports."),
        )
    )
    for part in (part for gpu in driver.gpus for part in driver.instances(gpu) or [gpu]):
        of = driver.uuid(part), driver.name(part)
        if (memory := driver.ask("nvmlDeviceGetMemoryInfo", part)) is not None:
            used.add_metric(of, memory.used)
            total.add_metric(of, memory.total)
        if (rates := driver.ask("nvmlDeviceGetUtilizationRates", part)) is not None:
            utilization.add_metric(of, rates.gpu / 100)
    yield from (used, total, utilization)


class Scrape(Endpoint):
    """/metrics.

    The format is always the plain one: in OpenMetrics a histogram must not have vLLM's name
    `iteration_tokens_total`.

    Args:
        metrics: the metrics to send.
        is_open: whether they are sent without a key, if keys are set.
    """

    def __init__(self, service: Service, metrics: Collector, *, is_open: bool) -> None:
        super().__init__(service)
        self._metrics = metrics
        self._is_open = is_open

    async def answer(self, request: Request, send: Send) -> Response:
        if not self._is_open:
            self.service.asker(request)
        headers = {"content-type": CONTENT_TYPE_PLAIN_0_0_4}
        return Response(generate_latest(self._metrics), headers=headers)
