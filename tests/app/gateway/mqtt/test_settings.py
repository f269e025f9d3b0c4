from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from app.commands.doctor import settings_or_default
from app.gateway.mqtt.protocol.topics import check_level
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import AddressError
from app.gateway.quotas import Quota
from app.process.crash import CrashReporter
from app.settings.layers import load_settings, unknown_variables
from app.settings.settings import MQTT_NAMES, Settings, SettingsError

SECRET = "s3cr3t"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("")
    return path


def mqtt(config: Path, text: str = "", env: dict[str, str] | None = None, **flags: object) -> Any:
    config.write_text(text)
    return load_settings(flags, config, env or {}).mqtt


def refusal(
    config: Path, text: str = "", env: dict[str, str] | None = None, **flags: object
) -> str:
    with pytest.raises(SettingsError) as caught:
        mqtt(config, text, env, **flags)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_without_a_broker_there_is_no_gateway(config: Path) -> None:
    assert not mqtt(config).is_on
    with pytest.raises(AddressError, match="no broker is set: state --mqtt URL"):
        mqtt(config).address()
    check_level("node", MqttSettings().node)


def test_the_table_has_tables(config: Path) -> None:
    settings = mqtt(
        config,
        """
        [mqtt]
        url = "mqtts://batchdeck@box"
        ca_file = "/etc/ca.crt"
        delta_ms = 50
        [mqtt.quota]
        requests = 4
        [mqtt.users.alice]
        max_priority = 9
        """,
    )
    assert settings.is_on
    assert settings.quota == Quota(requests=4)
    assert settings.users == {"alice": Quota(max_priority=9)}
    assert str(settings.address()) == "mqtts://batchdeck@box:8883"
    assert settings.address().ca_file == Path("/etc/ca.crt")
    assert settings.delta_ms == 50


def test_flag_beats_environment_beats_file(config: Path) -> None:
    text = '[mqtt]\nurl = "mqtt://file"\npool = "file"\nnode = "file"\n'
    env = {"TUI_MQTT": "mqtt://env", "TUI_MQTT_POOL": "env"}
    assert mqtt(config, text).url == "mqtt://file"
    assert mqtt(config, text, env).url == "mqtt://env"
    settings = mqtt(config, text, env, mqtt="mqtt://flag")
    assert (settings.url, settings.pool, settings.node) == ("mqtt://flag", "env", "file")
    assert mqtt(config, text, env, pool="flag", node=None).pool == "flag"


def test_each_of_one_text_has_a_variable() -> None:
    variables = {"TUI_MQTT": "", **{f"TUI_MQTT_{name.upper()}": "" for name in MQTT_NAMES}}
    assert unknown_variables(variables) == []
    assert "TUI_MQTT_KEEPALIVE" in variables
    assert unknown_variables({"TUI_MQTT_QUOTA": "", "TUI_MQTT_URL": ""}) == [
        "TUI_MQTT_QUOTA",
        "TUI_MQTT_URL",
    ]


def test_variables_are_read_by_their_type(config: Path) -> None:
    env = {"TUI_MQTT_EMBEDDED_BROKER": "true", "TUI_MQTT_DRAIN_SECONDS": "2.5"}
    settings = mqtt(config, "", env)
    assert (settings.embedded_broker, settings.drain_seconds) == (True, 2.5)


def test_the_password_leaves_the_url(config: Path) -> None:
    for settings in (
        mqtt(config, mqtt=f"mqtt://alice:{SECRET}%2F@box"),
        mqtt(config, f'[mqtt]\nurl = "mqtt://alice:{SECRET}%2F@box"\n'),
        MqttSettings(url=f"mqtt://alice:{SECRET}%2F@box"),
    ):
        assert settings.url == "mqtt://alice@box"
        assert settings.address().password == f"{SECRET}/"
        assert SECRET not in repr(settings)


def test_the_password_stated_closest_goes(config: Path) -> None:
    text = '[mqtt]\nurl = "mqtt://alice:file@box"\n'
    assert mqtt(config, text, {"TUI_MQTT_PASSWORD": "env"}).address().password == "env"
    env = {"TUI_MQTT": "mqtt://bob@box", "TUI_MQTT_PASSWORD": "env"}
    assert mqtt(config, text, env).address().password == "env"
    assert mqtt(config, text, env, mqtt="mqtt://bob:flag@box").address().password == "flag"


def test_a_password_is_for_the_broker_it_was_stated_with(config: Path) -> None:
    for line in ('url = "mqtt://alice:file@box"', 'url = "mqtt://a@box"\npassword_file = "p"'):
        settings = mqtt(config, f"[mqtt]\n{line}\n", mqtt="mqtt://alice@elsewhere")
        assert settings.address().password is None
        assert settings.password_file is None


def test_a_password_may_lie_in_a_file(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\nsecond line\n")
    settings = mqtt(config, password_file=file, mqtt="mqtt://alice@box")
    assert settings.address().password == SECRET
    env = {"TUI_MQTT_PASSWORD": "env"}
    assert mqtt(config, "", env, password_file=file, mqtt="mqtt://a@box").password is None
    for content, reason in ((b"\n", "its first line is empty"), (b"\xff", "it is not UTF-8 text")):
        file.write_bytes(content)
        with pytest.raises(AddressError) as caught:
            settings.address()
        assert str(caught.value) == f"password_file is {str(file)!r}; {reason}"
    file.unlink()
    with pytest.raises(AddressError, match="No such file or directory"):
        settings.address()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("keepalive = 1", "mqtt.keepalive is 1; it should be greater than or equal to 2"),
        ('protocol = "4"', "mqtt.protocol is '4'; it should be 'auto', '5' or '3.1.1'"),
        (
            'pool = "a/b"',
            "mqtt.pool is 'a/b'; it must be 1 to 128 printable characters without space, /, + and",
        ),
        ("pol = 1", "mqtt.pol is not a setting; allowed are url, password, password_file, ca_file"),
        (
            "quota = { reqests = 1 }",
            "mqtt.quota.reqests is not a setting; allowed are requests, per_",
        ),
        (
            "users = { alice = { requests = 0 } }",
            "mqtt.users.alice.requests is 0; it should be greater than 0",
        ),
        ("users = { 'a b' = {} }", "mqtt.users.a b is 'a b'; it must be 1 to 128 printable"),
        ("quota = 3", "mqtt.quota is 3; it should be a valid dictionary"),
        (f"url = ['mqtt://u:{SECRET}@box']", "mqtt.url is ['mqtt://u:***@box']; it should be a"),
        (f"password = ['{SECRET}']", "mqtt.password is not shown; it should be a valid string"),
        ('url = "box"', "the broker's address 'box' is not mqtt://HOST"),
        (f'url = "mqtt://u:a/{SECRET}@box"', "the broker's address 'mqtt://u:***@box' has a path"),
        (f'url = "http://u:{SECRET}@box"', "the broker's address 'http://u@box' is not mqtt://"),
        (
            f'url = "mqtt://box"\npassword = "{SECRET}"',
            "a password is set, but url is 'mqtt://box:1883', without a user",
        ),
        (
            f'url = "mqtt://a:{SECRET}@box"\npassword_file = "x"',
            "password_file and password exclude each other; state one",
        ),
        ('url = "mqtt://box"\nca_file = "x"', "the broker's address 'mqtt://box' is not encr"),
        ('url = "mqtts://box"\nkey_file = "x"', "key_file is 'x', and cert_file is not set"),
        (
            'url = "mqtt://box"\nembedded_broker = true',
            "url is 'mqtt://box:1883', where the embedded broker cannot listen",
        ),
        (
            'protocol = "5"\nembedded_broker = true',
            "protocol is '5', and the embedded broker speaks 3.1.1",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence_with_its_place(
    config: Path, text: str, sentence: str
) -> None:
    told = refusal(config, f"[mqtt]\n{text}\n")
    assert told.startswith(f"{config}: {sentence}"), told
    assert "\n" not in told


def test_the_place_of_what_is_wrong_may_be_a_flag_or_a_variable(config: Path) -> None:
    assert refusal(config, mqtt=f"u:{SECRET}@box").startswith("--mqtt: the broker's address 'u:***")
    assert refusal(config, "", {"TUI_MQTT_DELTA_MS": "-1"}).startswith("TUI_MQTT_DELTA_MS: mqtt.de")
    assert refusal(config, "mqtt = 3", mqtt="mqtt://box").startswith(f"{config}: mqtt is 3; it")


def test_the_embedded_broker_listens_on_the_loopback(config: Path) -> None:
    assert str(mqtt(config, embedded_broker=True).address()) == "mqtt://127.0.0.1:1883"
    settings = mqtt(config, embedded_broker=True, mqtt="mqtt://localhost:1999")
    assert settings.address().port == 1999
    with pytest.raises(ValidationError):
        MqttSettings(embedded_broker=True, password=SecretStr("x"))


def test_nothing_that_is_written_down_has_the_password(
    config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config.write_text(f'[mqtt]\nurl = "mqtt://alice:{SECRET}@box"\n')
    settings = load_settings({}, config, {})
    address = settings.mqtt.address()
    assert address.password == SECRET
    for text in (repr(settings), str(settings), repr(address), f"{address}"):
        assert SECRET not in text
    with CrashReporter(tmp_path / "crashes", settings, []) as reporter:
        reporter.report(RuntimeError(f"lost {address!r}"))
    (report,) = (tmp_path / "crashes").glob("crash-*")
    assert "mqtt://alice@box" in report.read_text()
    assert SECRET not in report.read_text() + caplog.text


def test_the_doctor_does_not_tell_the_password(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TUI_MQTT", raising=False)
    config.write_text(f'[mqtt]\nurl = "mqtt://alice:{SECRET}/x@box"\n')
    settings, trouble = settings_or_default({}, config)
    assert settings == Settings()
    assert "mqtt://alice:***@box" in str(trouble)
    assert SECRET not in str(trouble)
