from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.bench.options import Envelope
from app.settings import flags
from app.settings.groups import stated
from app.settings.layers import config_file, load_settings, unknown_variables
from app.settings.settings import (
    MQTT_NAMES,
    NAMES,
    SAMPLING_NAMES,
    Settings,
    SettingsError,
    parse_size,
)
from engine.api.client import ChatMessage
from engine.api.sampling import SamplingParams


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text("")
    return path


def refusal(
    config: Path, text: str = "", env: dict[str, str] | None = None, **flags: object
) -> str:
    config.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, config, env or {})
    return str(caught.value)


def test_flag_beats_environment_beats_file_beats_default(config: Path) -> None:
    config.write_text(
        'model = "file"\ndevice = "cpu"\ndtype = "float16"\nmax_model_len = 5\nquantize = "int4"\n'
    )
    env = {"TUI_MODEL": "env", "TUI_DEVICE": "cuda", "TUI_DTYPE": "", "TUI_MAX_NUM_SEQS": "7"}
    env["TUI_QUANTIZE"] = "int8"
    settings = load_settings({"model": "flag", "device": None}, config, env)
    assert (settings.model, settings.device, settings.dtype) == ("flag", "cuda", "float16")
    assert (settings.max_model_len, settings.max_num_seqs) == (5, 7)
    assert settings.quantize == "int8"
    assert settings.max_num_batched_tokens is Settings().max_num_batched_tokens is None


def test_a_bias_is_a_table_or_json(config: Path) -> None:
    config.write_text("[sampling]\nlogprobs = 3\nlogit_bias = { 262 = -100, 5 = 1.5 }\n")
    settings = load_settings({}, config, {})
    params = SamplingParams().override(settings.sampling)
    assert (params.logit_bias, params.logprobs) == (((262, -100), (5, 1.5)), 3)
    settings = load_settings({}, config, {"TUI_LOGIT_BIAS": '{"7": 2}', "TUI_LOGPROBS": "0"})
    params = SamplingParams().override(settings.sampling)
    assert (params.logit_bias, params.logprobs) == (((7, 2),), 0)


def test_sampling_merges_by_parameter(config: Path) -> None:
    config.write_text('[sampling]\ntemperature = 0.1\ntop_k = 3\nstop = "END"\n')
    env = {"TUI_TOP_K": "4", "TUI_MAX_TOKENS": "9", "TUI_IGNORE_EOS": "true"}
    settings = load_settings({"max_tokens": 11, "seed": 5}, config, env)
    assert settings.sampling == {
        "temperature": 0.1,
        "top_k": 4,
        "max_tokens": 11,
        "seed": 5,
        "stop": ["END"],
        "ignore_eos": True,
    }


def test_knobs_merge_by_name(config: Path) -> None:
    config.write_text('[knobs]\npolicy = "static"\nmax_num_seqs = 4\npaused = true\nageing = 9\n')
    env = {"TUI_POLICY": "orca"}
    assert load_settings({}, config, env).knobs["policy"] == "orca"
    flags: dict[str, object] = {
        "policy": "dynamic",
        "knobs": ["max_num_seqs=2", "paused=false", "max_num_seqs=3"],
    }
    settings = load_settings(flags, config, env)
    stated = {"policy": "dynamic", "max_num_seqs": 3, "paused": False, "ageing": 9}
    assert settings.knobs == stated
    assert settings.load_request().knobs == stated
    assert (settings.max_num_seqs, settings.load_request().max_num_seqs) == (None, None)
    config.write_text("")
    assert load_settings({"policy": None, "knobs": None}, config, {}).knobs == {}


def test_batch_knobs_that_are_stated_alone_wait_for_the_envelope(config: Path) -> None:
    for text in ("max_num_batched_tokens = 1", "max_num_seqs = 100000"):
        config.write_text(f"[knobs]\n{text}")
        assert load_settings({}, config, {}).knobs
    message = refusal(config, "[knobs]\nmax_num_seqs = 9\nmax_num_batched_tokens = 8")
    assert message.startswith(f"{config}: max_num_batched_tokens is 8; it must be at least")


def test_the_system_prompt_is_pinned_if_there_is_one(config: Path) -> None:
    config.write_text("pin_system = true")
    assert load_settings({}, config, {}).pinned == ()
    pinned = (ChatMessage("system", "Be brief."),)
    assert load_settings({"system": "Be brief."}, config, {}).pinned == pinned
    env = {"TUI_PIN_SYSTEM": "false"}
    assert load_settings({"system": "Be brief.", "pin_system": None}, config, env).pinned == ()


def test_a_closer_pool_size_replaces_the_other_way_to_state_it(config: Path) -> None:
    config.write_text('kv_memory = "1GiB"\n')
    settings = load_settings({}, config, {"TUI_NUM_BLOCKS": "64"})
    assert (settings.kv_memory, settings.num_blocks) == (None, 64)
    settings = load_settings({"kv_memory": "2M"}, config, {"TUI_NUM_BLOCKS": "64"})
    assert (settings.kv_memory, settings.num_blocks) == (2 * 1024**2, None)
    message = refusal(config, kv_memory="1G", num_blocks=4)
    assert message == "--num-blocks: num_blocks and kv_memory exclude each other; state one"


@pytest.mark.parametrize(
    ("text", "env", "flags", "parts"),
    [
        ("modle = 'x'", {}, {}, ["config.toml: modle is not a setting; allowed are", *NAMES]),
        (
            "[sampling]\nheat = 1",
            {},
            {},
            ["config.toml: heat is not a sampling parameter", "top_k"],
        ),
        ("model = 3", {}, {}, ["config.toml: model is 3; it should be a valid string"]),
        ("[keys]\nquit = 3", {}, {}, ["config.toml: keys.quit is 3; it should be a valid string"]),
        ("sampling = 3", {}, {}, ["config.toml: sampling is 3; it should be a valid dictionary"]),
        ("model = ", {}, {}, ["config.toml: Invalid value (at end of document)"]),
        ("", {"TUI_NUM_BLOCKS": "0"}, {}, ["TUI_NUM_BLOCKS: num_blocks is '0'", "greater than 0"]),
        ("", {"TUI_DTYPE": "int8"}, {}, ["TUI_DTYPE: dtype is 'int8'", "auto, float32, bfloat16"]),
        ("quantize = 8", {}, {}, ["config.toml: quantize is 8; it must be one of none, int8"]),
        ("", {"TUI_TOP_P": "x"}, {}, ["TUI_TOP_P: top_p is 'x'; it must be a number above 0"]),
        ("", {"TUI_LOGPROBS": "21"}, {}, ["TUI_LOGPROBS: logprobs is 21", "from 0 to 20"]),
        ("", {"TUI_LOGIT_BIAS": "262"}, {}, ["TUI_LOGIT_BIAS: logit_bias is 262", "a map of"]),
        (
            "[sampling.logit_bias]\n262 = 101",
            {},
            {},
            ["config.toml: logit_bias of token id 262 is 101", "from -100 to 100"],
        ),
        ("", {"TUI_TEMPERATURE": "NaN"}, {}, ["TUI_TEMPERATURE: temperature is nan"]),
        ("", {"TUI_DATA_DIR": "~nobody-of-that-name/x"}, {}, ["TUI_DATA_DIR: data_dir is", "home"]),
        ("", {"TUI_LOG_LEVEL": "loud"}, {}, ["TUI_LOG_LEVEL", "'debug', 'info', 'warning'"]),
        ("", {"TUI_MAX_NUM_SEQS": "1.5"}, {}, ["TUI_MAX_NUM_SEQS: max_num_seqs is '1.5'"]),
        ("", {}, {"kv_memory": "2GX"}, ["--kv-memory: kv_memory is '2GX'", "2GiB, 512M"]),
        ("", {}, {"temperature": -1.0}, ["--temperature: temperature is -1.0", "0 to 100"]),
        ("", {}, {"stop": ["", "x"]}, ["--stop: stop is", "non-empty strings"]),
        ("knobs = 3", {}, {}, ["config.toml: knobs is 3; it should be a valid dictionary"]),
        ("policy = 'orca'", {}, {}, ["config.toml: policy is not a setting; allowed are", "knobs"]),
        ("[knobs]\nturbo = 1", {}, {}, ["config.toml: turbo is not a knob; allowed are policy,"]),
        (
            "[knobs]\nwatermark = 0.9",
            {},
            {},
            ["config.toml: watermark is 0.9; it must be from 0 to 0.5"],
        ),
        (
            "[knobs]\npaused = 1",
            {},
            {},
            ["config.toml: paused is 1; it must be one of true, false"],
        ),
        (
            "",
            {"TUI_POLICY": "fifo"},
            {},
            ["TUI_POLICY: policy is 'fifo'; it must be one of 'stall"],
        ),
        (
            "",
            {"TUI_POLICY": "a.b:C"},
            {},
            ["TUI_POLICY: policy is 'a.b:C'; it could not be loaded"],
        ),
        ("", {}, {"policy": "json:dumps"}, ["--policy: policy is 'json:dumps'; dumps must be a"]),
        ("", {}, {"knobs": ["paused"]}, ["--knob: 'paused' is not a knob; it must be name=value"]),
        ("", {}, {"knobs": ["ageing=-1"]}, ["--knob: ageing is -1.0; it must be from 0 to"]),
        ("", {}, {"knobs": ["order=x"]}, ["--knob: order is 'x'; it must be one of 'priority'"]),
    ],
)
def test_a_bad_setting_is_named_with_its_source_and_range(
    config: Path, text: str, env: dict[str, str], flags: dict[str, object], parts: list[str]
) -> None:
    message = refusal(config, text, env, **flags)
    for part in parts:
        assert part in message


def test_every_bad_setting_is_named(config: Path) -> None:
    message = refusal(config, "modle = 1\nnum_blocks = -1")
    assert sorted(line.split(": ")[1].split(" is ")[0] for line in message.splitlines()) == [
        "modle",
        "num_blocks",
    ]


def test_a_named_file_must_exist_the_usual_one_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(SettingsError, match=r"none\.toml: there is no such configuration file"):
        load_settings({}, missing, {})
    with pytest.raises(SettingsError, match="no such configuration file"):
        load_settings({}, None, {"TUI_CONFIG": str(missing)})
    with pytest.raises(SettingsError, match="no such configuration file"):
        load_settings({}, None, {"TUI_CONFIG": "~nobody-of-that-name/x.toml"})
    monkeypatch.setattr("app.settings.layers.user_config_path", lambda *_, **__: tmp_path)
    assert load_settings({}, None, {}).model == "builtin"
    (tmp_path / "config.toml").write_text('model = "usual"')
    assert load_settings({}, None, {}).model == "usual"
    assert config_file(None, {"TUI_CONFIG": "~/x.toml"}) == Path.home() / "x.toml"


def test_a_file_that_is_no_text_is_refused(config: Path) -> None:
    config.write_bytes(b"model = '\xff'")
    with pytest.raises(SettingsError, match=r"config\.toml: .*utf-8"):
        load_settings({}, config, {})


def test_unknown_variables_are_found() -> None:
    env = {"TUI_MODLE": "x", "TUI_MODEL": "y", "TUI_TOP_K": "1", "TUI_CONFIG": "z", "PATH": ""}
    assert unknown_variables(env) == ["TUI_MODLE"]


def test_the_load_request_says_what_was_chosen(config: Path) -> None:
    flags = {"model": "~/m", "models": "~/r.toml", "kv_memory": "1.5K", "max_model_len": 99}
    request = load_settings(flags, config, {}).load_request()
    assert request.model == str(Path.home() / "m")
    assert request.models_file == str(Path.home() / "r.toml")
    assert (request.kv_memory, request.max_model_len, request.num_blocks) == (1536, 99, None)
    assert request.swap_memory is None


def test_swapping_can_be_turned_off() -> None:
    assert load_settings({"swap_memory": "0"}, None, {}).load_request().swap_memory == 0


def test_sizes() -> None:
    sizes = {
        "2GiB": 2 * 1024**3,
        "512M": 512 * 1024**2,
        "1.5 GB": 1_500_000_000,
        "7": 7,
        "3k": 3072,
    }
    assert {text: parse_size(text) for text in sizes} == sizes
    for wrong in ("", "GiB", "-1", "1 GiB 2", "1e3", "infG", "2QB", True):
        with pytest.raises(ValueError, match="size such as"):
            parse_size(wrong)


@given(st.integers(min_value=0, max_value=2**50))
def test_a_number_of_bytes_is_itself(number: int) -> None:
    assert parse_size(number) == parse_size(str(number)) == number


@pytest.mark.parametrize(
    "group", [flags.Model, flags.Engine, flags.Sampling, flags.Broker, flags.Credentials, Envelope]
)
def test_each_flag_of_a_group_of_settings_is_a_setting(group: type) -> None:
    names = stated(group())
    assert names
    assert set(names) <= {*NAMES, *SAMPLING_NAMES, *MQTT_NAMES, "policy"}


@pytest.mark.parametrize(
    ("stated", "order"),
    [
        ({"http": {"listen": "1"}}, None),
        ({"http": {"listen": "1", "api_key": "k"}}, "fair"),
        ({"http": {"listen": "1", "keys": {"a": {"key": "k"}}}}, "fair"),
        ({"http": {"keys": {"a": {"key": "k"}}}}, None),
        ({"http": {"listen": "1", "api_key": "k"}, "knobs": {"order": "fcfs"}}, "fcfs"),
        ({"http": {"listen": "1", "keys": {"a": {"key": "k", "max_priority": 1}}}}, None),
        (
            {
                "http": {"listen": "1", "api_key": "k"},
                "mqtt": {"users": {"a": {"max_priority": 1}}},
            },
            None,
        ),
    ],
)
def test_those_who_have_keys_share_the_engine(stated: dict[str, Any], order: str | None) -> None:
    assert Settings(**stated).load_request().knobs.get("order") == order


@pytest.mark.parametrize(
    ("stated", "is_wanted"),
    [
        ({}, False),
        ({"http": {"api_key": "k"}}, False),
        ({"http": {"listen": "1"}}, True),
        ({"mqtt": {"url": "mqtt://box"}}, True),
    ],
)
def test_gateways_have_a_second_process_encode(stated: dict[str, Any], is_wanted: bool) -> None:
    assert Settings(**stated).load_request().spare_encoder is is_wanted
