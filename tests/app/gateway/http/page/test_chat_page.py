"""The chat of the page, in a real Chromium: replies, actions, keys, and hostile replies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.gateway.http.page.markup import TAGS
from tests.app.gateway.http.page.test_page import LIVE, has
from tests.support.browser import CHROMIUM, Browser, BrowserPage
from tests.support.hostile_replies import REPLIES
from tests.support.http_serving import HttpServing, http_serving, store_chat
from tests.support.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

IDLE = "document.getElementById('stop').hidden"
ANSWERED = f"{IDLE} && document.querySelector('.message:last-child .stats')?.textContent"
DRAFT = "document.getElementById('draft').value"
CODE = "# Title\n\n- one\n- two\n\n```python\nx = 1  # one\n```\n\n[a](https://a.example) **end**"
# All elements but those of messages and of the dashboard.
OUTSIDE = """
[document.title, document.head.innerHTML, ...Array.from(document.querySelectorAll("body, body *"))
  .filter((node) => !node.closest("#messages > *, #deck, #chats"))
  .map((node) => [node.tagName, ...Array.from(node.attributes, (one) => `${one.name}=${one.value}`)]
    .join(" "))].join("\\n")
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Any]:
    pages: list[BrowserPage] = []

    def opened(serving: HttpServing, **options: Any) -> BrowserPage:
        pages.append(browser.open(serving.url, **options))
        pages[-1].until(LIVE)
        return pages[-1]

    yield opened
    for page in pages:
        page.close()


def say(page: BrowserPage, text: str) -> None:
    page.type("#draft", text)
    page.press("Enter")


def test_a_reply_is_markdown_while_it_streams_and_once_it_is_complete(open_page: Any) -> None:
    engine = ScriptedEngine(lambda asked: CODE)
    with http_serving(engine) as serving:
        page = open_page(serving)
        say(page, "show me")
        serving.until(lambda: engine.submissions)
        engine.advance(6)
        page.until("document.querySelector('.message.running h1')?.textContent === 'Title'")
        engine.finish_all()
        page.until(ANSWERED)
        text = "document.querySelector('.message.assistant .text')"
        assert page.value(f"{text}.querySelectorAll('li').length") == 2
        assert page.value(f"{text}.querySelector('.comment').textContent") == "# one"
        assert page.value(f"{text}.querySelector('figcaption').firstChild.data") == "python"
        link = page.value(
            f"(({{ rel, target, href }}) => [rel, target, href])({text}.querySelector('a'))"
        )
        assert link == ["noopener noreferrer", "_blank", "https://a.example/"]
        copied = (
            "Object.defineProperty(navigator, 'clipboard',"
            " { value: { writeText: async (text) => { window.copied = text; } } })"
        )
        page.value(f"{copied}, 0")
        page.click("figure .copy")
        page.until("window.copied === 'x = 1  # one'")
        page.click(".message.assistant > .tools .copy")
        page.until(f"window.copied === {json.dumps(CODE)}")
        assert page.complaints == []


def test_another_reply_an_edit_and_their_versions(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving)
    with serving.running():
        say(page, "first words")
        page.until(ANSWERED)
        page.click(".message.assistant .regenerate")
        page.until(f"{ANSWERED} && {has('2/2', '.message.assistant .place')}")
        page.press("Escape")
        page.press("e")
        assert page.value(DRAFT) == "first words"
        page.value("document.getElementById('draft').value = ''")
        say(page, "other words")
        page.until(f"{ANSWERED} && {has('2/2', '.message.user .place')}")
        assert page.value(has("other words", ".message.assistant"))
        page.press("Escape")
        page.press("ArrowLeft")
        page.until(has("1/2", ".message.user .place"))
        page.until(has("first words", ".message.user"))
    assert page.complaints == []


def test_a_failed_reply_is_retried_and_a_stopped_one_continued(
    serving: HttpServing, open_page: Any
) -> None:
    page = open_page(serving)
    with serving.running():
        say(page, "many " * 5000)
        page.until(has("tokens", ".message.assistant .wrong"))
        page.click(".message.assistant .retry")
        page.until(f"{IDLE} && {has('2/2', '.message.assistant .place')}")
    page.click("#new-chat")
    say(page, "one two three four five six")
    serving.until(lambda: len(serving.engine.submissions) == 3)
    serving.engine.advance(2)
    page.until("document.querySelector('.message.running .text')?.textContent")
    page.press("Escape")
    look = serving.engine.snapshot
    serving.until(lambda: any(one.finish_reason == "abort" for one in look().requests))
    with serving.running():
        page.until(has("stopped", ".message.assistant .stats"))
        page.click(".message.assistant .continue")
        page.until(f"{IDLE} && {has('five six', '.message.assistant')}")
    assert page.complaints == []


def test_chats_are_found_named_pinned_deleted_and_restored(
    serving: HttpServing, open_page: Any
) -> None:
    store_chat(serving, ["about zebras"], "animals")
    page = open_page(serving)
    page.until("document.querySelectorAll('#chats button').length")
    page.press("Escape")
    page.press("/")
    page.type("#search", "zebras")
    page.until("document.querySelectorAll('#chats button').length === 1")
    page.click("#chats button")
    page.until(has("about zebras", ".message.assistant"))
    title = "document.getElementById('title')"
    page.value(f"{title}.value = 'striped'; {title}.dispatchEvent(new Event('change'))")
    page.until(has("striped", "#chat-title"))
    page.click("#pin-chat")
    page.until("document.getElementById('pin-chat').textContent === 'Unpin'")
    page.click("#delete-chat")
    page.until("!document.getElementById('deleted').hidden")
    page.until("!document.querySelector('#chats .pin')")
    assert page.value("document.querySelectorAll('.message').length") == 0
    page.click("#undo-delete")
    page.until(has("about zebras", ".message.assistant"))
    page.reload()
    page.until(f"{LIVE} && {has('about zebras', '.message.assistant')}")
    assert page.complaints == []


def test_a_draft_is_kept(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving)
    page.type("#draft", "half a sentence")
    page.reload()
    page.until(f"{LIVE} && {DRAFT} === 'half a sentence'")
    page.press("Enter")
    serving.until(lambda: serving.engine.submissions)
    with serving.running():
        page.until(ANSWERED)
    page.reload()
    page.until(f"{LIVE} && {has('half a sentence', '.message.user')}")
    assert page.value(DRAFT) == ""


def test_settings_of_a_chat_are_sent(serving: HttpServing, open_page: Any) -> None:
    page = open_page(serving)
    page.value("document.getElementById('temperature').value = '0.25'")
    page.value("document.getElementById('system').value = 'be brief'")
    with serving.running():
        say(page, "hello")
        page.until(ANSWERED)
    asked = serving.engine.submissions[-1]
    assert asked.sampling == {"temperature": 0.25}
    assert asked.messages[0].content == "be brief"
    field = "document.getElementById('temperature')"
    page.value(f"{field}.value = 'hot'; {field}.dispatchEvent(new Event('change'))")
    page.until(has("temperature is 'hot'", "#chat-error"))


@pytest.mark.parametrize(
    ("dark", "contrast", "back"),
    [
        (False, False, "rgb(243, 245, 247)"),
        (True, False, "rgb(14, 19, 24)"),
        (False, True, "rgb(255, 255, 255)"),
        (True, True, "rgb(0, 0, 0)"),
    ],
)
def test_colours_are_those_that_the_system_wishes(
    serving: HttpServing, open_page: Any, dark: bool, contrast: bool, back: str
) -> None:
    page = open_page(serving, dark=dark, contrast=contrast)
    assert page.value("getComputedStyle(document.body).backgroundColor") == back


def test_a_long_chat_shows_its_end_at_once_and_the_rest_when_it_is_seen(open_page: Any) -> None:
    with http_serving() as serving:
        store_chat(serving, [f"# reply {number}\n\n{'words ' * 60}" for number in range(250)])
        page = open_page(serving)
        page.until("document.querySelector('#chats button')")
        page.click("#chats button")
        page.until("document.querySelectorAll('article').length === 500")
        page.until(has("reply 249", ".message:last-child"))
        assert page.value("document.querySelectorAll('.message .text').length") < 60
        page.value("document.getElementById('messages').scrollTop = 0")
        page.until(has("reply 0", ".message:nth-child(2)"))
        assert page.complaints == []


def test_hostile_replies_change_nothing_outside_of_them(open_page: Any) -> None:
    trees: list[Any] = [
        ["script", {}, "window.hacked=1"],
        ["p", {"style": "position:fixed", "onclick": "window.hacked=1", "id": "draft"}, "x"],
        ["img", {"src": "/hacked", "onerror": "window.hacked=1"}],
        ["a", {"href": "javascript:window.hacked=1", "class": "notice"}, "y"],
        ["iframe", {"srcdoc": "<script>parent.hacked=1</script>"}, ["svg", {"onload": "1"}, "z"]],
        ["ol", {"start": "1e99"}, ["li", {}, "w"]],
    ]
    with http_serving() as serving:
        store_chat(serving, list(REPLIES))
        store_chat(serving, ["harmless"], "another")
        page = open_page(serving)
        page.until("document.querySelectorAll('#chats button').length === 2")
        page.value("[...document.querySelectorAll('#chats button')].find((one) =>"
                   " one.textContent === 'another').click()")  # fmt: skip
        page.until(has("harmless", ".message.assistant"))
        before = page.value(OUTSIDE)
        page.value("[...document.querySelectorAll('#chats button')].find((one) =>"
                   " one.textContent === 'stored').click()")  # fmt: skip
        count = len(REPLIES)
        page.until(f"document.querySelectorAll('.message.assistant').length === {count}")
        unseen = "document.querySelector('.message.assistant:not(:has(.text))')"
        page.until(f"!({unseen}?.scrollIntoView(), {unseen})", timeout=60.0)
        page.value(
            "import('/page/reply.js').then(({ nodesOf }) =>"
            " document.querySelector('.message .text')"
            f".append(...nodesOf({json.dumps(trees)})))"
        )
        page.value("new Promise((painted) => requestAnimationFrame(() => setTimeout(painted, 50)))")
        assert page.value("window.hacked") is None
        assert page.value(OUTSIDE) == before
        found = page.value(
            "[...new Set([...document.querySelectorAll('.message.assistant .text *')]"
            ".map((node) => node.tagName.toLowerCase()))]"
        )
        assert set(found) <= {*TAGS, "button", "div"}
        names = page.value(
            "[...new Set([...document.querySelectorAll('.message.assistant .text *')]"
            ".flatMap((node) => node.getAttributeNames()))]"
        )
        assert set(names) <= {"class", "href", "rel", "target", "start", "type", "tabindex"}
        links = page.value("[...document.querySelectorAll('.text a[href]')].map((one) => one.href)")
        assert len(links) > 10
        assert all(one.startswith(("http:", "https:", "mailto:")) for one in links)
        known = ("/page/", "/live", "/chats")
        for url in page.requests:
            path = url.removeprefix(serving.url)
            assert path == "/" or path.startswith(known), url
        assert page.complaints == []
