"""Addresses of brokers: URL, credentials and TLS files, shown without the password."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
WEBSOCKET_PATH = "/mqtt"

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})")


class AddressError(ValueError):
    """An address cannot be used. The message is one sentence, without the password."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The location of a broker, and our credentials for it.

    Attributes:
        scheme: mqtt, mqtts, ws or wss.
        host: a name or an IP address; an IPv6 address has no brackets.
        path: the websocket's path, with its query; empty for mqtt and mqtts.
        username, password: None if there is none.
        ca_file: certificates of the authorities that may sign the broker's; None uses the system's.
        cert_file: our certificate, if the broker requires one.
        key_file: the key of our certificate; None if it is in `cert_file`.
    """

    scheme: str
    host: str
    port: int
    path: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        password: str | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
    ) -> BrokerAddress:
        """Parse a URL such as mqtts://user:password@host:8883.

        User and password may be percent-encoded. A websocket without a path gets /mqtt.

        Args:
            password: replaces the URL's password; None keeps it.

        Raises:
            AddressError: the scheme is not one of ours, a part is missing or wrong, or files for
                TLS are stated for a scheme without TLS.
        """
        shown = _describe(url)
        scheme, separator, rest = url.partition("://")
        scheme = scheme.lower()
        if not separator or scheme not in PORTS:
            raise AddressError(
                f"{shown} is not mqtt://HOST, mqtts://HOST, ws://HOST or wss://HOST, with"
                " USER:PASSWORD@ before the host and :PORT after it as needed"
            )
        authority, _, path = rest.partition("/")
        userinfo, _, location = authority.rpartition("@")
        user, colon, inline = userinfo.partition(":")
        if scheme in ("mqtt", "mqtts") and path:
            raise AddressError(
                f"{shown} has a path, which only ws:// and wss:// have; write / in a user or"
                " password as %2F"
            )
        host, port = _location(location, shown)
        secret = password if password is not None else _decode(inline, shown) if colon else None
        if secret is not None and not user:
            raise AddressError(f"{shown} has no user for the password; write {scheme}://USER@HOST")
        _check_files(scheme, shown, ca_file, cert_file, key_file)
        username = _decode(user, shown) if user else None
        _check_field("user", username)
        _check_field("password", secret)
        return cls(
            scheme=scheme,
            host=host,
            port=port or PORTS[scheme],
            path=(f"/{path}" if path else WEBSOCKET_PATH) if scheme in ("ws", "wss") else "",
            username=username,
            password=secret,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )

    @property
    def is_tls(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def is_loopback(self) -> bool:
        """Whether the host is this machine's loopback, by name or address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    def tls_context(self) -> ssl.SSLContext | None:
        """The certificates to verify the broker with, and ours; None if the scheme has no TLS.

        Raises:
            AddressError: a file cannot be read, or has the wrong content.
        """
        if not self.is_tls:
            return None
        name, file = "ca_file", self.ca_file
        try:
            context = ssl.create_default_context(cafile=file)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert_file is not None:
                name, file = "cert_file", self.cert_file
                # Without a password, OpenSSL would prompt for that of an encrypted key on the
                # terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password="")
        except ssl.SSLError as error:
            holds = (
                "certificates" if name == "ca_file" else "a certificate and, with key_file, a key"
            )
            why = (error.reason or str(error)).replace("_", " ").lower()
            raise AddressError(
                f"{name} is {str(file)!r}; it must hold {holds}, as PEM and not encrypted ({why})"
            ) from None
        except OSError as error:
            if self.key_file and file and file == self.cert_file and os.access(file, os.R_OK):
                name, file = "key_file", self.key_file
            raise AddressError(f"{name} is {str(file)!r}; {error.strerror}") from None
        return context

    def __str__(self) -> str:
        """The URL with its port, without the password and without the values of a query."""
        user = f"{quote(self.username, safe='')}@" if self.username is not None else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        path, mark, _ = self.path.partition("?")  # a signed query is a credential, too
        return f"{self.scheme}://{user}{host}:{self.port}{path}{mark and '?***'}"


def split_password(url: str) -> tuple[str, str | None]:
    """A URL without its password, and the password; None if it has none."""
    scheme, separator, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    userinfo, at, location = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    if not (separator and at and colon):
        return url, None
    try:
        return f"{scheme}://{user}@{location}{slash}{path}", _decode(password, "")
    except AddressError:
        return url, None


def redact(text: str) -> str:
    """A text that should be a URL, without a possible password: anything between the first colon,
    not counting that of a scheme at the start, and the last @."""
    before, at, location = text.rpartition("@")
    scheme, separator, userinfo = before.partition("://")
    if not separator or ":" in scheme:
        scheme, separator, userinfo = "", "", before
    user, colon, _ = userinfo.partition(":")
    return f"{scheme}{separator}{user}{colon and ':***'}{at}{location}"


def _describe(url: str) -> str:
    return f"the broker's address {redact(url)!r}"


def _location(location: str, shown: str) -> tuple[str, int | None]:
    """Host and port; the port is None if it is not stated."""
    bracketed = re.fullmatch(r"\[(.*)\](?::(.*))?", location)
    if bracketed:
        host, port = bracketed[1], bracketed[2]
        try:
            host = str(ipaddress.IPv6Address(host))
        except ValueError:
            raise AddressError(f"{shown} has no IPv6 address between [ and ]") from None
    else:
        host, colon, stated = location.partition(":")
        port = stated if colon else None
        if not _HOST.fullmatch(host):
            raise AddressError(
                f"{shown} has no host; it must be a name, an IPv4 address, or an IPv6 address in"
                " brackets; a @, / or : in a user or password is written %40, %2F or %3A"
            )
    if port is None:
        return host, None
    if not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise AddressError(f"{shown} has a port that is not one of 1 to 65535")
    return host, int(port)


def _decode(text: str, shown: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise AddressError(f"{shown} has a % that is not one of %00 to %FF; write % itself as %25")
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        decoded = "\0"
    # MQTT allows a zero byte in no text.
    if "\0" in decoded:
        raise AddressError(f"{shown} has a user or password that is not UTF-8 text")
    return decoded


def _check_files(
    scheme: str, shown: str, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> None:
    """
    Raises:
        AddressError: files for TLS are stated for a scheme without it, or a key without its
            certificate.
    """
    if scheme in ("mqtt", "ws") and (ca_file or cert_file or key_file):
        raise AddressError(
            f"{shown} is not encrypted, but certificates are set; write {scheme}s:// for TLS"
        )
    if key_file and not cert_file:
        raise AddressError(f"key_file is {str(key_file)!r}, and cert_file is not set")


def _check_field(name: str, text: str | None) -> None:
    """
    Raises:
        AddressError: it is invalid or too long for MQTT; the environment may hold any bytes.
    """
    try:
        fits = text is None or len(text.encode()) <= 0xFFFF
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise AddressError(
            f"the {name} is not shown; it must be valid UTF-8 of at most 65,535 bytes"
        )
