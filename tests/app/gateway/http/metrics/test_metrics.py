"""Metrics at /metrics, read by prometheus-client's own parser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from app.gateway.http.metrics.counts import FIRST_TOKEN, REQUEST, STEP_TOKENS, TOKEN
from app.gateway.http.metrics.exposition import Exposition
from app.gateway.http.metrics.watch import Watch
from app.gateway.http.settings import HttpSettings
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.status import OffPath
from engine.model.machine.driver import Driver
from tests.support.http_serving import HttpServing, http_serving
from tests.support.nvml import Gpu, install
from tests.support.scripted_engine import ScriptedEngine

# Names and types as vLLM's `PrometheusStatLogger` has them; the parser cuts `_total` off counters.
VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "num_requests_waiting_by_reason": "gauge",
    "kv_cache_usage_perc": "gauge",
    "gpu_cache_usage_perc": "gauge",
    "cache_config_info": "gauge",
    "prompt_tokens": "counter",
    "prompt_tokens_cached": "counter",
    "prompt_tokens_by_source": "counter",
    "generation_tokens": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "request_success": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_max_num_generation_tokens": "histogram",
    "request_prefill_kv_computed_tokens": "histogram",
    "iteration_tokens_total": "histogram",
}
BOUNDS = {
    "time_to_first_token_seconds": FIRST_TOKEN,
    "inter_token_latency_seconds": TOKEN,
    "request_time_per_output_token_seconds": TOKEN,
    "e2e_request_latency_seconds": REQUEST,
    "request_decode_time_seconds": REQUEST,
    "request_prompt_tokens": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
    "iteration_tokens_total": STEP_TOKENS,
}

Read = dict[str, Metric]
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(serving: HttpServing, headers: dict[str, str] | None = None) -> Read:
    answer = serving.http.get("/metrics", headers=headers or {})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    found = {family.name: family for family in families}
    assert len(found) == len(families)
    return found


def value(read: Read, name: str, /, **labels: str) -> float:
    """Of the only series of this name that has these labels."""
    base = name.removesuffix("_total").removesuffix("_count").removesuffix("_sum")
    family = read.get(name) or read[base]
    (found,) = (
        sample.value
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return float(found)


def when(serving: HttpServing, condition: Callable[[Read], bool]) -> Read:
    """Wait until the condition holds for the metrics, and return them."""
    last: Read = {}

    def is_so() -> bool:
        nonlocal last
        last = read(serving)
        return condition(last)

    serving.until(is_so)
    return last


def ended(read: Read) -> float:
    return sum(s.value for s in read["vllm:request_success"].samples)


def growing(read: Read) -> Series:
    """All that must never go down."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read.values()
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


def test_names_types_labels_and_bounds_are_vllms(serving: HttpServing) -> None:
    serving.ask()
    found = when(serving, lambda read: ended(read) == 1)
    ours = {name: family.type for name, family in found.items()}
    expected = {f"vllm:{name}": kind for name, kind in VLLM.items()}
    assert {name: kind for name, kind in ours.items() if name.startswith("vllm:")} == expected
    others = {name.partition(":")[0] for name in ours if ":" in name}
    assert others == {"vllm", "batchdeck"}
    for name in expected:
        for sample in found[name].samples:
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("scripted", "0")
    for name, bounds in BOUNDS.items():
        samples = found[f"vllm:{name}"].samples
        edges = [s.labels["le"] for s in samples if s.name.endswith("_bucket")]
        assert edges == [*(str(float(bound)) for bound in bounds), "+Inf"]
    reasons = {s.labels["finished_reason"] for s in found["vllm:request_success"].samples}
    assert reasons == {"stop", "length", "abort", "error"}


def test_prompts_are_told_by_what_was_cached_of_them(serving: HttpServing) -> None:
    text = "word " * 100
    usages = [serving.ask(text).json()["usage"] for _ in range(2)]
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    computed = sum(usage["prompt_tokens"] for usage in usages) - cached
    found = when(serving, lambda read: ended(read) == 2)
    assert value(found, "vllm:prompt_tokens_cached_total") == cached > 0
    assert value(found, "vllm:prefix_cache_hits_total") == cached
    sources = "vllm:prompt_tokens_by_source_total"
    assert value(found, sources, source="local_cache_hit") == cached
    assert value(found, sources, source="local_compute") == computed
    assert value(found, "vllm:request_prefill_kv_computed_tokens_sum") == computed


def test_values_are_those_of_the_requests(serving: HttpServing) -> None:
    usages = [serving.ask("one two three").json()["usage"] for _ in range(2)]
    found = when(serving, lambda read: ended(read) == 2)
    tokens = sum(usage["completion_tokens"] for usage in usages)
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    assert value(found, "vllm:generation_tokens_total") == tokens
    assert value(found, "vllm:request_generation_tokens_sum") == tokens
    assert value(found, "vllm:prompt_tokens_total") == prompts
    assert value(found, "vllm:request_prompt_tokens_sum") == prompts
    assert value(found, "vllm:request_success_total", finished_reason="stop") == 2
    assert value(found, "vllm:e2e_request_latency_seconds_count") == 2
    assert value(found, "batchdeck:http_requests_accepted_total") == 2
    assert value(found, "batchdeck:user_replies_total", user="anybody") == 2
    assert value(found, "batchdeck:user_prompt_tokens_total", user="anybody") == prompts
    assert value(found, "batchdeck:user_output_tokens_total", user="anybody") == tokens
    assert value(found, "batchdeck:step_phase_seconds_total", phase="forward") > 0
    assert value(found, "batchdeck:knob", knob="max_num_seqs") == 32
    assert value(found, "batchdeck:knob", knob="paused") == 0
    assert value(found, "batchdeck:policy_info", policy="stall_free", order="priority") == 1
    assert value(found, "vllm:cache_config_info", block_size="16", num_gpu_blocks="256") == 1


def test_waiting_requests_are_told_by_cause_and_blocks_by_state(serving: HttpServing) -> None:
    """More wait than a snapshot shows."""
    for number in range(300):
        message = ChatMessage("user", f"number {number}")
        serving.engine.submit(Submission(messages=(message,)))
    serving.engine.advance()
    found = when(serving, lambda read: value(read, "vllm:num_requests_waiting") == 300 - 32)
    causes = {s.labels["cause"]: s.value for s in found["batchdeck:requests_waiting"].samples}
    assert causes["slot"] == sum(causes.values()) == 300 - 32
    by_reason = found["vllm:num_requests_waiting_by_reason"]
    reasons = {s.labels["reason"]: s.value for s in by_reason.samples}
    assert reasons == {"capacity": 300 - 32, "deferred": 0}
    assert value(found, "vllm:num_requests_running") == 32
    states = {s.labels["state"]: s.value for s in found["batchdeck:blocks"].samples}
    assert sum(states.values()) == 256
    held = states["used"] + states["shared"] + states["reserved"]
    assert value(found, "vllm:kv_cache_usage_perc") == held / 256 > 0
    assert value(found, "vllm:gpu_cache_usage_perc") == held / 256
    serving.engine.set_knobs({"queue_limit": 7, "paused": True}, "test")
    serving.engine.advance()
    reasons = "vllm:num_requests_waiting_by_reason"
    found = when(serving, lambda read: value(read, reasons, reason="deferred") == 300 - 32)
    assert value(found, "batchdeck:knob", knob="paused") == 1
    assert value(found, "batchdeck:knob", knob="queue_limit") == 7
    serving.engine.set_knobs({"paused": False}, "test")
    serving.engine.finish_all()


def test_what_is_off_the_fast_path_is_told_with_its_cost() -> None:
    embed = OffPath("embed", 576, 1, "differs from the model by 0.0039", 0.25)
    mixer = OffPath("MambaMixer", 1024, 24, "no kernel of ours computes it")
    operations, ratio, whole = (
        f"batchdeck:off_kernels_{name}" for name in ("operations", "step_ratio", "model")
    )
    with http_serving(ScriptedEngine(off_path=(embed, mixer))) as serving:
        found = read(serving)
        assert value(found, operations, operation="embed", columns="576", reason=embed.reason) == 1
        assert value(found, operations, operation="MambaMixer", reason=mixer.reason) == 24
        assert [(s.labels["operation"], s.value) for s in found[ratio].samples] == [("embed", 0.25)]
        assert found[whole].samples == []
    with http_serving(ScriptedEngine(off_kernels="sin is not read")) as serving:
        found = read(serving)
        assert value(found, whole, reason="sin is not read") == 1
        assert found[operations].samples == []


def test_nothing_goes_down_when_models_come_and_go(serving: HttpServing) -> None:
    before: Series = {}
    for turn, model in enumerate(("other", "scripted", "other"), start=1):
        serving.ask("one two three")
        now = growing(when(serving, lambda read, turn=turn: ended(read) == turn))
        assert not {key for key, number in before.items() if now[key] < number}
        before = now
        serving.engine.load(LoadRequest(model))
        # Counters stay while no model is there; what is of one that is does not.
        found = when(serving, lambda read: not read["vllm:num_requests_running"].samples)
        assert "batchdeck:knob" not in found
        assert not {key for key, number in before.items() if growing(found)[key] < number}
        serving.engine.ready()
    serving.ask("one two three")
    gauge = "vllm:kv_cache_usage_perc"
    found = when(serving, lambda read: ended(read) == 4 and bool(read[gauge].samples))
    ends = found["vllm:request_success"].samples
    stopped = {s.labels["model_name"]: s.value for s in ends if s.value}
    assert stopped == {"scripted": 2, "other": 2}
    assert [s.labels["model_name"] for s in found[gauge].samples] == ["other"]


def test_refusals_by_code(serving: HttpServing) -> None:
    assert serving.http.post("/v1/chat/completions", content=b"{").status_code == 400
    found = when(serving, lambda read: bool(read["batchdeck:http_refusals"].samples))
    (refusal,) = found["batchdeck:http_refusals"].samples
    assert (refusal.labels["code"], refusal.value) == ("400", 1)


def test_a_scrape_needs_a_key_unless_it_is_open() -> None:
    with http_serving(api_key="sesame") as serving:
        assert serving.http.get("/metrics").status_code == 401
        assert read(serving, {"authorization": "Bearer sesame"})
    with http_serving(api_key="sesame", metrics_open=True) as serving:
        assert read(serving)
        assert serving.http.get("/v1/models").status_code == 401


def test_a_scrape_asks_the_engine_nothing() -> None:
    with http_serving() as serving:
        serving.ask()
        watch = Watch(serving.engine)
        watch.update(serving.engine.snapshot())
        exposition = Exposition(watch, serving.gateway.view, Driver(), "vllm:")
        with pytest.MonkeyPatch.context() as patch:
            for asked in ("snapshot", "step_records", "status"):
                patch.delattr(ScriptedEngine, asked)
            text = generate_latest(exposition).decode()
    assert 'finished_reason="stop",model_name="scripted"} 1.0' in text


def test_gpus_are_told_with_their_uuids(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = ("nvmlDeviceGetUtilizationRates",)
    part = Gpu("MIG-1", used=5, total=10, silent=silent)
    install(monkeypatch, Gpu("GPU-1"), Gpu("GPU-2", instances=(part,)))
    with http_serving() as serving:
        found = read(serving)
    assert value(found, "batchdeck:gpu_memory_used_bytes", uuid="GPU-1", name="NVIDIA H100") == 31
    assert value(found, "batchdeck:gpu_memory_total_bytes", uuid="MIG-1") == 10
    samples = found["batchdeck:gpu_utilization_ratio"].samples
    assert [(s.labels["uuid"], s.value) for s in samples] == [("GPU-1", 0.87)]


def test_names_may_have_our_prefix() -> None:
    with http_serving(metrics_prefix="batchdeck:") as serving:
        serving.ask()
        found = read(serving)  # It fails where a name is there twice.
    assert {f"batchdeck:{name}" for name in VLLM} < found.keys()
    assert not {name for name in found if name.startswith("vllm:")}
    for prefix in ("", "a b", "1", "x-", "é"):
        with pytest.raises(ValidationError, match="how a metric's name may begin"):
            HttpSettings(metrics_prefix=prefix)
