"""The live data: who sees what of it, and what looking costs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

import pytest
from starlette.requests import Request
from textual.color import Color

from app.gateway.faults import Fault
from app.gateway.http.access import Access, Pages
from app.gateway.http.page import live_feed
from app.gateway.http.page.live import Visitors
from app.gateway.http.page.live_feed import LiveFeed
from app.gateway.http.page.routes import FOLDER, MODULES
from app.gateway.http.settings import HttpSettings
from engine.api.client import ChatMessage, Submission
from engine.api.glossary import GLOSSES, gloss
from engine.api.origin import Origin
from engine.api.status import OffPath
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine
from widgets.palette import MIN_CONTRAST, contrast

KEYS = {
    "ann": {"key": "ann's", "operator": True},
    "bob": {"key": "bob's"},
}
ANN = {"authorization": "Bearer ann's"}
BOB = {"x-api-key": "bob's"}


@contextmanager
def looking(serving: HttpServing, **headers: str) -> Iterator[Iterator[tuple[str, Any]]]:
    """The events of /live as kind and data."""
    with serving.http.stream("GET", "/live", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()

        def events() -> Iterator[tuple[str, Any]]:
            for line in lines:
                if line.startswith("event: "):
                    yield line[7:], json.loads(next(lines)[6:])

        yield events()


def submit(engine: ScriptedEngine, text: str, user: str = "carol") -> None:
    origin = Origin(user=user, source="mqtt", title=f"title of {text}")
    engine.submit(Submission(messages=(ChatMessage("user", text),), origin=origin))


def test_the_engine_is_told_as_it_is(serving: HttpServing) -> None:
    submit(serving.engine, "one two three")
    serving.engine.advance(2)
    with looking(serving) as events:
        kind, hello = next(events)
        assert (kind, hello["user"], hello["operator"]) == ("hello", "anybody", True)
        assert hello["knobs"]["max_num_seqs"]["unit"] == "sequences"
        assert hello["glosses"]["KV used"] == GLOSSES["KV"]
        assert hello["glosses"]["TTFT p50"] == gloss("TTFT", "p50")
        kind, frame = next(events)
        snapshot = serving.engine.snapshot()
        assert kind == "frame"
        assert snapshot is not None
        engine = frame["engine"]
        assert (engine["step"], engine["running"]) == (2, 1)
        assert [step["step"] for step in frame["steps"]] == [1, 2]
        assert engine["blocks"]["segments"] == json.loads(json.dumps(snapshot.blocks.segments))
        (row,) = frame["requests"]
        assert (row["user"], row["source"]) == ("carol", "mqtt")
        assert row["title"] == "title of one two three"
        assert row["ttft"] == pytest.approx(snapshot.requests[0].ttft)
        assert frame["knobs"]["knobs"]["policy"]["effective"] == "stall_free"
        # What is known is not told again.
        _, frame = next(events)
        assert frame["steps"] == []
        assert "knobs" not in frame
    serving.engine.finish_all()


def test_what_is_off_the_fast_path_is_told() -> None:
    embed = OffPath("embed", 576, 1, "differs from the model by 0.0039", 0.25)
    with (
        http_serving(ScriptedEngine(off_path=(embed,))) as serving,
        looking(serving) as events,
    ):
        next(events)
        _, frame = next(events)
        assert frame["engine"]["model"]["off_path"] == [asdict(embed)]
        assert frame["engine"]["model"]["off_kernels"] == ""


def test_without_a_model_it_says_so() -> None:
    with http_serving(ScriptedEngine(loaded=False)) as serving, looking(serving) as events:
        next(events)
        _, frame = next(events)
        assert (frame["engine"], frame["requests"], frame["steps"]) == (None, [], [])
        assert frame["status"]["phase"] == "empty"


def test_others_see_no_names_and_no_words() -> None:
    with http_serving(keys=KEYS) as serving:
        serving.engine.set_knobs({"user_weights": "dora=2", "ageing": 30}, "ann")
        submit(serving.engine, "secret")
        serving.engine.advance()
        with looking(serving, **ANN) as events:
            next(events)
            _, frame = next(events)
            assert all(word in json.dumps(frame) for word in ("secret", "carol", "dora=2"))
        with looking(serving, **BOB) as events:
            assert next(events)[1]["operator"] is False
            _, frame = next(events)
            text = json.dumps(frame)
            assert not any(word in text for word in ("secret", "carol", "dora", "ann", "mqtt"))
            assert frame["requests"][0]["state"] == "running"
            (change,) = frame["knobs"]["history"]
            assert change["changed"]["ageing"]["after"] == 30.0
        serving.engine.finish_all()


def test_knobs_are_turned_by_operators_only() -> None:
    with http_serving(keys=KEYS, api_key="sesame") as serving:

        def turn(message: object, headers: dict[str, str]) -> tuple[int, Any]:
            answer = serving.http.post("/live/knobs", json=message, headers=headers)
            return answer.status_code, answer.json()

        assert turn({"show": True}, {})[0] == 401
        code, payload = turn({"set": {"max_num_seqs": 4}}, BOB)
        assert (code, payload["error"]["type"]) == (403, "permission_error")
        assert "user 'bob' may not change knobs" in payload["error"]["message"]
        code, payload = turn({"set": {"max_num_seqs": 4}}, ANN)
        assert (code, payload["knobs"]["max_num_seqs"]["effective"]) == (200, 4)
        assert payload["history"][-1]["who"] == "ann"
        code, payload = turn({"undo": True}, {"x-api-key": "sesame"})
        assert (code, payload["knobs"]["max_num_seqs"]["effective"]) == (200, 32)
        assert (payload["history"][-1]["who"], payload["history"][-1]["undoes"]) == (
            "default",
            True,
        )
        for message, text in (
            ({"set": {"max_num_seqs": 99}}, "max_num_seqs is 99; it must be from 1 to 32"),
            ({"set": {"nonsense": 1}}, "nonsense is not a knob"),
            ({"turn": 1}, "turn is not part of a message"),
            ([], "a message must be an object"),
        ):
            code, payload = turn(message, ANN)
            assert (code, payload["ok"]) == (400, False)
            assert text in payload["error"]["message"]
        answer = serving.http.post("/live/knobs", content=b"{", headers=ANN)
        assert answer.status_code == 400
        answer = serving.http.post("/live/knobs", content=b" " * 70_000, headers=ANN)
        assert answer.status_code == 413


def test_without_keys_another_page_is_not_answered(serving: HttpServing) -> None:
    host = serving.url.removeprefix("http://")
    port = host.rpartition(":")[2]
    for headers, code in (
        ({"host": host}, 200),
        ({"host": f"localhost:{port}"}, 200),
        ({"host": f"[::1]:{port}"}, 200),
        ({"host": host, "origin": f"http://{host}"}, 200),
        ({"host": f"evil.example:{port}"}, 403),
        ({"host": f"localhost.evil.example:{port}"}, 403),
        ({"host": "[:"}, 403),
        ({"host": host, "origin": "http://evil.example"}, 403),
        ({"host": host, "origin": "null"}, 403),
        ({"host": host, "origin": f"http://localhost:{port}"}, 403),
    ):
        answer = serving.http.post("/live/knobs", json={"show": True}, headers=headers)
        assert answer.status_code == code, (headers, answer.text)
        if code == 403:
            assert serving.http.get("/live", headers=headers).status_code == 403


def test_nobody_looks_where_nobody_listens(serving: HttpServing) -> None:
    feed = serving.gateway._live
    serving.until(lambda: not feed._places)  # of tests before
    with looking(serving) as one, looking(serving) as other:
        for events in (one, other):
            next(events)
            next(events)
        assert feed.num_listeners == 2
        assert feed._polling is not None
    serving.until(lambda: feed.num_listeners == 0)
    assert feed._polling is None


def test_no_more_pages_than_there_may_be(
    serving: HttpServing, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving.until(lambda: not serving.gateway._live._places)  # of tests before
    monkeypatch.setattr(live_feed, "MAX_LISTENERS", 1)
    with looking(serving) as events:
        next(events)
        next(events)
        answer = serving.http.get("/live")
        assert answer.status_code == 503
        assert "1 pages are open; at most 1 may be" in answer.text
    serving.until(lambda: serving.gateway._live.num_listeners == 0)


def test_a_key_has_some_of_the_places_and_operators_keep_theirs() -> None:
    feed = LiveFeed(ScriptedEngine())
    with ExitStack() as stack:

        def take(who: str, is_operator: bool) -> tuple[int, int]:
            """How many places there are for somebody, and the code of the refusal."""
            for number in range(100):
                try:
                    stack.enter_context(feed.place(who, is_operator))
                except Fault as fault:
                    return number, fault.code
            raise AssertionError

        assert take("bob", False) == (16, 429)
        assert take("ann", False) == (16, 429)
        assert take("eve", False) == (16, 429)
        assert take("joe", False) == (8, 503)
        assert take("sam", False) == (0, 503)
        assert take("boss", True) == (8, 503)
    assert take("sam", False) == (16, 429)


def test_open_pages_do_not_hold_the_end_up() -> None:
    with http_serving() as serving, looking(serving) as events:
        next(events)
        next(events)
        began = time.monotonic()
        serving.gateway.stop()
        assert time.monotonic() - began < 2.0
        assert list(events) == []


async def test_a_slow_reader_misses_frames_and_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "FRAME_SECONDS", 0.0)
    monkeypatch.setattr(live_feed, "STEPS_HELD", 64)
    engine = ScriptedEngine(lambda asked: "word " * 100)
    feed = LiveFeed(engine)
    submit(engine, "go on")
    quick, slow = feed.events(True), feed.events(True)
    seen = [json.loads(await anext(quick)), json.loads(await anext(slow))]
    assert [one["steps"] for one in seen] == [[], []]
    quick_steps = []
    for _ in range(50):
        engine.advance()
        quick_steps += json.loads(await anext(quick))["steps"]
    while len(quick_steps) < 50:
        quick_steps += json.loads(await anext(quick))["steps"]
    caught_up = json.loads(await anext(slow))
    assert caught_up["steps"] == quick_steps
    assert [step["step"] for step in quick_steps] == list(range(1, 51))
    # A frame is made once for both, and there are no more listeners than there may be.
    assert feed._frame is not None
    assert feed._frame.body(True) is feed._frame.body(True)
    await quick.aclose()
    assert feed._polling is not None
    await slow.aclose()
    assert feed._polling is None
    engine.finish_all()


async def test_what_goes_wrong_ends_the_events_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ScriptedEngine()
    feed = LiveFeed(engine)
    events = feed.events(True)
    with monkeypatch.context() as broken:
        broken.setattr(engine, "status", lambda: 1 / 0)
        assert [event async for event in events] == []
    assert "the live data could not be made" in caplog.text
    again = feed.events(True)
    assert json.loads(await anext(again))["status"]["phase"] == "ready"
    feed.close()
    assert [event async for event in again] == []
    with pytest.raises(Fault, match="the server is shutting down"), feed.place("anybody", True):
        pass


def test_the_files_of_the_page_are_served_strictly(serving: HttpServing) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page/page.css", "text/css"),
        *((f"/page/{name}", "text/javascript") for name in MODULES),
        ("/page/icon.svg", "image/svg+xml"),
    ):
        answer = serving.http.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert "unsafe" not in policy
        known = {"if-none-match": answer.headers["etag"]}
        assert serving.http.get(path, headers=known).status_code == 304
    assert serving.http.get("/page/asset.py").status_code == 404


def test_modules_of_the_page_are_fetched_at_once() -> None:
    """Each import by another module would otherwise wait for that module."""
    linked = re.findall(r'"modulepreload" href="/page/(.+)"', (FOLDER / "index.html").read_text())
    assert sorted([*linked, "page.js"]) == MODULES


def test_the_page_is_small() -> None:
    names = ("index.html", "page.css", "icon.svg", *MODULES)
    assert sum((FOLDER / name).stat().st_size for name in names) < 150_000


def test_text_is_legible_in_light_dark_and_high_contrast() -> None:
    style = (FOLDER / "page.css").read_text()
    schemes = re.findall(r":root \{(.+?)\}", style, re.DOTALL)
    light, dark, *more = (dict(re.findall(r"--(\w+): (#\w+);", one)) for one in schemes)
    # Those of high contrast change the others.
    wished = [light, dark, light | more[0], dark | more[1]]
    assert len(more) == 2
    used = {*re.findall(r"[; {]color: var\(--(\w+)\)", style)}
    assert {"muted", "decode", "prefilling", "bad"} <= used
    for scheme in wished:
        colours = {name: Color.parse(to) for name, to in scheme.items()}
        for name in used - {"on"}:
            for back in ("panel", "sunk"):
                assert contrast(colours[name], colours[back]) >= MIN_CONTRAST, (name, back)
        assert contrast(colours["on"], colours["accent"]) >= MIN_CONTRAST


def visitors_of(access: Access, host: str) -> Visitors:
    return Visitors(access, Pages(access, (host,)))


def request(client: str, host: str, server: str = "192.168.1.5", **headers: str) -> Request:
    named = {"host": host, **headers}
    return Request(
        {
            "type": "http",
            "client": (client, 50_000),
            "server": (server, 8000),
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }
    )


@pytest.mark.parametrize(
    ("client", "host", "is_operator"),
    [
        ("127.0.0.1", "localhost:8000", True),
        ("127.0.0.1", "127.0.0.2", True),
        ("::1", "[::1]:8000", True),
        ("::ffff:127.0.0.1", "LOCALHOST", True),
        ("192.168.1.9", "192.168.1.5:8000", False),
        ("192.168.1.9", "box.example:8000", False),
        # A container does not know the address at which it is reached from outside.
        ("192.168.1.9", "192.168.1.6", False),
        ("192.168.1.9", "[fe80::1]:8000", False),
        ("192.168.1.9", "batchdeck:8000", False),
    ],
)
def test_without_keys_the_machine_itself_is_the_operator(
    client: str, host: str, is_operator: bool
) -> None:
    visitors = visitors_of(Access({}), "Box.example")
    asked = request(client, host)
    assert visitors.visitor(asked) == ("anybody", is_operator, client)
    if is_operator:
        assert visitors.operator(asked) == "anybody"
    else:
        with pytest.raises(Fault, match="knobs can be changed from this machine only") as refused:
            visitors.operator(asked)
        assert refused.value.code == 403


@pytest.mark.parametrize("host", ["", "evil.example", "1.2.3.evil", "127.0.0.1.evil.example"])
def test_without_keys_another_name_is_refused(host: str) -> None:
    with pytest.raises(Fault, match=r"Host is .*; without keys it must be an address"):
        visitors_of(Access({}), "0.0.0.0").visitor(request("127.0.0.1", host))


def test_with_keys_the_key_alone_decides() -> None:
    settings = HttpSettings(
        api_key="sesame", keys={"ann": {"key": "ann's", "operator": True}, "bob": {"key": "bob's"}}
    )
    visitors = visitors_of(Access(settings.secrets(), settings.operators()), "0.0.0.0")
    for key, user, is_operator in (
        ("sesame", "default", True),
        ("ann's", "ann", True),
        ("bob's", "bob", False),
    ):
        asked = request(
            "127.0.0.1", "any.example", authorization=f"Bearer {key}", origin="https://any.example"
        )
        assert visitors.visitor(asked) == (user, is_operator, user)


def test_a_key_that_is_named_as_the_single_one_has_its_own_setting() -> None:
    keys = {"default": {"key": "another"}}
    assert HttpSettings(api_key="one", keys=keys).operators() == frozenset()
    assert HttpSettings(api_key="one").operators() == {"default"}


def test_any_name_may_be_allowed() -> None:
    asked = request("192.168.1.9", "box.example")
    assert visitors_of(Access({}), "*").visitor(asked).user == "anybody"


@pytest.mark.parametrize(
    ("site", "may"),
    [("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)],
)
def test_pictures_of_other_pages_take_no_place(site: str, may: bool) -> None:
    """They state no origin."""
    asked = request("127.0.0.1", "localhost:8000", **{"sec-fetch-site": site})
    if may:
        assert visitors_of(Access({}), "0.0.0.0").visitor(asked).is_operator
    else:
        with pytest.raises(Fault, match=f"Sec-Fetch-Site is '{site}'"):
            visitors_of(Access({}), "0.0.0.0").visitor(asked)
