"""Batches over HTTP: each line has one answer, whatever comes between."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from app.gateway.http.batches import batch_run, room
from app.store.batches import Batches
from app.store.database import HinderedError
from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.errors import OverloadedError
from engine.api.knobs import Knobs
from engine.api.lifecycle import FinishReason
from engine.api.stream import RequestStream
from tests.support.batch_asking import ENDED, answers, asking, client_of, line, said, start
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

NAMES = [f"r{number}" for number in range(12)]


def ended(serving: HttpServing, client: OpenAI, batch: Batch) -> Batch:
    """A batch at its end; the engine steps meanwhile, if something runs it."""
    found = [batch]

    def has_ended() -> bool:
        found[0] = client.batches.retrieve(batch.id)
        return found[0].status in ENDED

    serving.until(has_ended)
    return found[0]


def counts(batch: Batch) -> tuple[int, int, int]:
    counted = batch.request_counts
    assert counted is not None
    return counted.total, counted.completed, counted.failed


def running(serving: HttpServing) -> int:
    snapshot = serving.engine.snapshot()
    assert snapshot is not None
    return snapshot.num_running + snapshot.num_waiting


def all_said(client: OpenAI, batch: Batch) -> dict[str, str]:
    return {name: said(one) for name, one in answers(client, batch.output_file_id).items()}


ECHOED = {name: f"You said: {name}" for name in NAMES}


def test_openais_client_uploads_polls_and_downloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "app.gateway.http.batches")
    with http_serving() as serving, serving.running():
        client = client_of(serving.url)
        lines = [line(name) for name in NAMES]
        lines[4] = line("r4", {"messages": []})
        lines[5:5] = ["", " \r"]
        batch = start(client, lines, metadata={"of": "tests"})
        assert (batch.status, batch.metadata) == ("validating", {"of": "tests"})
        batch = ended(serving, client, batch)
        assert (batch.status, counts(batch)) == ("completed", (12, 11, 1))
        assert all_said(client, batch) == {n: t for n, t in ECHOED.items() if n != "r4"}
        (fault,) = answers(client, batch.error_file_id).values()
        assert fault["custom_id"] == "r4"
        assert fault["response"]["status_code"] == 400
        assert fault["response"]["body"]["error"]["param"] == "messages"
        assert batch.usage is not None
        assert batch.usage.output_tokens == 11 * 3
        assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens
        moments = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        assert None not in moments
        assert batch.expires_at == batch.created_at + 24 * 3600
        output = client.files.retrieve(batch.output_file_id or "")
        assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
        assert [one.id for one in client.batches.list(limit=1)] == [batch.id]
        with pytest.raises(openai.ConflictError, match="is completed; it cannot be cancelled"):
            client.batches.cancel(batch.id)
        with pytest.raises(openai.BadRequestError, match="which has answers"):
            client.batches.create(
                input_file_id=output.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
    assert {one.priority for one in serving.engine.submissions} == {-1_000_000}
    prefix = f"{batch.id} of anybody"
    assert caplog.messages == [
        f"{prefix}: 12 requests, 0 of them answered",
        f"{prefix} is completed: 12 requests, 11 answered, 1 with an error",
    ]


def test_an_answer_has_the_headers_that_its_request_would_get(serving: HttpServing) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    loose = {"guided_json": schema, "mirostat": 2}
    client = client_of(serving.url)
    with serving.running():
        bodies = {"a": asking("a", **loose), "b": asking("b")}
        batch = ended(serving, client, start(client, [line(n, b) for n, b in bodies.items()]))
        alone = serving.http.post("/v1/chat/completions", json=bodies["a"])
    headers = {
        name: one["response"].get("headers")
        for name, one in answers(client, batch.output_file_id).items()
    }
    names = ("x-batchdeck-ignored", "x-batchdeck-loosened")
    assert headers == {"a": {name: alone.headers[name] for name in names}, "b": None}
    assert headers["a"]["x-batchdeck-loosened"] == "guided_json#/uniqueItems"


@pytest.mark.parametrize(
    ("lines", "code", "where", "param"),
    [
        ([line("a"), "{", line("b")], "invalid_json_line", 2, None),
        ([line("a"), "", line("a")], "duplicate_custom_id", 3, "custom_id"),
        ([line("a", url="/v1/embeddings")], "invalid_url", 1, "url"),
        ([line("a", url="/v1/completions")], "mismatched_endpoint", 1, "url"),
        ([line("a", method="GET")], "invalid_method", 1, "method"),
        ([line("a", body=asking("a", model="gpt-4o"))], "model_not_found", 1, "body.model"),
        (['{"url": "/v1/chat/completions", "body": {}}'], "invalid_custom_id", 1, "custom_id"),
        (["", ""], "empty_file", None, None),
    ],
)
def test_a_file_that_is_wrong_is_told_by_its_line(
    serving: HttpServing, lines: list[str], code: str, where: int | None, param: str | None
) -> None:
    client = client_of(serving.url)
    batch = ended(serving, client, start(client, lines))
    assert (batch.status, counts(batch)) == ("failed", (0, 0, 0))
    assert batch.errors is not None
    assert batch.errors.data is not None
    (error,) = batch.errors.data
    assert (error.code, error.line, error.param) == (code, where, param)
    assert error.message
    assert serving.engine.submissions == []


def test_each_endpoint_answers_its_own(serving: HttpServing) -> None:
    client = client_of(serving.url)
    with serving.running():
        for url, body in (
            ("/v1/completions", {"prompt": "Once"}),
            ("/v1/responses", {"input": "hello", "store": True}),
        ):
            asked: Any = {"endpoint": url}
            batch = ended(serving, client, start(client, [line("a", body, url=url)], **asked))
            assert counts(batch) == (1, 1, 0)
            assert batch.usage is not None
            assert batch.usage.output_tokens > 0
    body = answers(client, batch.output_file_id)["a"]["response"]["body"]
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(body["id"])


@pytest.mark.parametrize("separate", [False, True])
def test_lines_have_the_salts_of_their_owner(separate: bool) -> None:
    """As what the same key asks at once."""
    keys = {"ann": {"key": "a"}, "bob": {"key": "b"}}
    with http_serving(keys=keys, separate_caches=separate) as serving, serving.running():
        salts: list[dict[str, str]] = []
        for user in ("a", "b"):
            client = client_of(serving.url, user)
            lines = [line("x"), line("y", asking("y") | {"cache_salt": "s"})]
            ended(serving, client, start(client, lines))
            now = asking("now") | {"cache_salt": "s"}
            serving.http.post("/v1/chat/completions", json=now, headers={"x-api-key": user})
            made = serving.engine.submissions[-3:]
            salts.append({one.messages[-1].content: one.cache_salt for one in made})
        assert [one["y"] == one["now"] != one["x"] for one in salts] == [True, True]
        assert all((salts[0][name] != salts[1][name]) is separate for name in ("x", "y", "now"))


def test_nobody_sees_anothers() -> None:
    with http_serving(keys={"ann": {"key": "a"}, "bob": {"key": "b"}}) as serving:
        ann, bob = client_of(serving.url, "a"), client_of(serving.url, "b")
        with serving.running():
            batch = ended(serving, ann, start(ann, [line("x")]))
        assert {one.origin.user for one in serving.engine.submissions} == {"ann"}
        for call in (
            lambda: bob.files.retrieve(batch.input_file_id),
            lambda: bob.files.content(batch.output_file_id or ""),
            lambda: bob.files.delete(batch.input_file_id),
            lambda: bob.batches.retrieve(batch.id),
            lambda: bob.batches.cancel(batch.id),
            lambda: bob.batches.list(after=batch.id),
            lambda: bob.files.list(after=batch.input_file_id),
            lambda: bob.batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            ),
        ):
            with pytest.raises(openai.NotFoundError, match="must be the id of one of your"):
                call()
        assert list(bob.files.list()) == list(bob.batches.list()) == []
        with pytest.raises(openai.AuthenticationError):
            client_of(serving.url, "c").files.list()


def test_what_is_cancelled_keeps_what_was_answered(serving: HttpServing) -> None:
    client = client_of(serving.url)
    serving.engine.set_knobs({"max_num_seqs": 2}, "test")
    batch = start(client, [line(name) for name in NAMES])
    serving.until(lambda: serving.engine.advance() and counts(client.batches.retrieve(batch.id))[1])
    batch = client.batches.cancel(batch.id)
    assert batch.status == "cancelling"
    batch = ended(serving, client, batch)
    assert batch.status == "cancelled"
    total, completed, failed = counts(batch)
    assert total == completed + failed == 12
    said, faults = all_said(client, batch), answers(client, batch.error_file_id)
    assert said == {name: text for name, text in ECHOED.items() if name in said}
    assert {*said} | {*faults} == {*NAMES}
    assert {(one["error"]["code"], one["response"]) for one in faults.values()} == {
        ("batch_cancelled", None)
    }
    assert client.batches.cancel(batch.id) == batch
    serving.engine.set_knobs({"max_num_seqs": Knobs().max_num_seqs}, "test")


def test_a_restart_loses_nothing_and_asks_nothing_twice(store_file: Path) -> None:
    with http_serving(store_file=store_file) as first:
        client = client_of(first.url)
        batch = start(client, [line(name) for name in NAMES])
        first.until(lambda: first.engine.advance() and counts(client.batches.retrieve(batch.id))[1])
        first.until(lambda: running(first))
    before = [one.messages[-1].content for one in first.engine.submissions]
    with http_serving(store_file=store_file) as second, second.running():
        client = client_of(second.url)
        batch = ended(second, client, batch)
    assert (batch.status, counts(batch)) == ("completed", (12, 12, 0))
    after = [one.messages[-1].content for one in second.engine.submissions]
    assert len({*after}) == len(after) < 12
    assert {*before} | {*after} == {*NAMES}


def test_of_two_programs_one_runs_it_and_the_other_takes_over(store_file: Path) -> None:
    with http_serving(store_file=store_file) as first, http_serving(store_file=store_file) as other:
        here, there = client_of(first.url), client_of(other.url)
        lines = [line(name) for name in NAMES]
        batch = start(here, lines)
        with other.running():
            second = ended(other, there, start(there, lines))
        assert all_said(here, second) == ECHOED
        first.until(lambda: running(first))
        assert len(other.engine.submissions) == 12
        third = start(here, lines)
        assert there.batches.cancel(third.id).status == "cancelling"
        assert ended(first, here, third).status == "cancelled"
        first.stop(0.0)
        with other.running():
            batch = ended(other, there, batch)
        assert (batch.status, all_said(there, batch)) == ("completed", ECHOED)


def test_what_is_unanswered_when_it_expires_is_an_error(store_file: Path) -> None:
    with http_serving(store_file=store_file) as first:
        client = client_of(first.url)
        batch = start(client, [line(name) for name in NAMES])
        first.until(lambda: first.engine.advance() and counts(client.batches.retrieve(batch.id))[1])
    with closing(sqlite3.connect(store_file)) as db, db:
        db.execute("UPDATE batch SET expires = 1")
    with http_serving(store_file=store_file) as second:
        client = client_of(second.url)
        batch = ended(second, client, batch)
        assert batch.status == "expired"
        said, faults = all_said(client, batch), answers(client, batch.error_file_id)
    assert said
    assert {*said} | {*faults} == {*NAMES}
    assert not {*said} & {*faults}
    assert {one["error"]["code"] for one in faults.values()} == {"batch_expired"}


def test_it_waits_for_a_model_and_for_its_own() -> None:
    with http_serving(ScriptedEngine(loaded=False)) as serving, serving.running():
        client, engine = client_of(serving.url), serving.engine
        lines = [line(name, asking(name, model="one")) for name in NAMES]
        batch, cancelled = start(client, lines), start(client, lines)
        assert client.batches.cancel(cancelled.id).status == "cancelling"
        assert counts(ended(serving, client, cancelled)) == (0, 0, 0)
        assert client.batches.retrieve(batch.id).status == "validating"
        engine.load(LoadRequest("one"))
        engine.ready()
        engine.set_knobs({"paused": True}, "test")
        most = Knobs().max_num_seqs // room.WAITING_PART
        serving.until(lambda: running(serving) == most)
        engine.load(LoadRequest("two"))
        engine.ready()
        # What was asked before is answered, and the others wait.
        serving.until(lambda: counts(client.batches.retrieve(batch.id)) == (12, most, 0))
        assert len(engine.submissions) == most
        engine.load(LoadRequest("one"))
        engine.ready()
        assert counts(ended(serving, client, batch)) == (12, 12, 0)


def test_others_have_the_places_of_its_lines() -> None:
    """There is one slot, and a line has it, when somebody else comes."""
    engine = ScriptedEngine(lambda asked: "long " * 200, knobs=Knobs(max_num_seqs=1))
    with http_serving(engine) as serving:
        client = client_of(serving.url)
        batch = start(client, [line(name) for name in NAMES])

        def are_full() -> bool:
            snapshot = engine.snapshot()
            assert snapshot is not None
            engine.advance()
            return snapshot.num_running == 1

        serving.until(are_full)
        asked = (ChatMessage("user", "me"),)
        stream = engine.submit(Submission(messages=asked, sampling={"max_tokens": 3}))

        def has_ended() -> bool:
            engine.advance()
            delta = stream.drain()
            return delta is not None and delta.finish is not None

        serving.until(has_ended)
        # It waited for no line to end.
        assert counts(client.batches.retrieve(batch.id)) == (12, 0, 0)
        client.batches.cancel(batch.id)
        assert ended(serving, client, batch).status == "cancelled"


def test_others_find_a_slot_that_is_free() -> None:
    engine = ScriptedEngine(lambda asked: "long " * 200, knobs=Knobs(max_num_seqs=4))
    with http_serving(engine) as serving:
        client = client_of(serving.url)
        batch = start(client, [line(name) for name in NAMES])

        def num_running() -> int:
            engine.advance()
            snapshot = engine.snapshot()
            assert snapshot is not None
            assert snapshot.num_running <= 3
            return snapshot.num_running

        serving.until(lambda: num_running() == 3)
        for _ in range(20):
            assert num_running() == 3
        client.batches.cancel(batch.id)
        assert ended(serving, client, batch).status == "cancelled"


def test_a_quota_makes_it_wait() -> None:
    quota = {"requests": 1, "per_minute": 2}
    with http_serving(quota=quota) as serving, serving.running():
        client = client_of(serving.url)
        batch = start(client, [line(name) for name in NAMES])
        serving.until(lambda: counts(client.batches.retrieve(batch.id)) == (12, 2, 0))
        # What they ask otherwise has its own measure.
        assert serving.http.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        client.batches.cancel(batch.id)
        assert counts(ended(serving, client, batch)) == (12, 2, 10)


class Refusing(ScriptedEngine):
    """Refuses each request once for a reason of the moment, and one always with its step."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def submit(self, submission: Submission, wake: Any = None) -> RequestStream:
        text = submission.messages[-1].content
        self.asked.append(text)
        if self.asked.count(text) == 1:
            stream = RequestStream(submission.request_id, wake)
            stream.end_unserved(FinishReason.ERROR, OverloadedError("the queue is full").info())
            return stream
        stream = super().submit(submission, wake)
        if text == "r3":
            self.break_request(submission.request_id, "the step failed")
        return stream


def test_what_fails_for_a_reason_of_the_moment_is_tried_again() -> None:
    with http_serving(Refusing()) as serving, serving.running():
        client = client_of(serving.url)
        batch = ended(serving, client, start(client, [line(name) for name in NAMES]))
        assert counts(batch) == (12, 11, 1)
        (fault,) = answers(client, batch.error_file_id).values()
        assert fault["custom_id"] == "r3"
        assert fault["response"]["status_code"] == 500
        assert serving.engine.asked.count("r3") == 1 + batch_run.MOST_STEPS
        assert serving.engine.asked.count("r4") == 2


def test_a_disk_that_is_full_makes_it_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep, full = Batches.answer, [True]

    def answer(self: Batches, *args: Any) -> int:
        if full[0]:
            raise HinderedError("store.db: the disk is full (disk full)")
        return keep(self, *args)

    monkeypatch.setattr(Batches, "answer", answer)
    with http_serving() as serving, serving.running():
        client = client_of(serving.url)
        batch = start(client, [line(name) for name in NAMES])
        serving.until(lambda: "the disk is full" in caplog.text)
        full[0] = False
        assert all_said(client, ended(serving, client, batch)) == ECHOED
    assert caplog.text.count("store.db: the disk is full") == 1


def test_a_batch_whose_owner_may_store_no_more_ends_with_what_there_was_room_for() -> None:
    keys = {"ann": {"key": "any", "stored_bytes": 20_000}}
    with http_serving(keys=keys) as serving, serving.running():
        client = client_of(serving.url)
        batch = start(client, [line(f"r{number}") for number in range(100)])
        assert ended(serving, client, batch).status == "completed"
        found = client.batches.retrieve(batch.id)
        assert found.request_counts.failed
        assert "storage_exceeded" in client.files.content(found.error_file_id).text
        # Nothing more begins, and what is deleted makes room.
        with pytest.raises(openai.APIStatusError, match="delete some") as refused:
            client.batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
        assert refused.value.status_code == 413


def test_without_a_store_there_is_chat_and_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with http_serving(store_file=tmp_path) as serving:  # which is a folder
        assert serving.ask().status_code == 200
        with pytest.raises(openai.InternalServerError, match="log says why") as refused:
            client_of(serving.url).batches.list()
        assert refused.value.status_code == 503
        assert f"{tmp_path}: it cannot be" in caplog.text
        serving.until(lambda: "batches wait: " in caplog.text)


def test_the_screen_sees_the_chats_of_lines(serving: HttpServing) -> None:
    client = client_of(serving.url)
    batch = start(client, [line("hello")])
    serving.until(lambda: serving.engine.submissions)
    (asked,) = serving.engine.submissions
    transcript = serving.gateway.transcript(asked.request_id)
    assert transcript is not None
    assert transcript.messages[0].content == "hello"
    with serving.running():
        assert counts(ended(serving, client, batch)) == (1, 1, 0)


def test_a_mistake_of_ours_ends_one_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ScriptedEngine):
        def submit(self, submission: Submission, wake: Any = None) -> RequestStream:
            if submission.messages[-1].content == "r1":
                raise ZeroDivisionError
            return super().submit(replace(submission), wake)

    with http_serving(Broken()) as serving, serving.running():
        client = client_of(serving.url)
        batch = ended(serving, client, start(client, [line(name) for name in NAMES]))
        assert counts(batch) == (12, 11, 1)
        assert answers(client, batch.error_file_id)["r1"]["response"]["status_code"] == 500
