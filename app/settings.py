"""Settings: what the person chose, by flag, environment or file, checked before anything starts."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_config_path, user_data_path, user_log_path
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    ValidationError,
)

from app.gateway.mqtt.settings import MqttSettings, Quota
from app.gateway.mqtt.transport.address import redact, split_password
from app.knobs import find_policy, parse_knob
from app.paths import Location
from engine.client import ChatMessage, LoadRequest
from engine.config import DTYPES, EngineConfig
from engine.errors import InvalidConfigError, InvalidRequestError
from engine.knobs import Knobs, change_knobs
from engine.request import SamplingParams
from engine.scheduling.policies import policy_names

APP = "batchdeck"
PREFIX = "TUI_"
SAMPLING_NAMES = tuple(f.name for f in fields(SamplingParams))

# Docker, the JVM and llama.cpp read a bare K, M or G in powers of two; so it is done here.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


class SettingsError(Exception):
    """A setting is unknown or out of range; the message names it, where it was stated, and what is
    allowed."""


def parse_size(value: object) -> int:
    """Bytes from a number, or a text such as 2GiB, 512M or 1.5GB.

    Raises:
        ValueError: it is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError("it must be a size such as 2GiB, 512M or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])


def _dtype(value: object) -> object:
    if value not in DTYPES:
        raise ValueError(f"it must be one of {', '.join(DTYPES)}")
    return value


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1)]


class Settings(BaseModel):
    """Every setting with its default.

    Attributes:
        model: a name from the registry, a folder, or a hub id.
        models: the registry file; None is the one that ships.
        kv_memory: bytes of the KV pool; excludes `num_blocks`.
        system: system prompt of new conversations.
        pin_system: whether its blocks are never evicted.
        sampling: replaces the model's defaults by name (`engine.request.SamplingParams`).
        knobs: where the live policy starts, by name (`engine.knobs.Knobs`).
        log_level: None is info in the file and warning on standard error.
        data_dir: where the store and crash reports lie.
        theme: the interface's theme; None is its default.
        ascii: draw with ASCII only.
        keys: key bindings by the id of what they do.
        mqtt: the broker, if there is one, and what its users may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "builtin"
    models: Location | None = None
    device: str | None = None
    dtype: Annotated[str, BeforeValidator(_dtype)] | None = None
    kv_memory: Size | None = None
    num_blocks: PositiveInt | None = None
    max_model_len: PositiveInt | None = None
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    system: str = ""
    pin_system: bool = False
    sampling: dict[str, Any] = {}
    knobs: dict[str, Any] = {}
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    log_file: Location = Field(
        default_factory=lambda: user_log_path(APP, appauthor=False) / f"{APP}.log"
    )
    data_dir: Location = Field(default_factory=lambda: user_data_path(APP, appauthor=False))
    theme: str | None = None
    ascii: bool = False
    keys: dict[str, str] = {}
    mqtt: MqttSettings = Field(default_factory=MqttSettings)

    @property
    def store_file(self) -> Path:
        return self.data_dir / f"{APP}.db"

    @property
    def crash_dir(self) -> Path:
        return self.data_dir / "crashes"

    @property
    def pinned(self) -> tuple[ChatMessage, ...]:
        """What conversations begin with and is never evicted; empty if nothing is."""
        wanted = self.pin_system and self.system
        return (ChatMessage("system", self.system),) if wanted else ()

    def load_request(self) -> LoadRequest:
        """The part that says which model to load and how."""
        return LoadRequest(
            model=os.path.expanduser(self.model),
            models_file=str(self.models) if self.models else None,
            device=self.device,
            dtype=self.dtype,
            kv_memory=self.kv_memory,
            num_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            knobs=self.knobs,
        )


NAMES = tuple(Settings.model_fields)
TABLES = ("sampling", "knobs", "keys", "mqtt")
# Of the table [mqtt], those that one text can state; the flag and the variable of `url` are --mqtt
# and TUI_MQTT.
MQTT_NAMES = tuple(n for n in MqttSettings.model_fields if n not in ("url", "quota", "users"))
_ENVIRONMENT = {
    f"{PREFIX}{name.upper()}": name
    for name in (*NAMES, *SAMPLING_NAMES, "policy")
    if name == "mqtt" or name not in TABLES
} | {f"{PREFIX}MQTT_{name.upper()}": name for name in MQTT_NAMES}
CONFIG_VARIABLE = f"{PREFIX}CONFIG"

# No narrower than any envelope: that is known, and the knobs are checked against it, when a model
# is loaded.
_WIDEST = EngineConfig(
    num_blocks=1, max_model_len=1, max_num_seqs=1 << 20, max_num_batched_tokens=1 << 20
)
_FITTING = Knobs(max_num_seqs=1, max_num_batched_tokens=_WIDEST.max_num_batched_tokens)

# (table or "", name) -> (value, where it was stated)
_Key = tuple[str, str]
_Stated = dict[_Key, tuple[object, str]]

_URL, _PASSWORD, _PASSWORD_FILE = ("mqtt", "url"), ("mqtt", "password"), ("mqtt", "password_file")
_EITHER: tuple[tuple[_Key, _Key], ...] = (
    (("", "kv_memory"), ("", "num_blocks")),
    (_PASSWORD, _PASSWORD_FILE),
)


def config_file(stated: Path | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """The configuration file in force, whether it exists or not."""
    named = stated or (Path(env[CONFIG_VARIABLE]) if env.get(CONFIG_VARIABLE) else None)
    if named is not None:
        return named.expanduser()
    return user_config_path(APP, appauthor=False) / "config.toml"


def unknown_variables(env: Mapping[str, str] = os.environ) -> list[str]:
    """TUI_* variables that no setting is read from: misspelt ones, or another program's."""
    known = {*_ENVIRONMENT, CONFIG_VARIABLE}
    return sorted(name for name in env if name.startswith(PREFIX) and name not in known)


def load_settings(
    flags: Mapping[str, object] | None = None,
    config: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> Settings:
    """Settings by flag, else environment, else configuration file, else default.

    Args:
        flags: values by setting, by sampling parameter, by one of `MQTT_NAMES`, or of `policy`; of
            `knobs` a list of `name=value`, of `mqtt` the URL. None is not stated.
        config: the file named on the command line; it must then exist.

    Raises:
        SettingsError: one sentence for each setting at fault.
    """
    must_exist = config is not None or bool(env.get(CONFIG_VARIABLE))
    stated: _Stated = {}
    for layer in (
        _from_file(config_file(config, env), must_exist),
        _from_environment(env),
        _from_flags(flags or {}),
    ):
        _override(stated, layer)
    return _validate(stated)


def _from_file(path: Path, must_exist: bool) -> _Stated:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise SettingsError(f"{path}: there is no such configuration file") from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(f"{path}: {reason}") from None
    stated: _Stated = {}
    for name, value in tree.items():
        if name in TABLES and isinstance(value, dict):
            stated |= {(name, inner): (v, str(path)) for inner, v in value.items()}
        else:
            stated["", name] = (value, str(path))
    return _hide_password(stated)


def _from_environment(env: Mapping[str, str]) -> _Stated:
    stated: _Stated = {}
    for variable, name in _ENVIRONMENT.items():
        # An empty variable is how a shell says "not set" for one command.
        if env.get(variable):
            key = _key(name)
            value = _literal(env[variable]) if key[0] == "sampling" else env[variable]
            stated[key] = (value, variable)
    return _hide_password(stated)


def _from_flags(flags: Mapping[str, object]) -> _Stated:
    stated: _Stated = {
        _key(name): (value, f"--{name.replace('_', '-')}")
        for name, value in flags.items()
        if value is not None and name != "knobs"
    }
    texts = flags.get("knobs") or ()
    assert isinstance(texts, Sequence)
    for text in texts:
        try:
            name, value = parse_knob(text)
        except InvalidConfigError as error:
            raise SettingsError(f"--knob: {error.message}") from None
        stated["knobs", name] = (value, "--knob")
    return _hide_password(stated)


def _key(name: str) -> _Key:
    if name == "policy":
        return ("knobs", name)
    if name == "mqtt":
        return ("mqtt", "url")
    if name in MQTT_NAMES:
        return ("mqtt", name)
    return ("sampling" if name in SAMPLING_NAMES else "", name)


def _hide_password(layer: _Stated) -> _Stated:
    """Take the broker's password out of its URL, and put it where nothing prints it."""
    stated, source = layer.get(_URL, (None, ""))
    if isinstance(stated, str):
        url, password = split_password(stated)
        layer[_URL] = (url, source)
        if password is not None:
            layer[_PASSWORD] = (password, source)
    stated, source = layer.get(_PASSWORD, (None, ""))
    if isinstance(stated, str):
        layer[_PASSWORD] = (SecretStr(stated), source)
    return layer


def _literal(text: str) -> object:
    """A number, list or boolean as JSON writes it; any other text stays as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _override(stated: _Stated, layer: _Stated) -> None:
    for pair in _EITHER:
        for one, other in (pair, pair[::-1]):
            # Two ways to say one thing: what is stated closer replaces the other way too.
            if one in layer and other not in layer:
                stated.pop(other, None)
    if _URL in layer and _URL in stated:
        # A password is for the broker that it was stated with.
        for name in (_PASSWORD, _PASSWORD_FILE):
            if name in stated and stated[name][1] == stated[_URL][1]:
                del stated[name]
    stated |= layer


def _validate(stated: _Stated) -> Settings:
    for one, other in _EITHER:
        if one in stated and other in stated:
            source, names = stated[other][1], f"{other[1]} and {one[1]}"
            raise SettingsError(f"{source}: {names} exclude each other; state one")
    tree: dict[str, Any] = {}
    for (table, name), (value, _) in stated.items():
        place = tree.setdefault(table, {}) if table else tree
        if isinstance(place, dict):
            place[name] = value
    if isinstance(tree.get("sampling"), dict):
        _check_sampling(tree["sampling"], stated)
    if isinstance(tree.get("knobs"), dict):
        _check_knobs(tree["knobs"], stated)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        sentences = [_sentence(dict(detail), stated) for detail in error.errors()]
        raise SettingsError("\n".join(sentences)) from None


def _check_sampling(sampling: dict[str, Any], stated: _Stated) -> None:
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    try:
        SamplingParams().override(sampling)
    except InvalidRequestError as error:
        source = stated["sampling", error.param or ""][1]
        raise SettingsError(f"{source}: {error.message}") from None


def _check_knobs(knobs: dict[str, Any], stated: _Stated) -> None:
    try:
        if isinstance(knobs.get("policy"), str):
            knobs["policy"] = find_policy(knobs["policy"])
        change_knobs(_FITTING, knobs, _WIDEST, policy_names())
    except InvalidConfigError as error:
        source = stated["knobs", error.param or ""][1]
        raise SettingsError(f"{source}: {error.message}") from None


def _sentence(detail: dict[str, Any], stated: _Stated) -> str:
    """What pydantic found wrong, with where it was stated."""
    place = [str(part) for part in detail["loc"] if part != "[key]"]
    reason = detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    if place == ["mqtt"] and ("", "mqtt") not in stated:
        # Of several settings at once: the sentence names them, and begins with the one at fault.
        key = ("mqtt", reason.partition(" ")[0])
        source = next(stated[k][1] for k in (key, _URL, *stated) if k in stated and k[0] == "mqtt")
        return f"{source}: {reason}"
    key = (place[0], place[1]) if place[0] in TABLES and len(place) > 1 else ("", place[0])
    value, source = stated[key]
    for part in place[2 if key[0] else 1 :]:
        value = value[part] if isinstance(value, Mapping) and part in value else value
    name = ".".join(place)
    if detail["type"] == "extra_forbidden":
        return f"{source}: {name} is no setting; allowed are {', '.join(_siblings(place))}"
    if key == _PASSWORD:
        return f"{source}: {name} is not shown; {reason}"
    if detail["loc"][-1] == "[key]":
        value = place[-1]
    shown = redact(repr(value)) if place[0] == "mqtt" else repr(value)
    return f"{source}: {name} is {shown}; {reason}"


def _siblings(place: Sequence[str]) -> tuple[str, ...]:
    if place[0] != "mqtt":
        return NAMES
    return tuple((MqttSettings if len(place) == 2 else Quota).model_fields)
