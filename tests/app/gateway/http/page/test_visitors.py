"""Who may look and turn knobs, by where they ask from."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from app.gateway.faults import Fault
from app.gateway.http.access import Access, Pages
from app.gateway.http.page.live import Visitors
from app.gateway.http.settings import HttpSettings


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
