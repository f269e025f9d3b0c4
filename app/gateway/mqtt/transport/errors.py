"""LinkError: why there is no connection to a broker, in words for the operator."""

from __future__ import annotations

import socket
import ssl
from enum import Enum

# Reason codes of MQTT 5 (section 2.4). Return codes of 3.1.1 are translated to them.
PROTOCOL_ERROR = 0x82
UNSUPPORTED_PROTOCOL = 0x84
KEEPALIVE_TIMEOUT = 0x8D
TAKEN_OVER = 0x8E
_REFUSALS = {
    UNSUPPORTED_PROTOCOL: "it does not speak this version of MQTT",
    0x85: "it does not accept the client identifier",
    0x86: "the user or the password is wrong",
    0x87: "the user or the password is wrong, or the user may not connect",
    0x88: "it is not available now",
    0x89: "it is busy",
    0x8A: "it has banned us",
}

# Numbers of OpenSSL's X509_V_ERR_*, by their meaning for the broker's certificate.
_CERTIFICATES = {
    "is not valid yet": (9, 11),
    "has expired": (10, 12),
    "is for another host than the address has": (62, 64),
    "is signed by an unknown authority; set ca_file to its certificate": (*(2, 18, 19, 20, 21),),
}
_ALERTS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS there; is mqtt:// or ws:// meant?",
    "CERTIFICATE_REQUIRED": "it asks for a client certificate; set cert_file and key_file",
    # TLS 1.2 has no separate alert for a missing client certificate.
    "HANDSHAKE_FAILURE": "it refuses our TLS, or asks for a client certificate (cert_file)",
    "UNKNOWN_CA": "it does not know who signed our client certificate",
    "CERTIFICATE_EXPIRED": "our client certificate has expired",
    "BAD_CERTIFICATE": "it refuses our client certificate",
}


class Cause(Enum):
    """The kind of an error, as far as it affects the handling."""

    OTHER = "other"
    UNANSWERED = "unanswered"
    """The connection was closed before the broker sent anything."""
    PROTOCOL = "protocol"
    """The broker does not speak this version of MQTT."""
    TAKEN_OVER = "taken_over"
    """Another client has our identifier now."""


class LinkError(Exception):
    """A connection could not be made, or is gone; the message says why.

    Attributes:
        cause: the kind of the error.
        was_connected: whether the broker had accepted the connection before.
    """

    def __init__(
        self, detail: str, cause: Cause = Cause.OTHER, *, was_connected: bool = False
    ) -> None:
        super().__init__(detail)
        self.cause = cause
        self.was_connected = was_connected


def refused(code: int, name: str) -> LinkError:
    """The error for a broker that refused a CONNECT with this reason code of MQTT 5."""
    reason = _REFUSALS.get(code, name.lower())
    cause = Cause.PROTOCOL if code == UNSUPPORTED_PROTOCOL else Cause.OTHER
    return LinkError(f"the broker refuses the connection: {reason}", cause)


def dismissed(code: int, name: str) -> LinkError:
    """The error for a broker that ended a connection with this reason code of MQTT 5."""
    if code == TAKEN_OVER:
        return taken_over()
    return LinkError(f"the broker ended the connection: {name.lower()}", was_connected=True)


def taken_over() -> LinkError:
    return LinkError(
        "another program connected to the broker under the same client identifier; two servers with"
        " one pool and node, perhaps",
        Cause.TAKEN_OVER,
        was_connected=True,
    )


def unreachable(error: OSError) -> LinkError:
    """The error for a socket that could not be opened."""
    if isinstance(error, ssl.SSLError):
        return LinkError(_tls(error))
    if isinstance(error, socket.gaierror):
        return LinkError(f"the host is not known: {error.strerror}")
    if isinstance(error, ConnectionRefusedError):
        return LinkError("no broker listens there")
    if isinstance(error, ConnectionResetError):
        return LinkError("the broker, or another program at its address, closed the connection")
    if isinstance(error, TimeoutError):
        return LinkError("the broker does not answer")
    return LinkError(f"the broker cannot be reached: {error.strerror or error}")


def unreadable(*, was_connected: bool) -> LinkError:
    return LinkError("the broker sent something that is not MQTT", was_connected=was_connected)


def broken(
    error: BaseException | None, *, was_connected: bool, shows_certificate: bool = True
) -> LinkError:
    """The error for a connection that broke.

    Args:
        error: the socket's error; None if the broker just closed the connection.
        shows_certificate: whether we sent a certificate, or the connection has no TLS.
    """
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return LinkError(_tls(error), was_connected=was_connected)
    if was_connected:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it was closed"
        return LinkError(f"the connection to the broker broke: {why.lower()}", was_connected=True)
    # TLS 1.3 requests our certificate after the handshake. The end of the connection may overtake
    # the alert that it is missing.
    hint = "" if shows_certificate else "; it may ask for a client certificate (cert_file)"
    return LinkError(f"the broker closed the connection without a reason{hint}", Cause.UNANSWERED)


def _tls(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        for words, codes in _CERTIFICATES.items():
            if error.verify_code in codes:
                return f"the broker's certificate {words}"
        return f"the broker's certificate is not accepted: {error.verify_message}"
    reason = error.reason or str(error)
    for alert, words in _ALERTS.items():
        if alert in reason:
            return f"the broker cannot be reached by TLS: {words}"
    return f"the broker cannot be reached by TLS: {reason.replace('_', ' ').lower()}"
