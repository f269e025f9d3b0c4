"""MqttSettings: the broker, this node, and its users' limits."""

from __future__ import annotations

import re
import socket
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    SecretStr,
    model_validator,
)

from app.gateway.mqtt.protocol.topics import LEVEL, MAX_LEVEL, check_level
from app.gateway.mqtt.transport.address import AddressError, BrokerAddress, split_password
from app.gateway.quotas import Quota
from app.system.paths import Location

# The URL of the embedded broker, unless another one is stated.
EMBEDDED_URL = "mqtt://127.0.0.1:1883"


def _level(value: str) -> str:
    try:
        return check_level("it", value)
    except ValueError:
        raise ValueError(f"it must be {LEVEL}") from None


def _own_level() -> str:
    """This machine's name, as a topic level."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())
    return name[:MAX_LEVEL] or "node"


Level = Annotated[str, AfterValidator(_level)]


class MqttSettings(BaseModel):
    """The settings of the gateway and of `tui ask`.

    Attributes:
        url: the broker's URL; a password in it becomes `password`. With `embedded_broker` it is the
            address of that broker. Without either there is no gateway.
        password: the password of the user in `url`.
        password_file: a file whose first line is the password.
        ca_file: certificates of the authorities that may sign the broker's; None uses the system's.
        cert_file: our certificate, if the broker requires one.
        key_file: the key of our certificate; None if it is in `cert_file`.
        pool: the common name of the nodes that serve together; it is a level of each topic.
        node: this node's name in the pool.
        protocol: the version of MQTT; auto tries 5, then 3.1.1.
        keepalive: seconds between keep-alives; the connection to a silent broker is closed within
            twice that.
        delta_ms: milliseconds whose text is sent as one delta.
        deadline_ms: milliseconds that a request may wait for the batch, by default.
        max_request_bytes: requests with larger payloads are refused.
        max_requests: most unfinished requests of all users together.
        retention_days: days after which an idle conversation is removed; 0 is never.
        drain_seconds: how long requests may run on when the program ends.
        embedded_broker: whether to run a broker (amqtt) on the loopback.
        separate_caches: whether users do not find each other's prefixes in the cache.
        quota: the limits of each user.
        users: the limits of single users instead, by name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = None
    password: SecretStr | None = None
    password_file: Location | None = None
    ca_file: Location | None = None
    cert_file: Location | None = None
    key_file: Location | None = None
    pool: Level = "default"
    node: Level = Field(default_factory=_own_level)
    protocol: Literal["auto", "5", "3.1.1"] = "auto"
    keepalive: int = Field(default=15, ge=2, le=3600)
    delta_ms: int = Field(default=100, ge=0, le=10_000)
    deadline_ms: int = Field(default=600_000, ge=1, le=86_400_000)
    # The upper bound leaves space for topic and properties in the largest packet that the link
    # allows brokers to send, 1 MiB.
    max_request_bytes: int = Field(default=262_144, ge=1024, le=1_000_000)
    max_requests: PositiveInt = 1000
    retention_days: float = Field(default=30.0, ge=0.0, le=36_500.0, allow_inf_nan=False)
    drain_seconds: float = Field(default=10.0, ge=0.0, le=3600.0, allow_inf_nan=False)
    embedded_broker: bool = False
    separate_caches: bool = False
    quota: Quota = Quota()
    users: dict[Level, Quota] = {}

    @model_validator(mode="before")
    @classmethod
    def _split(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("url"), str):
            url, password = split_password(data["url"])
            if password is not None:
                return data | {"url": url, "password": password}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url is None and not self.embedded_broker:
            return self
        address = self._address(None)
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file exclude each other; state one")
        has_secret = self.password is not None or self.password_file is not None
        if has_secret and address.username is None:
            raise ValueError(
                f"a password is set, but url is {str(address)!r}, without a user; write"
                f" {address.scheme}://USER@HOST"
            )
        if self.embedded_broker:
            if address.scheme != "mqtt" or not address.is_loopback or has_secret:
                raise ValueError(
                    f"url is {str(address)!r}, where the embedded broker cannot listen; it must be"
                    " mqtt://127.0.0.1 with a port as needed and no password, or left out"
                )
            if self.protocol == "5":
                raise ValueError("protocol is '5', and the embedded broker speaks 3.1.1")
        return self

    @property
    def is_on(self) -> bool:
        """Whether a broker is set."""
        return self.url is not None or self.embedded_broker

    def address(self) -> BrokerAddress:
        """The broker's address, with the password.

        Raises:
            AddressError: no broker is set, its URL is wrong, or `password_file` cannot be read.
        """
        return self._address(self._secret())

    def _address(self, password: str | None) -> BrokerAddress:
        url = self.url or (EMBEDDED_URL if self.embedded_broker else None)
        if url is None:
            raise AddressError("no broker is set: state --mqtt URL, TUI_MQTT, or url under [mqtt]")
        return BrokerAddress.parse(
            url,
            password=password,
            ca_file=self.ca_file,
            cert_file=self.cert_file,
            key_file=self.key_file,
        )

    def _secret(self) -> str | None:
        if self.password is not None:
            return self.password.get_secret_value()
        if self.password_file is None:
            return None
        try:
            lines = self.password_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise AddressError(f"password_file is {str(self.password_file)!r}; {why}") from None
        if not lines or not lines[0]:
            raise AddressError(
                f"password_file is {str(self.password_file)!r}; its first line is empty"
            )
        return lines[0]
