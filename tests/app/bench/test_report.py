from __future__ import annotations

import numpy as np
import pytest

from app.bench.measurement import READ_EVERY
from app.bench.report import figures, to_text
from engine.api.telemetry import StepRecord
from tests.app.bench.support import TASKS, measure, task


def test_every_figure_of_a_run_worked_out_by_hand() -> None:
    measured, seconds = measure({"ttft": 1200.0, "tpot": 1000.0})
    found = figures(measured, seconds, goodput=True, max_concurrency=8, request_rate=0.5)
    ttft, e2el = [1.0, 1.5, 1.0], [3.0, 1.5, 2.0]
    assert found == pytest.approx(
        {
            "completed": 3,
            "failed": 0,
            "max_concurrency": 8,
            "request_rate": 0.5,
            "duration": 12,
            "total_input_tokens": 10,
            "total_output_tokens": 6,
            "request_throughput": 3 / 12,
            "request_goodput": 2 / 12,  # the first token of b came after 1.5 s
            "output_throughput": 6 / 12,
            "max_output_tokens_per_s": 2,  # of a and b, after two seconds
            "max_concurrent_requests": 2,
            "total_token_throughput": 16 / 12,
            "mean_ttft_ms": 1e3 * np.mean(ttft),
            "median_ttft_ms": 1000,
            "p99_ttft_ms": 1e3 * np.quantile(ttft, 0.99),
            "mean_tpot_ms": 1000,  # of a and c: b has one token
            "median_tpot_ms": 1000,
            "p99_tpot_ms": 1000,
            "mean_itl_ms": 1000,
            "median_itl_ms": found["median_itl_ms"],
            "p99_itl_ms": found["p99_itl_ms"],
            "mean_e2el_ms": 1e3 * np.mean(e2el),
            "median_e2el_ms": 2000,
            "p99_e2el_ms": 1e3 * np.quantile(e2el, 0.99),
            # a's prompt; a and b's prompt; a; c's prompt; c.
            "steps": 5,
            "mean_step_ms": 1000,
            "mean_batch": 6 / 5,
            "mean_step_tokens": (4 + 5 + 1 + 2 + 1) / 5,
            # Slots given in each step 4, 8 + 4, 8, 4, 4; without a token 0, 3 + 0, 2, 2, 1.
            "kv_waste": 100 * 8 / 32,
            "padding": 0,
            "preemptions": 0,
            "swaps": 0,
            "prefix_hit_rate": 0,
        }
    )
    assert found["median_itl_ms"] == pytest.approx(1000, rel=5.1e-4)
    assert found["p99_itl_ms"] == pytest.approx(1000, rel=5.1e-4)


@pytest.mark.parametrize(
    ("targets", "good"),
    [
        ({}, 3),
        ({"tpot": 1000.0}, 3),  # b has none and is judged by the others
        ({"tpot": 999.0}, 1),
        ({"ttft": 999.0}, 0),
        ({"e2el": 2000.0}, 2),
        ({"e2el": 2000.0, "ttft": 1000.0}, 1),
    ],
)
def test_goodput_counts_requests_that_met_every_target(
    targets: dict[str, float], good: int
) -> None:
    measured, _ = measure(targets)
    assert measured.good == good


def test_the_peak_is_never_below_the_mean_where_the_last_second_is_partly_filled() -> None:
    measured, seconds = measure({}, (task("a", 0.0, 4, 3),))
    measured.output_tokens = 6  # as if each step had made two
    found = figures(measured, seconds, goodput=False)
    assert found["max_output_tokens_per_s"] == found["output_throughput"] == 2.0


def test_a_refused_request_is_failed_and_counts_for_nothing_else() -> None:
    measured, seconds = measure({"ttft": 1e9}, (*TASKS, task("d", 11.5, 127, 2)))
    found = figures(measured, seconds, goodput=True)
    assert (found["completed"], found["failed"]) == (3, 1)
    assert found["total_input_tokens"] == 10
    assert found["request_goodput"] == pytest.approx(3 / 12)
    ((message, count),) = measured.errors.items()
    assert message.startswith("max_tokens is 2; with a prompt of 127 tokens at most 1 are allowed")
    assert count == 1


def test_what_was_not_asked_for_and_what_has_no_sample_is_left_out() -> None:
    measured, seconds = measure({}, (task("a", 0.0, 4, 1),))
    found = figures(measured, seconds, goodput=False, request_rate=float("inf"))
    assert not {"request_goodput", "max_concurrency", "request_rate"} & set(found)
    assert not {"mean_tpot_ms", "median_itl_ms", "p99_tpot_ms"} & set(found)
    text = to_text([("a", found)])
    assert "TTFT" in text
    assert "TPOT" not in text
    assert "Goodput" not in text


def test_settings_stand_side_by_side_with_their_ratio_to_the_first() -> None:
    one = {"completed": 4.0, "duration": 2.0, "preemptions": 0.0}
    other = {"completed": 4.0, "duration": 3.0, "preemptions": 2.0, "mean_ttft_ms": 8.0}
    lines = to_text([("stall_free", one), ("static", other)]).splitlines()
    assert lines[1].split() == ["stall_free", "static", "ratio"]
    cells = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines[2:]}
    assert cells["Successful requests"] == ["4", "4", "1.00x"]
    assert cells["Benchmark duration (s)"] == ["2.00", "3.00", "1.50x"]
    assert cells["Preemptions"] == ["0", "2"]  # there is no ratio to nothing
    assert cells["Mean TTFT (ms)"] == ["-", "8.00"]
    ends = {line.index("static") + len("static") for line in lines[1:2]}
    ends |= {line.index(" 1.50x") - 1 for line in lines if "1.50x" in line}
    assert len({len(line) for line in lines if line.startswith(("-", "="))}) == 1


def test_one_setting_of_several_keeps_its_name_and_all_say_what_was_measured() -> None:
    lines = to_text(
        [("orca", {"completed": 4.0})], "Model: m on d\nWorkload: w", named=True
    ).splitlines()
    assert lines[1:3] == ["Model: m on d", "Workload: w"]
    assert lines[3].strip() == "orca"


def test_throughput_and_batch_over_time() -> None:
    measured, _ = measure({})
    assert sum(measured.output.sums) == 6
    moments = [
        middle
        for middle, count in zip(measured.output.middles, measured.output.sums, strict=True)
        if count
    ]
    assert moments == pytest.approx([1, 2, 3, 11, 12], abs=measured.output.width)
    moments, rows = measured.steps.batch_over_time()
    assert moments == pytest.approx([0.5, 1.5, 2.5, 10.5, 11.5], abs=measured.output.width)
    assert rows == [1, 2, 1, 1, 1]


def test_every_step_is_read_once_however_long_the_run() -> None:
    records: list[StepRecord] = []
    count = READ_EVERY // 50 + 2
    scripts = tuple(task(chr(97 + i), 100.0 * i, 4, 100) for i in range(count))
    measured, _ = measure({}, scripts, records.append)
    assert [record.step for record in records] == list(range(1, 100 * count + 1))
    assert measured.steps.steps == 100 * count
