"""HttpSettings: where the HTTP gateway listens, who may ask, and what they may take."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    model_validator,
)

from app.gateway.quotas import Quota
from app.system.paths import Location

LISTEN = "[HOST:]PORT, such as 8000, 0.0.0.0:8000 or [::1]:8000"
_LISTEN = re.compile(r"(?:(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]/\s]*):)?(?P<port>[0-9]{1,5})")
PREFIX = "how a metric's name may begin, such as vllm:, with letters, digits, _ and :"
_PREFIX = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,63}")
_LOOPBACK = "127.0.0.1"
MAX_NAME = 64


class Address(NamedTuple):
    """Where a server listens. A port of 0 is one that is free."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Address:
        """
        Raises:
            ValueError: it is none.
        """
        match = _LISTEN.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65_535:
            raise ValueError(f"it must be {LISTEN}")
        return Address((match["host"] or _LOOPBACK).strip("[]"), int(match["port"]))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is reached from this machine alone."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _listen(value: object) -> object:
    # TOML has numbers, and a port alone is one.
    text = str(value) if type(value) is int else value
    if isinstance(text, str):
        Address.parse(text)
    return text


def _name(value: str) -> str:
    if not (value.isprintable() and 1 <= len(value) <= MAX_NAME):
        raise ValueError(f"it must be 1 to {MAX_NAME} printable characters")
    return value


def _prefix(value: str) -> str:
    if not _PREFIX.fullmatch(value):
        raise ValueError(f"it must be {PREFIX}")
    return value


Name = Annotated[str, AfterValidator(_name)]


class HttpQuota(Quota):
    """What a user over HTTP may take.

    Attributes:
        stored_bytes: most bytes of the files that a user has, those of batches among them.
    """

    requests: PositiveInt = 1024
    stored_bytes: PositiveInt = 1 << 31


class ApiKey(HttpQuota):
    """A key, and what whoever has it may take.

    Attributes:
        key: the key itself.
        file: a file whose first line it is, instead.
        operator: whether whoever has it may see on the page what others ask, and turn the knobs.
    """

    requests: PositiveInt = 256
    key: SecretStr | None = None
    file: Location | None = None
    operator: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.key is None) == (self.file is None):
            raise ValueError("state either key or file")
        return self


class HttpError(Exception):
    """The gateway cannot be started; the message says why."""


class HttpSettings(BaseModel):
    """The settings of the gateway.

    Attributes:
        listen: [HOST:]PORT; the host is the loopback unless stated. Without it there is no gateway.
        api_key: the key of a user named `default`.
        keys: further keys by the names of those who have them.
        hosts: names under which it is reached where there are no keys; `*` is any.
        cors: origins whose pages may ask from a browser; `*` is all.
        cert_file, key_file: PEM files with which it speaks TLS.
        names: further names under which the loaded model is asked for; `*` is any.
        max_request_bytes: larger requests are refused.
        max_file_bytes: larger files are refused.
        max_requests: most unfinished replies, those of all users together.
        drain_seconds: how long requests may go on when the program is to end.
        metrics_prefix: of the metrics that vLLM has, in place of its own.
        metrics_open: whether metrics are read without a key, where keys are set.
        separate_caches: whether users do not find each other's prefixes in the cache.
        quota: what each user may take who has no key of an own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: Annotated[str, BeforeValidator(_listen)] | None = None
    api_key: SecretStr | None = None
    keys: dict[Name, ApiKey] = {}
    hosts: tuple[Name, ...] = ()
    cors: tuple[str, ...] = ()
    cert_file: Location | None = None
    key_file: Location | None = None
    names: tuple[Name, ...] = ()
    max_request_bytes: int = Field(default=4_194_304, ge=1024, le=1 << 30)
    max_file_bytes: int = Field(default=209_715_200, ge=1024, le=1 << 40)
    max_requests: PositiveInt = 4096
    drain_seconds: float = Field(default=10.0, ge=0.0, le=3600.0, allow_inf_nan=False)
    metrics_prefix: Annotated[str, AfterValidator(_prefix)] = "vllm:"
    metrics_open: bool = False
    separate_caches: bool = False
    quota: HttpQuota = HttpQuota()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file is set without cert_file; state both or neither")
        return self

    @property
    def is_on(self) -> bool:
        """Whether there is a place to listen at."""
        return self.listen is not None

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed."""
        return self.api_key is not None or bool(self.keys)

    @property
    def address(self) -> Address:
        """Where it listens, if it `is_on`."""
        assert self.listen is not None
        return Address.parse(self.listen)

    def secrets(self) -> dict[str, str]:
        """The keys by the names of those who have them.

        Raises:
            HttpError: a file cannot be read, or two have the same key.
        """
        found = {} if self.api_key is None else {"default": self.api_key.get_secret_value()}
        if found.keys() & self.keys.keys():
            raise HttpError("http.keys.default and http.api_key are both set; state one")
        for name, one in self.keys.items():
            if one.key is not None:
                found[name] = one.key.get_secret_value()
            elif one.file is not None:
                found[name] = _first_line(name, one.file)
        for name, key in found.items():
            if not key:
                raise HttpError(f"http.keys.{name} is empty; it must be a key")
        if len({*found.values()}) < len(found):
            raise HttpError("http.keys has one key under two names; each must have its own")
        return found

    def stored_bytes(self, user: str) -> int:
        """How many bytes the files of a user may have."""
        return self.keys.get(user, self.quota).stored_bytes

    def operators(self) -> frozenset[str]:
        """Who may turn the knobs, by the names of `secrets`. Whoever set one key only has it."""
        named = {name for name, one in self.keys.items() if one.operator}
        alone = {"default"} if self.api_key is not None and "default" not in self.keys else set()
        return frozenset(named | alone)


def _first_line(name: str, file: Path) -> str:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise HttpError(f"http.keys.{name}.file is {str(file)!r}; {why}") from None
    return lines[0].strip() if lines else ""
