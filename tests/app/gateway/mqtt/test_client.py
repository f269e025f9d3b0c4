"""The asking side against a real broker and a server that is scripted and not ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from app.gateway.mqtt import client as module
from app.gateway.mqtt.client import AskClient, AskError
from app.gateway.mqtt.protocol.replies import Accepted, DeltaReply, Final
from app.gateway.mqtt.protocol.requests import ChatRequest, ChatTurn
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import BrokerAddress
from app.gateway.mqtt.transport.link import Link, LinkPhase, LinkState
from tests.support.brokers import Mosquitto
from tests.support.mqtt_responder import Asked, Responder, hello, responder

TIMEOUT = 20.0


@dataclass
class Asker:
    """Asks on its own connection each time, and keeps what it was told."""

    port: int
    texts: list[str] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    client: AskClient | None = None

    async def ask(self, text: str = "hi", timeout: float = TIMEOUT, **fields: object) -> Final:
        request = ChatRequest.model_validate(
            {"messages": (ChatTurn(role="user", content=text),), **fields}
        )
        address = BrokerAddress.parse(f"mqtt://alice@127.0.0.1:{self.port}")
        async with AskClient(MqttSettings(), address, self.notices.append) as self.client:
            return await self.client.ask(request, timeout, self._hear)

    def _hear(self, reply: Accepted | DeltaReply) -> None:
        self.attempts.append(reply.attempt)
        if isinstance(reply, DeltaReply):
            self.texts.append(reply.text)


@pytest.fixture
def asker(broker: Mosquitto) -> Asker:
    return Asker(broker.port)


def begin(asked: Asked) -> None:
    asked.accept()
    asked.delta(0, "old")


def by_turns(*answers: Callable[[Asked], None]) -> Callable[[Asked], None]:
    """The first answers the first request, and so on."""
    left = iter(answers)
    return lambda asked: next(left)(asked)


def ids(server: Responder) -> list[str]:
    return [asked.request_id for asked in server.requests]


async def test_a_reply_comes_in_pieces_and_whole(broker: Mosquitto, asker: Asker) -> None:
    with responder(broker.port, hello) as server:
        final = await asker.ask("how are you?", max_tokens=5)
    assert final.text == "hello"
    assert asker.texts == ["hel", "lo"]
    (asked,) = server.requests
    assert asked.body["sent_at"] > 0
    assert asked.body["messages"] == [{"role": "user", "content": "how are you?"}]
    assert asked.body["max_tokens"] == 5
    _, _, pool, _, user, client_id, _ = asked.topic.split("/")
    assert (pool, user) == ("default", "alice")
    assert client_id.startswith("ask-")
    assert server.cancels == []
    assert asker.notices == []


async def test_where_nobody_serves_it_says_so(
    broker: Mosquitto, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CARD_SECONDS", 0.1)
    where = f"nobody serves the pool 'default' on mqtt://alice@127.0.0.1:{broker.port}"
    with pytest.raises(AskError, match=f"^{where}, or 'alice' may not see who does$"):
        await asker.ask()
    with responder(broker.port, hello) as server:
        server.tell("offline")
        with pytest.raises(AskError, match=f"^{where}; box is offline$"):
            await asker.ask()
        assert server.requests == []


async def test_who_may_not_ask_is_told(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text("topic readwrite #\npattern read #\n")
    options = ("allow_anonymous true", f"acl_file {tmp_path / 'acl'}")
    with Mosquitto(options) as broker, responder(broker.port, hello) as server:
        with pytest.raises(AskError, match=r"does not allow requests on llm/v1/default/req/alice/"):
            await Asker(broker.port).ask()
        assert server.requests == []


async def test_a_request_above_the_limit_is_not_sent(broker: Mosquitto, asker: Asker) -> None:
    with responder(broker.port, hello, max_request_bytes=1024) as server:
        with pytest.raises(
            AskError, match=r"^the request has 1,\d+ bytes; box takes at most 1,024"
        ):
            await asker.ask("x" * 1024)
        assert server.requests == []


async def test_an_unanswered_request_is_sent_again_under_its_id(
    broker: Mosquitto, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.1)
    with responder(broker.port, by_turns(lambda _: None, lambda _: None, hello)) as server:
        assert (await asker.ask()).text == "hello"
    assert len(set(ids(server))) == 1
    assert len(server.requests) == 3
    bodies = [json.dumps({**asked.body, "sent_at": 0}) for asked in server.requests]
    assert len(set(bodies)) == 1


async def test_a_server_that_never_answers_is_given_up(
    broker: Mosquitto, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACCEPT_SECONDS", 0.05)
    with responder(broker.port, lambda _: None) as server:
        with pytest.raises(AskError, match=r"^no answer to a request sent 4 times$"):
            await asker.ask()
        assert len(server.requests) == 4
        server.wait(lambda: server.cancels)
    assert server.cancels == [server.requests[0].topic.replace("/req/", "/cancel/")[:-32] + "*"]


async def test_a_refusal_that_passes_is_waited_out(broker: Mosquitto, asker: Asker) -> None:
    full = by_turns(
        lambda asked: asked.error(429, "the queue is full", retry_after_ms=50),
        lambda asked: asked.error(409, "session busy", retry_after_ms=1, retryable=True),
        hello,
    )
    with responder(broker.port, full) as server:
        assert (await asker.ask()).text == "hello"
    assert len(server.requests) == 3
    assert len(set(ids(server))) == 1
    assert [notice.partition(";")[0] for notice in asker.notices] == [
        "the queue is full",
        "session busy",
    ]


@pytest.mark.parametrize(
    "answer",
    [
        lambda asked: asked.error(429, "no", retry_after_ms=60_000),
        lambda asked: asked.error(400, "no"),
        lambda asked: asked.error(409, "no"),
        lambda asked: asked.error(500, "no"),
    ],
    ids=["too late", "400", "409", "500"],
)
async def test_another_refusal_is_the_end(
    answer: Callable[[Asked], None], broker: Mosquitto, asker: Asker
) -> None:
    with responder(broker.port, answer) as server:
        with pytest.raises(AskError, match=r"^no$") as caught:
            await asker.ask()
        assert len(server.requests) == 1
    assert caught.value.reply is not None
    assert caught.value.reply.error.message == "no"


async def test_a_restart_makes_what_was_heard_void(broker: Mosquitto, asker: Asker) -> None:
    def broken_off(asked: Asked) -> None:
        begin(asked)
        asked.error(503, "restarted", attempt=1, retry_after_ms=1)

    def anew(asked: Asked) -> None:
        asked.error(503, "restarted", attempt=1)  # told once more, as QoS 1 may
        asked.accept(attempt=2)
        asked.delta(1, "old", attempt=1)
        asked.delta(0, "new", attempt=2)
        asked.final("new", attempt=2)

    with responder(broker.port, by_turns(broken_off, anew)) as server:
        final = await asker.ask()
    assert (final.text, final.attempt) == ("new", 2)
    assert asker.texts == ["old", "new"]
    assert asker.attempts == [1, 1, 2, 2]
    assert len(set(ids(server))) == 1


async def test_a_server_that_goes_and_comes_back_is_asked_again(
    broker: Mosquitto, asker: Asker
) -> None:
    with responder(broker.port, by_turns(Asked.accept, hello)) as server:

        def lose(_: object) -> None:
            server.tell("offline")
            server.tell("online")

        asking = asyncio.create_task(asker.ask())
        await asyncio.to_thread(server.wait, lambda: server.requests)
        await asyncio.to_thread(lose, None)
        assert (await asking).text == "hello"
        assert len(set(ids(server))) == 1
    assert asker.notices == ["box is offline"]


@pytest.mark.parametrize("state", ["offline", "removed"])
async def test_another_server_that_takes_over_is_asked_anew(
    broker: Mosquitto, asker: Asker, state: str
) -> None:
    def answer(asked: Asked) -> None:
        if "serving" in second:
            hello(asked)

    second: list[str] = []
    with (
        responder(broker.port, begin) as server,
        responder(broker.port, answer, node="box2", state="standby") as heir,
    ):
        asking = asyncio.create_task(asker.ask())
        await asyncio.to_thread(server.wait, lambda: server.requests)
        await asyncio.to_thread(server.tell, state)
        second.append("serving")
        server.answer = lambda _: None
        await asyncio.to_thread(heir.tell, "online")
        assert (await asking).text == "hello"
        assert len(set(ids(heir))) == 2
    assert asker.texts == ["old", "hel", "lo"]
    assert asker.notices == ["box is offline", "box2 has taken over; asking again"]


async def test_at_the_timeout_the_request_is_cancelled(broker: Mosquitto, asker: Asker) -> None:
    with responder(broker.port, Asked.accept) as server:
        with pytest.raises(AskError, match=r"^no reply within 0\.3 s$"):
            await asker.ask(timeout=0.3)
        server.wait(lambda: server.cancels)
        assert len(server.cancels) == 1


async def test_who_stops_waiting_cancels_the_request(broker: Mosquitto, asker: Asker) -> None:
    with responder(broker.port, Asked.accept) as server:
        asking = asyncio.create_task(asker.ask())
        await asyncio.to_thread(server.wait, lambda: server.requests)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        server.wait(lambda: server.cancels)
        assert len(server.cancels) == 1


async def test_a_lost_connection_costs_a_new_request_only(broker: Mosquitto, asker: Asker) -> None:
    """The broker publishes the last will, which cancels what was asked."""
    cancelled: list[str] = []

    def answer(asked: Asked) -> None:
        if asked.request_id in cancelled:
            asked.error(499, "cancelled", attempt=1)
        elif cancelled:
            hello(asked)
        else:
            begin(asked)

    with responder(
        broker.port, answer, on_cancel=lambda: cancelled.append(server.requests[0].request_id)
    ) as server:
        asking = asyncio.create_task(asker.ask())
        await asyncio.to_thread(server.wait, lambda: server.requests)
        assert asker.client is not None
        connection = asker.client._link._connection
        assert connection is not None
        connection.shut()
        assert (await asking).text == "hello"
        assert server.cancels == [server.requests[0].topic.replace("/req/", "/cancel/")[:-32] + "*"]
        assert len(set(ids(server))) == 2
        assert asker.texts[-2:] == ["hel", "lo"]


async def test_why_the_connection_is_lost_is_told_once(broker: Mosquitto, asker: Asker) -> None:
    with responder(broker.port, begin) as server:
        asking = asyncio.create_task(asker.ask())
        await asyncio.to_thread(server.wait, lambda: server.requests)
        assert asker.client
        for detail in ("it was closed", "no broker", "no broker"):
            asker.client._events.put_nowait(LinkState(LinkPhase.OFFLINE, detail, 0.0))
        server.requests[0].final("old")
        await asking
    assert [notice.split(": ")[1] for notice in asker.notices] == [
        "it was closed; trying again",
        "no broker; trying again",
    ]


async def test_a_broker_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(AskError, match=r"^cannot connect to mqtt://alice@127\.0\.0\.1:1: "):
        await Asker(1).ask()


async def test_a_link_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(link: Link, protocol: str) -> None:
        raise RuntimeError("no thread")

    monkeypatch.setattr(Link, "_new_connection", fail)
    client = AskClient(MqttSettings(), BrokerAddress.parse("mqtt://a@127.0.0.1:1"), print)
    with pytest.raises(RuntimeError, match="no thread"):
        async with asyncio.timeout(TIMEOUT), client:
            await client.connected(10 * TIMEOUT)


async def test_a_user_without_a_name_is_told_to_state_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(module.getpass, "getuser", unknown)
    with pytest.raises(AskError, match=r"^there is no user name; write mqtts://USER@HOST$"):
        AskClient(MqttSettings(), BrokerAddress.parse("mqtts://127.0.0.1"), print)


async def test_a_user_that_is_no_level_of_a_topic_is_refused() -> None:
    address = BrokerAddress.parse("mqtt://a%2Fb@127.0.0.1:1")
    with pytest.raises(AskError, match=r"^user is 'a/b'; it must be"):
        AskClient(MqttSettings(), address, print)
