"""Who may ask, and how much."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.gateway.http.gateway import HttpGateway
from app.gateway.http.settings import Address, HttpError, HttpSettings
from tests.support.http_serving import HttpServing, http_serving
from tests.support.scripted_engine import ScriptedEngine

BODY = {"messages": [{"role": "user", "content": "hello"}]}


def test_a_key_names_its_user(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    keys = {
        "ann": {"key": "ann's", "max_priority": 5},
        "bob": {"file": str(tmp_path / "key"), "requests": 1},
    }
    with http_serving(api_key="sesame", keys=keys) as serving, serving.running():
        for header, value, user, priority in (
            ("authorization", "Bearer sesame", "default", 0),
            ("Authorization", "bearer ann's", "ann", 5),
            ("x-api-key", "from a file", "bob", 0),
        ):
            body = {**BODY, "priority": -9}
            answer = serving.http.post("/v1/chat/completions", json=body, headers={header: value})
            assert answer.status_code == 200
            asked = serving.engine.submissions[-1]
            assert (asked.origin.user, asked.priority) == (user, priority)
        for headers in ({}, {"authorization": "Basic ann's"}, {"authorization": "Bearer wrong"}):
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
                answer = serving.http.request(method, path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["type"] == "authentication_error"
        assert serving.http.get("/health").status_code == 200
        bob = {"x-api-key": "from a file"}
        answer = serving.http.post("/v1/chat/completions", json={**BODY, "n": 2}, headers=bob)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "user 'bob' has 0 unfinished requests; at most 1" in answer.text
        serving.until(lambda: sum(r.count for r in serving.gateway.view().rejected) == 7)
        users = {user.name: user.rejected for user in serving.gateway.view().users}
        assert users == {"bob": 1, "stranger": 6}


PROMPTS = {
    "/v1/chat/completions": BODY,
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {**BODY, "max_tokens": 4},
}


@pytest.mark.parametrize("separate", [False, True])
def test_a_salt_and_keys_that_are_apart_reach_the_engine(separate: bool) -> None:
    """No salt of one key is that of another, whatever the client states."""
    keys = {name: {"key": name} for name in ("ann", "bob")}
    stated = (None, "a", "b", '["http", "ann", null]')
    with http_serving(keys=keys, separate_caches=separate) as serving, serving.running():
        for path, begin in PROMPTS.items():
            salts: dict[tuple[str, str | None], str] = {}
            for user, salt in product(keys, stated):
                body = begin if salt is None else {**begin, "cache_salt": salt}
                answer = serving.http.post(path, json=body, headers={"x-api-key": user})
                assert answer.status_code == 200, path
                salts[user, salt] = serving.engine.submissions[-1].cache_salt
            alike = [salts["ann", salt] == salts["bob", salt] for salt in stated]
            assert alike == [not separate] * 4, path
            assert len({*salts.values()}) == (8 if separate else 4), path
            assert (salts["ann", None] == "") is not separate, path


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize(
    ("salt", "allowed"),
    [
        ("", "it must be text of 1 to 256 characters"),
        ("x" * 257, "cache_salt has 257 characters; at most 256 are allowed"),
        (7, "it must be text of 1 to 256 characters"),
    ],
    ids=["empty", "long", "number"],
)
def test_a_salt_has_bounds(serving: HttpServing, path: str, salt: object, allowed: str) -> None:
    answer = serving.http.post(path, json={**PROMPTS[path], "cache_salt": salt})
    assert answer.status_code == 400
    assert "cache_salt" in answer.text
    assert allowed in answer.text


def test_only_pages_of_stated_origins_may_ask() -> None:
    asks = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
    with http_serving() as serving:
        assert serving.http.options("/v1/chat/completions", headers=asks).status_code == 405
    with http_serving(cors=["https://a.example"]) as serving:
        answer = serving.http.options("/v1/chat/completions", headers=asks)
        assert answer.headers["access-control-allow-origin"] == "https://a.example"
        other = {**asks, "Origin": "https://b.example"}
        answer = serving.http.options("/v1/chat/completions", headers=other)
        assert "access-control-allow-origin" not in answer.headers


def test_without_keys_other_peoples_pages_may_not_ask() -> None:
    """They need no answer to spend what computes here, and a name of theirs may lead here."""
    path, evil = "/v1/chat/completions", "https://evil.example"
    with http_serving() as serving, serving.running():
        own = serving.url.removeprefix("http://")
        for headers, status in (
            ({}, 200),
            ({"Host": "box"}, 200),
            ({"Origin": f"http://{own}"}, 200),
            ({"Origin": evil}, 403),
            ({"Origin": "null"}, 403),
            ({"Origin": "http://evil.example", "Host": "evil.example"}, 403),
        ):
            answer = serving.http.post(path, json=BODY, headers=headers)
            assert answer.status_code == status
        for host, may in ((own, True), ("localhost:1", True), ("evil.example", False)):
            # A browser states no Origin where it reads from a page's own server, or thinks so.
            for kept in (
                *("/v1/files", "/v1/batches", "/v1/responses/resp_x"),
                *("/v1/models", "/v1/models/scripted", "/metrics"),
            ):
                answer = serving.http.get(kept, headers={"Host": host})
                assert (answer.status_code != 403) is may
    with http_serving(cors=[evil]) as serving, serving.running():
        assert serving.http.post(path, json=BODY, headers={"Origin": evil}).status_code == 200
    with http_serving(api_key="k") as serving, serving.running():
        headers = {"Origin": evil, "x-api-key": "k"}
        assert serving.http.post(path, json=BODY, headers=headers).status_code == 200


def test_where_it_listens() -> None:
    for text, address, is_loopback in (
        ("8000", ("127.0.0.1", 8000), True),
        (":80", ("127.0.0.1", 80), True),
        ("localhost:1", ("localhost", 1), True),
        ("[::1]:8000", ("::1", 8000), True),
        ("0.0.0.0:0", ("0.0.0.0", 0), False),
        ("box.example:1", ("box.example", 1), False),
    ):
        parsed = HttpSettings(listen=text).address
        assert (parsed, parsed.is_loopback) == (address, is_loopback)
        assert Address.parse(str(parsed)) == address


@pytest.mark.parametrize("text", ["", "http://a:1", "a:b", "65536", "::1:80", "a b:1"])
def test_another_text_is_no_address(text: str) -> None:
    with pytest.raises(ValidationError, match=r"it must be \[HOST:\]PORT"):
        HttpSettings(listen=text)


def test_what_cannot_be_is_told_before_it_starts(serving: HttpServing, tmp_path: Path) -> None:
    taken = serving.url.removeprefix("http://")
    (tmp_path / "empty").touch()
    for settings, message in (
        ({"listen": taken}, f"http.listen is '{taken}'; it cannot listen there: Address"),
        ({"keys": {"a": {"file": "/nowhere"}}}, "http.keys.a.file is '/nowhere'; No such file"),
        ({"keys": {"a": {"file": str(tmp_path / "empty")}}}, "http.keys.a is empty"),
        ({"api_key": "k", "keys": {"a": {"key": "k"}}}, "one key under two names"),
        ({"api_key": "k", "keys": {"default": {"key": "l"}}}, "are both set; state one"),
        ({"cert_file": "/nowhere"}, "http.cert_file is '/nowhere'; it cannot be used"),
    ):
        with pytest.raises(HttpError, match=message.replace(".", r"\.")):
            HttpGateway(ScriptedEngine(), HttpSettings(**{"listen": "0", **settings}), tmp_path)
    with pytest.raises(ValidationError, match="state either key or file"):
        HttpSettings(keys={"a": {}})
    with pytest.raises(ValidationError, match="key_file is set without cert_file"):
        HttpSettings(key_file="x")
