"""Layers: merges the settings from flags, environment and file, and validates them."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platformdirs import user_config_path
from pydantic import SecretStr, ValidationError

from app.gateway.http.settings import ApiKey, HttpQuota, HttpSettings
from app.gateway.mqtt.settings import MqttSettings
from app.gateway.mqtt.transport.address import redact, split_password
from app.gateway.quotas import Quota
from app.settings.alerts import AlertRules
from app.settings.knobs import find_policy, parse_knob
from app.settings.own_file import OwnFile, OwnSettings
from app.settings.settings import (
    APP,
    HTTP_NAMES,
    MQTT_NAMES,
    NAMES,
    PREFIX,
    SAMPLING_NAMES,
    TABLES,
    Settings,
    SettingsError,
)
from engine.api.config import EngineConfig
from engine.api.errors import InvalidConfigError, InvalidRequestError
from engine.api.knobs import Knobs, change_knobs
from engine.api.sampling import SamplingParams

_ENVIRONMENT = {
    f"{PREFIX}{name.upper()}": name
    for name in (*NAMES, *SAMPLING_NAMES, "policy")
    if name in ("mqtt", "http") or name not in TABLES
}
_ENVIRONMENT |= {f"{PREFIX}MQTT_{name.upper()}": name for name in MQTT_NAMES}
_ENVIRONMENT |= {f"{PREFIX}HTTP_{name.upper()}": f"http_{name}" for name in HTTP_NAMES[2:]}
_ENVIRONMENT[f"{PREFIX}API_KEY"] = "api_key"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"

# An envelope at least as wide as any. The real one is known only when a model is loaded, and the
# knobs are checked against it then.
_WIDEST = EngineConfig(
    num_blocks=1, max_model_len=1, max_num_seqs=1 << 20, max_num_batched_tokens=1 << 20
)
_FITTING = Knobs(max_num_seqs=1, max_num_batched_tokens=_WIDEST.max_num_batched_tokens)

# A setting's table ("" for none) and its name.
_Key = tuple[str, str]
# For each stated setting: its value, and its source.
_Stated = dict[_Key, tuple[object, str]]

_URL, _PASSWORD, _PASSWORD_FILE = ("mqtt", "url"), ("mqtt", "password"), ("mqtt", "password_file")
_API_KEY = ("http", "api_key")
_EITHER: tuple[tuple[_Key, _Key], ...] = (
    (("", "kv_memory"), ("", "num_blocks")),
    (_PASSWORD, _PASSWORD_FILE),
)


def config_file(stated: Path | None = None, env: Mapping[str, str] = os.environ) -> Path:
    """The configuration file in force, whether it exists or not.

    Args:
        stated: the file named on the command line; None if none was.
    """
    named = stated or (Path(env[CONFIG_VARIABLE]) if env.get(CONFIG_VARIABLE) else None)
    if named is not None:
        # If there is no such user it stays as it is, and is reported as a missing file.
        return Path(os.path.expanduser(named))
    return user_config_path(APP, appauthor=False) / "config.toml"


def unknown_variables(env: Mapping[str, str] = os.environ) -> list[str]:
    """Variables TUI_* that are not settings: they are misspelt, or belong to another program."""
    known = {*_ENVIRONMENT, CONFIG_VARIABLE}
    return sorted(name for name in env if name.startswith(PREFIX) and name not in known)


def load_settings(
    flags: Mapping[str, object] | None = None,
    config: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> Settings:
    """Load the settings. A flag overrides the environment, which overrides the configuration file;
    all others have their defaults.

    Args:
        flags: values by name. A name is that of a setting, of a sampling parameter, one of
            `MQTT_NAMES`, one of `HTTP_NAMES` after `http_`, `api_key`, or `policy`. The value of
            `knobs` is a list of `name=value`, that of `mqtt` the URL, and that of `http` the
            address to listen on. None means not stated, and so does an `api_key` of "-": the
            environment has it.
        config: the file named on the command line, which must exist; None if none was named.

    Raises:
        SettingsError: settings are wrong; the message has one sentence for each.
    """
    return _validate(_merged(_below(config, env), _above(flags or {}, env)))


def load_interface(
    flags: Mapping[str, object] | None = None,
    config: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> tuple[Settings, OwnSettings]:
    """Load the settings of the interface: its own changes override the configuration file, and are
    overridden by flags and environment. Arguments and errors are those of `load_settings`."""
    below, above = _below(config, env), _above(flags or {}, env)
    base = _validate(_merged(below, above))
    file = OwnFile(base.data_dir)
    fixed = {key: source for key, (_, source) in above.items()}
    settings = _validate(_merged(below, _from_tree(file.read(), file.path), above))
    return settings, OwnSettings(file, base, fixed)


def _below(config: Path | None, env: Mapping[str, str]) -> _Stated:
    must_exist = config is not None or bool(env.get(CONFIG_VARIABLE))
    return _from_file(config_file(config, env), must_exist)


def _above(flags: Mapping[str, object], env: Mapping[str, str]) -> _Stated:
    return _merged(_from_environment(env), _from_flags(flags))


def _merged(*layers: _Stated) -> _Stated:
    """The union of layers; a later one overrides those before it."""
    stated: _Stated = {}
    for layer in layers:
        _override(stated, layer)
    return stated


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
    return _from_tree(tree, path)


def _from_tree(tree: Mapping[str, object], path: Path) -> _Stated:
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
        # An empty variable counts as not set: so a shell can unset one for a single command.
        if env.get(variable):
            key = _key(name)
            value = _literal(env[variable]) if key[0] == "sampling" else env[variable]
            stated[key] = (value, variable)
    return _hide_password(stated)


def _from_flags(flags: Mapping[str, object]) -> _Stated:
    stated: _Stated = {
        _key(name): (value, f"--{name.replace('_', '-')}")
        for name, value in flags.items()
        if value is not None and name != "knobs" and (name, value) != ("api_key", "-")
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
    if name == "http":
        return ("http", "listen")
    if name == "api_key":
        return ("http", name)
    if name.startswith("http_"):
        return ("http", name.removeprefix("http_"))
    if name in MQTT_NAMES:
        return ("mqtt", name)
    return ("sampling" if name in SAMPLING_NAMES else "", name)


def _hide_password(layer: _Stated) -> _Stated:
    """Move the broker's password out of its URL, and wrap secrets so that nothing prints them."""
    stated, source = layer.get(_URL, (None, ""))
    if isinstance(stated, str):
        url, password = split_password(stated)
        layer[_URL] = (url, source)
        if password is not None:
            layer[_PASSWORD] = (password, source)
    for key in (_PASSWORD, _API_KEY):
        stated, source = layer.get(key, (None, ""))
        if isinstance(stated, str):
            layer[key] = (SecretStr(stated), source)
    return layer


def _literal(text: str) -> object:
    """A number, list or boolean in JSON; any other text stays as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _override(stated: _Stated, layer: _Stated) -> None:
    for pair in _EITHER:
        for one, other in (pair, pair[::-1]):
            # These two settings exclude each other. If a layer states one of them, the other one is
            # dropped from the layers before.
            if one in layer and other not in layer:
                stated.pop(other, None)
    if _URL in layer and _URL in stated:
        # A password only applies to the broker with which it was stated.
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
    if not knobs:
        return
    # This takes 0.02 s, and delays the first screen.
    from engine.scheduling.policies import policy_names

    try:
        if isinstance(knobs.get("policy"), str):
            knobs["policy"] = find_policy(knobs["policy"])
        change_knobs(_FITTING, knobs, _WIDEST, policy_names())
    except InvalidConfigError as error:
        source = stated["knobs", error.param or ""][1]
        raise SettingsError(f"{source}: {error.message}") from None


def _sentence(detail: dict[str, Any], stated: _Stated) -> str:
    """A sentence on pydantic's error. It begins with the setting's source."""
    place = [str(part) for part in detail["loc"] if part != "[key]"]
    reason = detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")
    table = place[0]
    if place in (["mqtt"], ["http"]) and ("", table) not in stated:
        # The fault is in several settings together. The reason names them, and begins with the one
        # at fault.
        key = (table, reason.partition(" ")[0])
        source = next(stated[k][1] for k in (key, _URL, *stated) if k in stated and k[0] == table)
        return f"{source}: {reason}"
    key = (place[0], place[1]) if place[0] in TABLES and len(place) > 1 else ("", place[0])
    value, source = stated[key]
    for part in place[2 if key[0] else 1 :]:
        value = value[part] if isinstance(value, Mapping) and part in value else value
    name = ".".join(place)
    if detail["type"] == "extra_forbidden":
        return f"{source}: {name} is not a setting; allowed are {', '.join(_siblings(place))}"
    if key in (_PASSWORD, _API_KEY) or place[:2] == ["http", "keys"]:
        return f"{source}: {name} is not shown; {reason}"
    if detail["loc"][-1] == "[key]":
        value = place[-1]
    shown = redact(repr(value)) if place[0] == "mqtt" else repr(value)
    return f"{source}: {name} is {shown}; {reason}"


def _siblings(place: Sequence[str]) -> tuple[str, ...]:
    if place[0] == "alerts":
        return tuple(AlertRules.model_fields)
    if place[0] not in ("mqtt", "http"):
        return NAMES
    if len(place) == 2:
        return tuple((MqttSettings if place[0] == "mqtt" else HttpSettings).model_fields)
    quota = HttpQuota if place[0] == "http" else Quota
    return tuple((ApiKey if place[1] == "keys" else quota).model_fields)
