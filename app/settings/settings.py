"""Settings: all settings of a user, with their defaults and allowed values."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_path, user_log_path
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
)

from app.gateway.http.settings import HttpSettings
from app.gateway.mqtt.settings import MqttSettings
from app.settings.alerts import AlertRules
from app.system.paths import CRASHES, Location
from engine.api.client import ChatMessage, LoadRequest
from engine.api.config import DTYPES, QUANTIZATIONS
from engine.api.sampling import SAMPLING_SPECS

APP = "batchdeck"
PREFIX = "TUI_"
SAMPLING_NAMES = tuple(SAMPLING_SPECS)

# A bare K, M or G is a power of two, as in Docker, the JVM and llama.cpp.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}ib": 1024**_power, f"{_letter}b": 1000**_power}


class SettingsError(Exception):
    """A setting is unknown or out of range; the message has its name, its source, and the allowed
    values."""


def parse_size(value: object) -> int:
    """Parse a number of bytes, or a text such as 2GiB, 512M or 1.5GB.

    Raises:
        ValueError: the value is no size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", str(value).lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError("it must be a size such as 2GiB, 512M or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])


def _one_of(*allowed: str) -> BeforeValidator:
    def check(value: object) -> object:
        if value not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return value

    return BeforeValidator(check)


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1)]
SizeOrNone = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]


class Settings(BaseModel):
    """Every setting with its default.

    Attributes:
        model: a name from the registry, a folder, or a hub id.
        models: the registry file; None is the one in the package.
        device: auto, cpu, cuda or cuda:N; None is auto.
        dtype: the type of the weights; None is that of the registry.
        quantize: the quantized type of matrix weights at load; None is the registry's choice.
        kv_memory: bytes of the KV pool; excludes `num_blocks`.
        num_blocks: blocks of the KV pool.
        swap_memory: bytes of host memory for swapped-out conversations; 0 is none.
        snapshot_memory: bytes for the states of prefixes, for models with states; 0 is none.
        max_model_len: most tokens of a sequence.
        max_num_seqs, max_num_batched_tokens: most sequences and most tokens in a step.
        system: the system prompt of new conversations.
        pin_system: whether its blocks are never evicted.
        sampling: parameters by name that replace the model's defaults
            (`engine.api.sampling.SamplingParams`).
        knobs: the initial values of knobs by name (`engine.api.knobs.Knobs`).
        log_level: the lowest level that is logged; None is info for the file and warning for
            standard error.
        log_format: whether the log has sentences, or a JSON object in each line.
        data_dir: the folder of the store and of crash reports.
        theme: the interface's theme; None is the default one.
        ascii: whether to draw with ASCII only; None does so on Linux's console (TERM=linux), whose
            fonts lack the other characters.
        cadence: how often the interface polls the engine.
        keys: keys by the names of their actions.
        alerts: the alerts of the interface.
        mqtt: the broker, if there is one, and its users' limits.
        http: the HTTP gateway, if there is one, and its users' limits.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "builtin"
    models: Location | None = None
    device: str | None = None
    dtype: Annotated[str, _one_of(*DTYPES)] | None = None
    quantize: Annotated[str, _one_of(*QUANTIZATIONS)] | None = None
    kv_memory: Size | None = None
    num_blocks: PositiveInt | None = None
    swap_memory: SizeOrNone | None = None
    snapshot_memory: SizeOrNone | None = None
    max_model_len: PositiveInt | None = None
    max_num_seqs: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    system: str = ""
    pin_system: bool = False
    sampling: dict[str, Any] = {}
    knobs: dict[str, Any] = {}
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    log_format: Literal["text", "json"] = "text"
    log_file: Location = Field(
        default_factory=lambda: user_log_path(APP, appauthor=False) / f"{APP}.log"
    )
    data_dir: Location = Field(default_factory=lambda: user_data_path(APP, appauthor=False))
    theme: str | None = None
    ascii: bool | None = None
    cadence: Literal["usual", "frugal"] = "usual"
    keys: dict[str, str] = {}
    alerts: AlertRules = Field(default_factory=AlertRules)
    mqtt: MqttSettings = Field(default_factory=MqttSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)

    @property
    def store_file(self) -> Path:
        return self.data_dir / f"{APP}.db"

    @property
    def crash_dir(self) -> Path:
        return self.data_dir / CRASHES

    @property
    def pinned(self) -> tuple[ChatMessage, ...]:
        """The messages that begin every conversation and whose blocks are never evicted; empty if
        there are none."""
        wanted = self.pin_system and self.system
        return (ChatMessage("system", self.system),) if wanted else ()

    @property
    def first_knobs(self) -> dict[str, Any]:
        """The initial values of knobs: the stated ones, and, if there are keys, the fair order
        among their owners. That order ignores priorities: if a user may have one, the order stays
        as stated."""
        http, mqtt = self.http, self.mqtt
        quotas = (http.quota, *http.keys.values(), mqtt.quota, *mqtt.users.values())
        has_priorities = any(quota.max_priority > 0 for quota in quotas)
        if has_priorities or not (http.is_on and http.has_keys):
            return self.knobs
        return {"order": "fair", **self.knobs}

    def load_request(self) -> LoadRequest:
        """The settings for loading a model."""
        return LoadRequest(
            model=os.path.expanduser(self.model),
            models_file=str(self.models) if self.models else None,
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            kv_memory=self.kv_memory,
            num_blocks=self.num_blocks,
            swap_memory=self.swap_memory,
            snapshot_memory=self.snapshot_memory,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            knobs=self.first_knobs,
            spare_encoder=self.http.is_on or self.mqtt.is_on,
        )


NAMES = tuple(Settings.model_fields)
TABLES = ("sampling", "knobs", "keys", "alerts", "mqtt", "http")
# The settings of the table [mqtt] that one text can state. `url` is not among them, because its
# flag and its variable are --mqtt and TUI_MQTT.
MQTT_NAMES = tuple(n for n in MqttSettings.model_fields if n not in ("url", "quota", "users"))
# Those of [http] that a variable can state; the flags and variables of the first two have names of
# their own.
HTTP_NAMES = (
    *("listen", "api_key"),
    *("cert_file", "key_file", "max_request_bytes", "max_file_bytes", "max_requests"),
    "drain_seconds",
)
