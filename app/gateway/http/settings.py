"""HttpSettings: the HTTP gateway's address, its keys, and its limits."""

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
    """An address to listen on. Port 0 picks a free port."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> Address:
        """
        Raises:
            ValueError: it is no address.
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
        """Whether it can be reached from this machine only."""
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
    """The limits of one user over HTTP.

    Attributes:
        stored_bytes: most bytes of the user's files, including those of batches.
    """

    requests: PositiveInt = 1024
    stored_bytes: PositiveInt = 1 << 31


class ApiKey(HttpQuota):
    """A key, and the limits of its owner.

    Attributes:
        key: the key itself.
        file: instead of `key`, a file whose first line is the key.
        operator: whether its owner may see other users' requests on the page, and change the knobs.
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
        keys: further keys by the names of their owners.
        hosts: names of the server that are accepted if there are no keys; `*` is any.
        cors: origins whose pages may send requests from a browser; `*` is all.
        cert_file, key_file: PEM files for TLS.
        names: further names for the loaded model; `*` is any.
        max_request_bytes: larger requests are refused.
        max_file_bytes: larger files are refused.
        max_requests: most unfinished replies of all users together.
        drain_seconds: how long requests may run on when the program ends.
        metrics_prefix: replaces the prefix of vLLM's metrics.
        metrics_open: whether metrics are served without a key, if keys are set.
        separate_caches: whether users do not find each other's prefixes in the cache.
        quota: the quota of each user without a key of their own.
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
        """Whether there is an address to listen on."""
        return self.listen is not None

    @property
    def has_keys(self) -> bool:
        """Whether a key is needed."""
        return self.api_key is not None or bool(self.keys)

    @property
    def address(self) -> Address:
        """The address to listen on, if it `is_on`."""
        assert self.listen is not None
        return Address.parse(self.listen)

    def secrets(self) -> dict[str, str]:
        """The keys by the names of their owners.

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
        """The limit of bytes for a user's files."""
        return self.keys.get(user, self.quota).stored_bytes

    def operators(self) -> frozenset[str]:
        """The operators, by the names of `secrets`. The owner of a single key is one."""
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
