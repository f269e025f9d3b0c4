from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.mqtt.transport.address import AddressError, BrokerAddress, redact, split_password

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "shown"),
    [
        ("mqtt://box", "box", 1883, "", "mqtt://box:1883"),
        ("MQTTS://box.example", "box.example", 8883, "", "mqtts://box.example:8883"),
        ("mqtt://10.0.0.7:1884/", "10.0.0.7", 1884, "", "mqtt://10.0.0.7:1884"),
        ("ws://box", "box", 80, "/mqtt", "ws://box:80/mqtt"),
        ("wss://box/a/b?c=d@e", "box", 443, "/a/b?c=d@e", "wss://box:443/a/b?***"),
        ("mqtt://[::1]", "::1", 1883, "", "mqtt://[::1]:1883"),
        ("mqtts://[2001:DB8::0]:9", "2001:db8::", 9, "", "mqtts://[2001:db8::]:9"),
    ],
)
def test_urls(url: str, host: str, port: int, path: str, shown: str) -> None:
    address = BrokerAddress.parse(url)
    assert (address.host, address.port, address.path, str(address)) == (host, port, path, shown)
    assert (address.username, address.password) == (None, None)
    assert address.is_tls is (address.scheme in ("mqtts", "wss"))
    assert address.is_websocket is (address.scheme in ("ws", "wss"))


def test_user_and_password_are_percent_encoded() -> None:
    address = BrokerAddress.parse("mqtt://m%C3%BC%40x:a%3Ab%2Fc+d%25@box")
    assert (address.username, address.password) == ("mü@x", "a:b/c+d%")
    assert str(address) == "mqtt://m%C3%BC%40x@box:1883"


def test_a_password_stated_apart_goes_before_that_of_the_url() -> None:
    assert BrokerAddress.parse("mqtt://u:a@box", password="b").password == "b"
    assert BrokerAddress.parse("mqtt://u@box", password="").password == ""


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
)
def test_any_user_and_password_come_through_and_the_latter_is_not_shown(
    user: str, password: str
) -> None:
    url = f"mqtt://{quote(user, safe='')}:{quote(password, safe='')}@box"
    address = BrokerAddress.parse(url)
    assert (address.username, address.password) == (user, password)
    assert split_password(url) == (str(address).removesuffix(":1883"), password)
    hidden = BrokerAddress.parse(str(address), password="x")
    assert (repr(address), str(address)) == (repr(hidden), str(hidden))


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("", "is not mqtt://HOST"),
        ("box:1883", "is not mqtt://HOST"),
        (f"http://u:{SECRET}@box", "is not mqtt://HOST"),
        (f"u:{SECRET}@box", "is not mqtt://HOST"),
        ("mqtt://", "has no host"),
        (f"mqtt://u:{SECRET}@", "has no host"),
        ("mqtt://a b", "has no host"),
        (f"mqtt://u:{SECRET}@box:0", "has a port that is not one of 1 to 65535"),
        ("mqtt://box:65536", "has a port"),
        ("mqtt://box:", "has a port"),
        ("mqtt://box:²", "has a port"),
        (f"mqtt://box:{'1' * 5000}", "has a port"),
        ("mqtt://::1", "has no host"),
        ("mqtt://[::1", "has no host"),
        ("mqtt://[::g]", "has no IPv6 address"),
        ("mqtt://box/topic", "has a path"),
        (f"mqtt://u:a/{SECRET}@box", "%2F"),
        (f"mqtt://u:a/{SECRET}", "has a path"),
        (f"mqtt://u:a://{SECRET}@box", "has a path"),
        (f"mqtt://u:{SECRET}://a@box", "has a path"),
        (f"mqtt://u:{SECRET * 20_000}@box", "the password is not shown; it must be"),
        (f"mqtt://{'u' * 70_000}:{SECRET}@box", "the user is not shown; it must be"),
        (f"mqtt://:{SECRET}@box", "has no user"),
        (f"mqtt://u:{SECRET}%@box", "%25"),
        (f"mqtt://u:{SECRET}%FF@box", "not UTF-8"),
        (f"mqtt://u%00:{SECRET}@box", "not UTF-8"),
    ],
)
def test_what_is_no_address_is_refused_in_a_sentence_without_the_password(
    url: str, part: str
) -> None:
    with pytest.raises(AddressError) as caught:
        BrokerAddress.parse(url)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    if "@" in url:
        assert SECRET not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    for url in (text, f"mqtt://{text}", f"wss://u:{text}@box"):
        try:
            address = BrokerAddress.parse(url)
        except AddressError:
            continue
        assert BrokerAddress.parse(str(address), password=address.password) == address


def test_what_is_redacted_ends_at_the_last_at() -> None:
    assert redact("mqtt://u:p@ss/w:rd@box:1/x") == "mqtt://u:***@box:1/x"
    assert redact("u:p@box") == "u:***@box"
    assert redact("mqtt://u@box:1883") == "mqtt://u@box:1883"
    assert redact("mqtt://u:p://q@box") == "mqtt://u:***@box"
    assert redact("u:p://q@box") == "u:***@box"
    assert SECRET not in redact(repr({"url": f"mqtt://u:{SECRET}@a", "b": "mqtt://v:w@b"}))


def test_loopback() -> None:
    urls = ("mqtt://127.0.0.2", "mqtt://localhost", "mqtt://[::1]", "mqtt://10.0.0.1", "mqtt://box")
    assert [BrokerAddress.parse(url).is_loopback for url in urls] == [
        True,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_certificates_need_tls(scheme: str) -> None:
    with pytest.raises(AddressError, match=f"write {scheme}s:// for TLS"):
        BrokerAddress.parse(f"{scheme}://box", ca_file=Path("ca.crt"))


def test_a_key_needs_a_certificate() -> None:
    with pytest.raises(AddressError, match=r"key_file is 'a.key', and cert_file is not set"):
        BrokerAddress.parse("mqtts://box", key_file=Path("a.key"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate a.crt, its key a.key, another's b.key, and locked.key."""
    folder = tmp_path_factory.mktemp("pair")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    for name in "ab":
        own = ("-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt")
        _openssl(folder, "req", "-x509", *curve, *own)
    _openssl(
        folder, "ec", "-in", "a.key", "-aes128", "-passout", "pass:xyzzy", "-out", "locked.key"
    )
    return folder


def _openssl(folder: Path, *command: str) -> None:
    subprocess.run(["openssl", *command], cwd=folder, check=True, capture_output=True)


def test_tls_checks_the_broker(pair: Path) -> None:
    files = {"ca_file": pair / "a.crt", "cert_file": pair / "a.crt", "key_file": pair / "a.key"}
    context = BrokerAddress.parse("mqtts://box", **files).tls_context()
    assert context is not None
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert BrokerAddress.parse("mqtt://box").tls_context() is None


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"ca_file": "none"}, "ca_file is '{folder}/none'; No such file or directory"),
        ({"ca_file": "a.key"}, "ca_file is '{folder}/a.key'; it must hold certificates"),
        ({"cert_file": "none"}, "cert_file is '{folder}/none'; No such file or directory"),
        ({"cert_file": "a.crt"}, "cert_file is '{folder}/a.crt'; it must hold a certificate"),
        (
            {"cert_file": "a.crt", "key_file": "none"},
            "key_file is '{folder}/none'; No such file or directory",
        ),
        ({"cert_file": "a.crt", "key_file": "b.key"}, "key values mismatch"),
        ({"cert_file": "a.crt", "key_file": "locked.key"}, "as PEM and not encrypted"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    pair: Path, files: dict[str, str], sentence: str
) -> None:
    paths = {name: pair / file for name, file in files.items()}
    with pytest.raises(AddressError) as caught:
        BrokerAddress.parse("mqtts://box", **paths).tls_context()
    assert sentence.format(folder=pair) in str(caught.value)


def test_a_file_that_may_not_be_read_is_named_and_no_other(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(cafile: Path) -> ssl.SSLContext:
        raise PermissionError(13, "Permission denied", cafile)

    monkeypatch.setattr(ssl, "create_default_context", refuse)
    files = {"ca_file": pair / "b.crt", "cert_file": pair / "a.crt", "key_file": pair / "a.key"}
    with pytest.raises(AddressError, match=r"^ca_file is '.*/b.crt'; Permission denied$"):
        BrokerAddress.parse("mqtts://box", **files).tls_context()
