"""The chats of the page over HTTP: their list, turns, branches and owners."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from app.conversations.session import ChatSession
from app.gateway.http.access import Access
from app.gateway.http.page import live
from app.gateway.http.page.owners import BROWSER, GUEST
from app.store.conversation import Conversation
from app.store.store import Store
from engine.api.errors import ErrorInfo
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

KEYS = {"ann": {"key": "ann's", "operator": True}, "bob": {"key": "bob's"}}
ECHO = "You said: "


class Page:
    """Calls of one page."""

    def __init__(self, serving: HttpServing, **headers: str) -> None:
        self.serving = serving
        self.headers = headers

    def call(self, method: str, path: str, data: object = None, status: int = 200) -> Any:
        answer = self.serving.http.request(method, path, json=data, headers=self.headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def new(self, **settings: object) -> str:
        return str(self.call("POST", "/chats", settings)["id"])

    def turn(self, chat: str, status: int = 200, **asked: object) -> Any:
        return self.call("POST", f"/chats/{chat}/turns", asked, status)

    def titles(self, search: str = "") -> list[str]:
        found = self.serving.http.get("/chats", params={"search": search}, headers=self.headers)
        return [one["title"] for one in found.json()["chats"]]

    @contextmanager
    def events(self, chat: str) -> Iterator[Callable[[str, Callable[[Any], bool]], Any]]:
        """Within it, the function returns the next event of a kind for which a test holds."""
        params = {"chat": chat}
        with self.serving.http.stream(
            "GET", "/chats/events", params=params, headers=self.headers
        ) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            bodies: dict[str, Any] = {}

            def until(kind: str, holds: Callable[[Any], bool] = bool) -> Any:
                nonlocal bodies
                for line in lines:
                    if line == f"event: {kind}":
                        data = json.loads(next(lines).removeprefix("data: "))
                        if kind == "chat":
                            data["bodies"] = bodies = bodies | data["bodies"]
                        if holds(data):
                            return data
                raise AssertionError(f"no event {kind}")

            yield until

    def ended(self, chat: str) -> Any:
        """The chat once its reply has ended."""
        with self.events(chat) as until:
            return until("chat", lambda one: one["messages"] and not one["running"])


def said(chat: Any) -> list[str]:
    return [chat["bodies"][one["id"]]["text"] for one in chat["messages"]]


@pytest.fixture
def page(serving: HttpServing) -> Page:
    return Page(serving)


def test_a_turn_streams_blocks_of_which_the_last_is_open() -> None:
    engine = ScriptedEngine(lambda asked: "<think>a *plan*</think># One\n\ntwo *three* four five")
    with http_serving(engine) as serving:
        page = Page(serving)
        chat = page.new()
        page.turn(chat, action="send", text="hello <b>")
        with page.events(chat) as until:
            assert until("chat")["running"]
            serving.until(lambda: engine.submissions)
            engine.advance(1)
            seen: list[Any] = []
            while not seen or not seen[-1]["text"]:
                engine.advance(1)
                seen.append(until("reply"))
            assert seen[0]["thinking"]["anew"]
            engine.finish_all()
            end = until("chat", lambda one: not one["running"])
        question, reply = (end["bodies"][one["id"]] for one in end["messages"])
        assert question["text"] == "hello <b>"
        assert reply["thinking"] == [["p", {}, "a ", ["em", {}, "plan"]]]
        heading, paragraph = reply["blocks"]
        assert heading == ["h1", {}, "One"]
        assert paragraph == ["p", {}, "two ", ["em", {}, "three"], " four five"]
        assert end["messages"][1]["figures"]["output"] > 0
        assert end["title"] == "hello <b>"
        assert page.titles() == ["hello <b>"]
        serving.check_idle()


def test_an_edit_and_another_reply_are_branches(page: Page) -> None:
    serving = page.serving
    chat = page.new()
    with serving.running():
        page.turn(chat, action="send", text="first")
        before = page.ended(chat)
        question, reply = (one["id"] for one in before["messages"])
        page.turn(chat, action="regenerate", message=reply)
        again = page.ended(chat)
        assert again["messages"][1]["place"] == [2, 2]
        page.turn(chat, action="edit", message=question, text="second")
        edited = page.ended(chat)
    assert said(edited)[0] == "second"
    assert edited["messages"][0]["place"] == [2, 2]
    branch = {"message": edited["messages"][0]["id"], "steps": -1}
    page.call("POST", f"/chats/{chat}/branch", branch)
    assert said(page.ended(chat))[0] == "first"
    page.call("POST", f"/chats/{chat}/branch", {"message": "none", "steps": 1}, 400)
    page.turn(chat, 400, action="edit", message=reply, text="no question")
    page.turn(chat, 400, action="send", text=" ")
    page.turn(chat, 400, action="shout")


def test_a_reply_is_stopped_and_continued(page: Page) -> None:
    engine = page.serving.engine
    chat = page.new()
    page.turn(chat, action="send", text="one two three four five six")
    page.serving.until(lambda: engine.submissions)
    engine.advance(3)
    page.turn(chat, 400, action="send", text="meanwhile")
    page.call("POST", f"/chats/{chat}/stop")
    with page.serving.running():
        stopped = page.ended(chat)
        assert stopped["messages"][1]["state"] == "stopped"
        assert stopped["resumable"]
        page.turn(chat, action="resume")
        whole = page.ended(chat)
    assert whole["messages"][1]["state"] == ""
    assert said(whole)[1] == f"{ECHO}one two three four five six"


def test_settings_hold_from_the_next_turn_on(page: Page) -> None:
    chat = page.new(system="be brief", sampling={"temperature": 0.5})
    page.call("PATCH", f"/chats/{chat}", {"sampling": {"max_tokens": 3}, "system": "be kind"})
    with page.serving.running():
        page.turn(chat, action="send", text="hello")
        page.ended(chat)
    asked = page.serving.engine.submissions[-1]
    assert asked.sampling == {"max_tokens": 3}
    assert asked.messages[0].content == "be kind"
    wrong = page.call("PATCH", f"/chats/{chat}", {"sampling": {"temperature": -1}}, 400)
    assert "temperature is -1" in wrong["error"]["message"]


def test_chats_are_named_pinned_found_deleted_and_exported(page: Page) -> None:
    chats = []
    with page.serving.running():
        for text in ("about zebras", "about lions"):
            chats.append(page.new())
            page.turn(chats[-1], action="send", text=text)
            page.ended(chats[-1])
    zebras, lions = chats
    page.call("PATCH", f"/chats/{zebras}", {"title": " Striped  ones ", "pinned": True})
    assert page.titles()[0] == "Striped ones"
    assert page.titles("zebras") == ["Striped ones"]
    page.call("GET", "/chats?search=after:never", status=400)
    page.call("DELETE", f"/chats/{lions}")
    assert "about lions" not in page.titles()
    page.turn(lions, 404, action="send", text="gone")
    page.call("POST", f"/chats/{lions}/restore")
    assert "about lions" in page.titles()
    page.call("POST", f"/chats/{lions}/restore", status=404)
    (exported,) = page.call("GET", f"/chats/{zebras}/export")["chats"]
    assert [one["content"] for one in exported["messages"]] == [
        "about zebras",
        ECHO + "about zebras",
    ]


def test_chats_of_the_screen_are_those_of_operators(page: Page) -> None:
    serving = page.serving
    chat = page.new()
    with serving.running():
        page.turn(chat, action="send", text="from the page")
        page.ended(chat)
    with closing(Store(serving.store_file)) as store:
        conversation = store.conversation(chat)
        assert conversation is not None
        assert (conversation.user, conversation.source) == ("local", "screen")
        session = ChatSession(serving.engine, conversation, store)
        assert [one.content for one in session.messages] == [
            "from the page",
            ECHO + "from the page",
        ]
        with page.events(chat) as until:
            until("chat")
            session.send("from the screen")
            awaited = until("chat", lambda one: one["running"])
            question = awaited["messages"][2]["id"]
            assert awaited["bodies"][question]["text"] == "from the screen"
            serving.engine.finish_all()
            session.poll()
            ended = until("chat", lambda one: not one["running"])
            assert len(ended["messages"]) == 4


def test_others_have_chats_of_their_own() -> None:
    with http_serving(keys=KEYS) as serving:
        with closing(Store(serving.store_file)) as store:
            store.save_conversation(Conversation(title="of the screen"))
        ann, bob = (Page(serving, authorization=f"Bearer {one}'s") for one in ("ann", "bob"))
        chat = bob.new()
        with serving.running():
            bob.turn(chat, action="send", text="of bob")
            bob.ended(chat)
        assert bob.titles() == bob.titles("of") == ["of bob"]
        assert ann.titles() == ["of the screen"]
        assert ann.titles("bob") == []
        submission = serving.engine.submissions[-1]
        assert (submission.origin.user, submission.origin.source) == ("bob", "http")
        assert serving.gateway.holds(chat)
        for method, path, data in (
            ("POST", "turns", {"action": "send", "text": "mine"}),
            ("POST", "stop", None),
            ("GET", "messages?ids=x", None),
            ("GET", "export", None),
            ("POST", "restore", None),
        ):
            ann.call(method, f"/chats/{chat}/{path}", data, 404)
        ann.call("DELETE", f"/chats/{chat}", status=404)
        Page(serving).call("GET", "/chats", status=401)
        bob.call("DELETE", f"/chats/{chat}")
        ann.call("POST", f"/chats/{chat}/restore", status=404)


def test_without_keys_each_browser_elsewhere_has_its_own(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "is_loopback", lambda host: False)
    assert Access({}).is_open
    page.call("GET", "/chats", status=400)
    one, other = (Page(page.serving, **{BROWSER: digit * 32}) for digit in "ab")
    chat = one.new()
    assert chat.startswith(GUEST)
    with page.serving.running():
        one.turn(chat, action="send", text="of a guest")
        one.ended(chat)
    assert one.titles() == ["of a guest"]
    assert other.titles() == []
    other.call("GET", f"/chats/{chat}/export", status=404)


def test_a_reply_that_fails_says_why() -> None:
    engine = ScriptedEngine()
    with http_serving(engine) as serving:
        page = Page(serving)
        chat = page.new()
        with serving.running():
            page.turn(chat, action="send", text="many " * 5000)
            failed = page.ended(chat)["messages"][1]
        assert failed["state"] == "failed"
        assert "tokens" in failed["error"]
        assert isinstance(ErrorInfo("x", failed["error"]).message, str)
        page.turn(chat, action="regenerate")
        assert page.ended(chat)["messages"][1]["place"] == [2, 2]


def test_only_the_last_contents_come_at_once(page: Page) -> None:
    chat = page.new()
    with page.serving.running():
        for number in range(6):
            page.turn(chat, action="send", text=f"question {number}")
            page.ended(chat)
    shown = page.ended(chat)
    assert len(shown["messages"]) == 12
    assert len(shown["bodies"]) == 8
    first = shown["messages"][0]["id"]
    found = page.call("GET", f"/chats/{chat}/messages?ids={first},none")
    assert found["bodies"][first]["text"] == "question 0"
    assert list(found["bodies"]) == [first]
    page.call("GET", f"/chats/{chat}/messages?ids={',' * 64}", status=400)
