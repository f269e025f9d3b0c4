from __future__ import annotations

from dataclasses import replace

from engine.api.lifecycle import FinishReason
from engine.api.telemetry import Ended
from tests.widgets.samples import EVENTFUL, change, record
from widgets.panels.log_line import Level, LogLine, Subject, engine_events, knob_event


def test_a_step_in_lines() -> None:
    assert engine_events(EVENTFUL, epoch=1000.0) == [
        LogLine(
            1005.0,
            Level.WARNING,
            "sched",
            "preempt req-6: its blocks go, it is recomputed (120 free, 200 cached blk)",
            "req-6",
        ),
        LogLine(1005.0, Level.DEBUG, "cache", "evict 2 cached blk"),
        LogLine(1005.0, Level.INFO, "sched", "admit req-8, req-9: 1,500 tok, 64 cached", "req-8"),
        LogLine(1005.1, Level.INFO, "sched", "finish req-7: 1,096 tok, length", "req-7"),
    ]


def test_lines_name_chats_as_the_screen_does_and_say_for_whom() -> None:
    """Review, 8: the log had ids, the table numbers, and nothing said for whom."""
    chats = {
        "r1": Subject("16 Kafka essay", "k"),
        "r2": Subject("3 SQL help", "s"),
        "r3": Subject("A @bob Ulm"),
    }
    out = record(7, preempted=("r1", "r3"), preempted_for=("r2", ""))
    first, second = engine_events(out, of=chats.__getitem__)
    assert first.text.startswith("preempt 16 Kafka essay for 3 SQL help: its blocks go, it is")
    assert (first.request_id, first.chat) == ("r1", "k")
    assert second.text.startswith("preempt A @bob Ulm: its blocks go")
    assert (second.request_id, second.chat) == ("r3", "")


def test_each_end_is_a_line_with_tokens_and_reason_that_leads_to_its_chat() -> None:
    chats = {"r2": Subject("3 SQL help", "s"), "r3": Subject("A @bob Ulm", "m")}
    ends = (Ended("r2", 96, FinishReason.LENGTH), Ended("r3", 0, FinishReason.ABORT))
    first, second = engine_events(record(7, finished=ends), of=chats.__getitem__)
    assert (first.text, first.chat) == ("finish 3 SQL help: 96 tok, length", "s")
    assert (second.text, second.chat) == ("finish A @bob Ulm: 0 tok, abort", "m")


def test_who_was_swapped_out_and_who_came_back() -> None:
    out = record(7, preempted=("a", "b"), swapped=("b",), swapped_out_blocks=5)
    first, second = engine_events(out)
    assert first.text.startswith("preempt a: its blocks go, it is recomputed (")
    assert second.text.startswith("preempt b: its blocks go to host memory (")
    back = record(9, admitted=("b",), restored=("b",), swapped_in_blocks=4)
    (line,) = engine_events(back)
    assert line.text == "admit b: 4 blk from host memory"
    (line,) = engine_events(replace(back, admitted=("b", "c"), prefix_queried_tokens=90))
    assert line.text == "admit b, c: 90 tok, 0 cached, 4 blk from host memory"
    (line,) = engine_events(record(9, admitted=("a",)))
    assert line.text == "admit a: recompute"


def test_the_padding_of_a_batch_is_told_where_it_begins() -> None:
    begun = record(7, admitted=("a", "b"), prefix_queried_tokens=90, padding_tokens=30)
    (line,) = engine_events(begun)
    assert line.text == "admit a, b: 90 tok, 0 cached, 30 of padding"


def test_a_failed_step_is_an_error() -> None:
    (line,) = engine_events(record(7, error="CUDA error: out of memory"))
    assert (line.level, line.source) == (Level.ERROR, "engine")
    assert line.text == "step 7 failed: CUDA error: out of memory"


def test_a_step_without_events_has_no_lines() -> None:
    assert engine_events(record(1)) == []


def test_a_knob_change_in_a_line() -> None:
    done = replace(change(), time=2.0)
    assert knob_event(done, epoch=10.0) == LogLine(
        12.0, Level.INFO, "knob", "max_num_batched_tokens 512→256 by you"
    )
    assert knob_event(replace(done, undoes=True)).text.startswith("undo: max_num_batched_tokens")
