"""`TLS`: certificates by which tasks and clients authenticate each other, and encrypt all that leaves a host."""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path
from typing import Any

from ..engine.common.quick_dataclass import dataclass

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it prints a line for each task that ends; read when it loads
import grpc

from .cluster import split_address

_VARIABLES = ("ANABRANCH_TLS_CERTIFICATE", "ANABRANCH_TLS_KEY", "ANABRANCH_TLS_AUTHORITY")
_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    # Otherwise grpcio before 1.80 has a new channel wait because an earlier one to the same address was refused.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True)
class TLS:
    """Name the files, in PEM, with which a process proves who it is, and asks the others to.

    Attributes:
        certificate: of this process, and what leads from it to the authority.
        key: to the certificate.
        authority: whose certificates the others have to have.

    Raises:
        OSError: a file can't be read.

    Tasks need the names in the cluster's addresses in their certificates. All need the token as well.

    >>> import anabranch as ab
    >>> try:
    ...     ab.distribute.TLS(certificate="task.pem", key="task.key", authority="authority.pem")
    ... except FileNotFoundError as error:
    ...     print(error.filename)
    task.pem
    """

    certificate: str
    key: str
    authority: str

    def __post_init__(self) -> None:
        for file in (self.certificate, self.key, self.authority):
            with open(file, "rb"):
                pass

    def _read(self) -> tuple[bytes, bytes, bytes]:
        certificate, key, authority = (Path(file).read_bytes() for file in (self.certificate, self.key, self.authority))
        return certificate, key, authority

    def of_server(self) -> grpc.ServerCredentials:
        """Return the credentials of a server, which requires credentials of its clients, too."""
        certificate, key, authority = self._read()
        return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)

    def of_client(self) -> grpc.ChannelCredentials:
        """Return the credentials of a client."""
        certificate, key, authority = self._read()
        return grpc.ssl_channel_credentials(authority, key, certificate)


def tls_from_environment() -> TLS | None:
    """Read which files ``ANABRANCH_TLS_CERTIFICATE``, ``_KEY`` and ``_AUTHORITY`` name; None if none of them is set.

    Raises:
        ValueError: some are set, and not all.
        OSError: a file can't be read.
    """
    found = [os.environ.get(name, "") for name in _VARIABLES]
    if not any(found):
        return None
    missing = [name for name, file in zip(_VARIABLES, found, strict=True) if not file]
    if missing:
        raise ValueError(f"TLS needs {', '.join(_VARIABLES)}; {' and '.join(missing)} are not set. Set all, or none.")
    return TLS(*found)


def open_channel(address: str, tls: TLS | None) -> Any:
    """Make a gRPC channel to an address."""
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, tls.of_client(), options=_OPTIONS)


def fault_of_handshake(address: str, tls: TLS | None, timeout: float) -> str:
    """Return why a process can't agree on TLS with what listens at an address; empty if nothing speaks against it.

    gRPC reports no more than a closed connection, so a handshake is made here.

    Args:
        address: "host:port".
        tls: with which this process proves who it is; None if it does not encrypt.
        timeout: seconds for each part of the handshake.
    """
    host, port = split_address(address)
    try:
        context = _context(tls)
        with (
            socket.create_connection((host, port), timeout) as plain,
            context.wrap_socket(plain, server_hostname=host) as encrypted,
        ):
            if tls is None:
                return "it encrypts what it sends, and this process has no certificate"
            # A certificate is refused behind the handshake. gRPC begins by some settings where it is taken.
            return "" if encrypted.recv(1) else f"it does not take the certificate {tls.certificate}"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused ({error.verify_message})"
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
        return ""  # it is ending, or a proxy has nothing behind it
    except ssl.SSLError as error:
        if tls is None:
            return ""  # it does not encrypt either
        if error.reason == "WRONG_VERSION_NUMBER":
            return "it does not encrypt, and this process has a certificate"
        return f"TLS with the certificate {tls.certificate} fails ({error.reason})"
    except OSError:
        return ""


def _context(tls: TLS | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.load_verify_locations(tls.authority)
    context.load_cert_chain(tls.certificate, tls.key, password="")  # without one OpenSSL would read the terminal
    return context


__all__ = ["TLS", "fault_of_handshake", "open_channel", "tls_from_environment"]
