"""The page, in a real Chromium, over a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.api.client import ChatMessage, LoadRequest, Submission
from engine.api.config import EngineConfig
from engine.api.glossary import GLOSSES
from engine.api.knobs import Knobs
from tests.support.browser import CHROMIUM, Browser, BrowserPage
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_core import BASE
from tests.support.scripted_engine import ScriptedEngine
from widgets.figures import compact, duration, percent
from widgets.panels.knob_history import effect_line

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

LIVE = "document.getElementById('link').className === 'live'"
KEYS = {"ann": {"key": "ann's", "operator": True}, "bob": {"key": "bob's"}}
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Any]:
    pages: list[BrowserPage] = []

    def opened(serving: HttpServing, **options: Any) -> BrowserPage:
        pages.append(browser.open(serving.url, **options))
        return pages[-1]

    yield opened
    for page in pages:
        page.close()


def has(text: str, selector: str) -> str:
    """Whether something on the page has a text, as JavaScript."""
    found = f"document.querySelector({json.dumps(selector)})"
    return f"{found}?.innerText.includes({json.dumps(text)})"


def test_a_chat_streams_and_is_kept(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving)
    page.until(LIVE)
    page.type("#draft", f"hello {MARKUP}")
    page.press("Enter")
    serving.until(lambda: serving.engine.submissions)
    # A token, and then the rest: the page shows what there is.
    serving.engine.advance(2)
    page.until("document.querySelector('.message.running .text')?.textContent.length > 0")
    assert page.value("!document.getElementById('stop').hidden")
    serving.engine.finish_all()
    page.until("document.querySelector('.message.assistant .stats')?.textContent.includes('TPOT')")
    # What users and models write is text.
    page.until(has(MARKUP, ".message.assistant"))
    assert page.value("document.querySelectorAll('#messages img').length") == 0
    row = serving.engine.snapshot().requests[0]
    assert page.value("document.querySelector('#sessions-rows td.title').title").startswith("hello")
    assert row.finish_reason == "stop"
    page.until("document.querySelector('#sessions-rows td.state').textContent === 'done'")
    page.reload()
    page.until(f"{LIVE} && {has(MARKUP, '#messages')}")
    assert page.complaints == []


def test_several_chats_at_once_and_one_is_stopped(serving: HttpServing, open_page: Any) -> None:
    engine = serving.engine
    page = open_page(serving)
    page.until(LIVE)
    for number, text in enumerate(("first of all", "then another")):
        page.click("#new-chat")
        page.type("#draft", text)
        page.press("Enter")
        serving.until(lambda count=number + 1: len(engine.submissions) == count)
    engine.advance(1)
    page.until("document.querySelectorAll('#chats .busy').length === 2")
    page.click("#stop")
    page.until(has("stopped", "#messages"))
    # The page knows before the server does.
    serving.until(lambda: any(one.finish_reason == "abort" for one in engine.snapshot().requests))
    engine.finish_all()
    page.until("document.querySelectorAll('#chats .busy').length === 0")
    assert page.value("document.querySelector('#chats .unread').textContent") == "first of all"
    # Those of the tests before are there, too.
    ends = {one.origin.title: one.finish_reason for one in engine.snapshot().requests}
    assert (ends["first of all"], ends["then another"]) == ("stop", "abort")
    page.click("#chats .unread")
    page.until(has("first of all", ".message.assistant"))
    assert page.complaints == []


def test_thinking_is_folded(open_page: Any) -> None:
    engine = ScriptedEngine(lambda asked: "<think>step by step</think>forty two")
    with http_serving(engine) as serving, serving.running():
        page = open_page(serving)
        page.until(LIVE)
        page.type("#draft", "what is it?")
        page.press("Enter")
        page.until("document.querySelector('.message.assistant .stats')?.textContent")
        assert page.value(has("forty two", ".message.assistant"))
        page.until("document.querySelector('.message details div')?.textContent.length > 0")
        assert page.value("document.querySelector('.message details').open") is False
        assert "step by step" not in page.text()
        assert page.complaints == []


@pytest.mark.parametrize("stated", [{}, {"temperature": 0.2}])
def test_a_model_without_a_template_is_marked_and_asked_as_in_chats(
    open_page: Any, stated: dict[str, object]
) -> None:
    engine = ScriptedEngine()
    engine.load(LoadRequest(BASE))
    engine.ready()
    with http_serving(engine, sampling=stated) as serving, serving.running():
        page = open_page(serving)
        page.until(f"{LIVE} && {has('base · completion · ', '#model')}")
        page.type("#draft", "hello")
        page.press("Enter")
        page.until("document.querySelector('.message.assistant .stats')?.textContent")
        assert engine.submissions[-1].chat_defaults
        assert engine.submissions[-1].sampling == stated
        (model,) = serving.http.get("/v1/models").json()["data"]
        assert model["has_chat_template"] is False
        assert page.complaints == []


def test_a_knob_turns_and_what_it_did_is_seen(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving)
    page.until(f"{LIVE} && document.getElementById('knob-max_num_seqs')")
    page.click("[aria-label='Less max_num_seqs']")
    page.until("document.getElementById('knob-max_num_seqs').value === '16'")
    page.until(has("max_num_seqs 32 → 16", "#history"))
    snapshot = serving.engine.snapshot()
    assert {one.name: one.effective for one in snapshot.knobs}["max_num_seqs"] == 16
    # What is refused is told, and the field shows what holds.
    field = "document.getElementById('knob-max_num_seqs')"
    page.value(f"{field}.value = '99'; {field}.dispatchEvent(new Event('change'))")
    page.until(has("max_num_seqs is 99; it must be from 1 to 32", "#knob-error"))
    assert page.value(f"{field}.value") == "16"
    page.click("#undo")
    page.until(f"{field}.value === '32'")
    # The terminal turns one: the page sees that, too.
    serving.engine.set_knobs({"prefix_caching": False}, "screen")
    page.until("!document.getElementById('knob-prefix_caching').checked")
    refused = [one for one in page.complaints if "400" not in one]
    assert refused == []


def test_the_effect_of_a_change_is_the_one_that_the_terminal_shows(open_page: Any) -> None:
    engine = ScriptedEngine(lambda asked: "one two three four")

    def ask_six() -> None:
        for _ in range(6):
            engine.submit(Submission(messages=(ChatMessage("user", "hello"),)))
        engine.finish_all()

    def shown() -> str:
        snapshot = engine.snapshot()
        assert snapshot is not None
        assert snapshot.effect is not None
        return effect_line(snapshot.effect)

    with http_serving(engine) as serving:
        page = open_page(serving)
        page.until(LIVE)
        assert page.value("document.getElementById('effect').textContent") == ""
        ask_six()
        engine.set_knobs({"max_num_seqs": 5}, "screen")
        page.until(has(f"max_num_seqs 32 → 5: {shown()}", "#effect"))
        assert shown().startswith("not comparable: none came in ")
        ask_six()
        page.until(has(f"max_num_seqs 32 → 5: {shown()}", "#effect"))
        assert shown().startswith("tok/s ")
        assert " · TTFT p50 " in shown()
        assert page.complaints == []


def test_each_figure_explains_itself(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving)
    page.until(f"{LIVE} && document.querySelectorAll('#kpis > div').length === 10")
    unexplained = "[...document.querySelectorAll('{}')].filter((one) => !one.title)"
    for figures in ("#kpis > div", "#latency-rows th", "#cache-legend .key"):
        shown = unexplained.format(figures)
        assert page.value(f"{shown}.map((one) => one.textContent)") == [], figures
    words = page.value("document.querySelector('#kpis > div:nth-child(5)').title")
    assert words == GLOSSES["KV"]
    assert page.complaints == []


NUMBERS = [
    *(0.0, 0.0004, 0.00125, 0.00994, 0.00996, 0.0125, 0.25, 0.5, 0.994, 0.996, 0.9994, 0.9996, 1.0),
    *(1.005, 1.25, 2.5, 6.25, 9.94, 9.95, 9.994, 9.996, 12.5, 13.5, 59.94, 59.96, 99.5, 600.0),
    *(999.4, 999.5, 1234.0, 3599.6, 9950.0, 12_500.0, 36_000.0, 99_950.0, 360_000.0, 1e6, 2.5e9),
]


def test_numbers_are_written_as_in_the_terminal(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving)
    page.until(LIVE)
    shown = page.value(
        "import('/page/figures.js').then(({ compact, duration, percent }) => "
        f"{json.dumps([*NUMBERS, None])}.map((one) => [compact(one), duration(one), percent(one)]))"
    )
    expected = [[compact(one), duration(one), percent(one)] for one in (*NUMBERS, None)]
    assert shown == expected


def test_a_wrong_key_is_told_and_another_one_asked_for(open_page: Any) -> None:
    with http_serving(keys=KEYS) as serving, serving.running():
        page = open_page(serving)
        page.until("document.getElementById('key-dialog').open")
        page.type("#key", "wrong")
        page.press("Enter")
        page.until(has("the API key is not known here", "#key-dialog"))
        assert page.value("document.getElementById('key-dialog').open")
        page.type("#key", "bob's")
        page.press("Enter")
        page.until(f"{LIVE} && {has('live as bob', '#link')}")
        # Bob may look, and ask.
        page.until("document.getElementById('knob-policy')?.disabled")
        assert page.value("document.getElementById('undo').hidden")
        page.type("#draft", "hello from bob")
        page.press("Enter")
        page.until(has("hello from bob", ".message.assistant"))
        assert serving.engine.submissions[-1].origin.user == "bob"
        page.until("document.querySelectorAll('#sessions-rows tr').length === 1")
        assert page.value("document.querySelectorAll('td.title').length") == 0
        assert [one for one in page.complaints if "401" not in one] == []
        assert (
            page.value('Object.values(localStorage).some((one) => one.includes("bob\'s"))') is False
        )


def test_a_phone_has_nothing_beside_the_screen(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving, width=360, height=740, dark=True)
    page.until(LIVE)
    page.type("#draft", "a" * 300)
    page.press("Enter")
    serving.until(lambda: serving.engine.submissions)
    serving.engine.finish_all()
    page.until("document.querySelector('.message.assistant .stats')?.textContent")
    wide, high = (f"document.documentElement.scroll{side}" for side in ("Width", "Height"))
    assert (page.value(wide), page.value(high)) == (360, 740)
    page.click("#show-deck")
    page.until("document.querySelector('#kpis dd')")
    assert (page.value(wide), page.value(high)) == (360, 740)
    assert page.value("document.getElementById('deck').scrollWidth") <= 360
    assert page.value("document.getElementById('kpis').offsetHeight") > 80
    assert page.complaints == []


def test_keys_go_through_steps_and_blocks(open_page: Any) -> None:
    with http_serving() as serving:
        engine = serving.engine
        page = open_page(serving)
        page.until(LIVE)
        page.type("#draft", "one two three four five six")
        page.press("Enter")
        serving.until(lambda: engine.submissions)
        engine.advance(4)
        page.until(has("step 4 ·", "#step-detail"))
        page.value("document.getElementById('steps').focus()")
        page.press("ArrowLeft")
        assert "step 3 ·" in page.value(
            "document.getElementById('steps').getAttribute('aria-valuetext')"
        )
        page.value("document.getElementById('blocks').focus()")
        page.press("ArrowRight")
        page.press("ArrowLeft")
        shown = page.value("document.getElementById('blocks').getAttribute('aria-valuetext')")
        assert shown == "block 0: used by #1 one two three four five six"
        page.press("Enter")
        page.until("document.querySelector('#sessions-rows tr.chosen')")
        assert page.complaints == []


def test_a_map_of_4096_blocks_is_drawn_within_a_frame(open_page: Any) -> None:
    config = EngineConfig(
        num_blocks=4096, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=512
    )
    engine = ScriptedEngine(lambda asked: "word " * 60, config=config, knobs=Knobs())
    with http_serving(engine) as serving:
        page = open_page(serving, width=1440, height=900)
        page.until(LIVE)
        page.type("#draft", "many " * 500)
        page.press("Enter")
        serving.until(lambda: engine.submissions)
        engine.advance(8)
        page.until(has("4096 blocks", "#cache-sum"))
        cells = page.value(
            "import('/page/deck.js').then(({ Deck }) => {"
            " const deck = new Deck(() => {});"
            " const states = 'usrpcf';"
            " const segments = Array.from({ length: 4096 }, (_, at) =>"
            "   [at, 1, states[at % 6], at % 6 < 3 ? [at % 40] : [], []]);"
            " deck.map.take({ total: 4096, segments });"
            " const { canvas } = deck.map;"
            " const times = Array.from({ length: 20 }, () => {"
            "   const began = performance.now();"
            "   for (let cell = 0; cell < 4096; cell++) deck.map.flashes.set(cell, began);"
            "   deck.map.isStale = true;"
            "   deck.map.draw(canvas.context, canvas.width, canvas.height, began);"
            "   return performance.now() - began; });"
            " return [deck.map.per, deck.map.cells, Math.min(...times)]; })"
        )
        assert cells[:2] == [1, 4096]
        assert cells[2] < 1000 / 60
        assert page.complaints == []
        engine.finish_all()
