"""A certificate and its key in files: read, tried in a handshake with itself, and described.

What the standard library's ssl cannot read of a certificate it tells about the peer's, so a new pair speaks TLS with
itself in memory: this also proves that key and certificate belong together and that OpenSSL takes them. The bytes are
loaded through memfds, so that what was tried is what is served, although the files may change in between.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, for which ssl has no name."""

_LARGEST = 1 << 20
_LEAF = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_HINTS = {
    "key values mismatch": "the key is not the certificate's",
    "unsuitable certificate purpose": "the certificate is not for servers (extended key usage)",
    "ee key too small": "the key is too small",
}


class BadCertificate(Exception):
    """The pair cannot be served; says why."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A pair that can be served. Times are Unix seconds, `names` the DNS names and addresses that it is for."""

    certificate: bytes
    key: bytes
    not_before: float
    not_after: float
    names: tuple[str, ...]

    def trouble(self, now: float) -> str:
        """Why clients refuse it now, or nothing."""
        if now < self.not_before:
            return f"is not valid before {_date(self.not_before)}"
        return f"has expired on {_date(self.not_after)}" if now >= self.not_after else ""

    def __str__(self) -> str:
        return f"for {', '.join(self.names) or 'no name'}, valid until {_date(self.not_after)}"


def read_certificate(certificate: str, key: str) -> Certificate:
    """The pair in two PEM files. Raises BadCertificate, naming the file where it is one's fault."""
    pair = _read_pem(certificate, b"CERTIFICATE", "certificate"), _read_pem(key, b"PRIVATE KEY", "private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        load_pair(context, *pair)
        return _describe(context, *pair)
    except ssl.SSLError as error:
        said = (error.reason or "it is damaged").lower().replace("_", " ")
        hint = next((hint for words, hint in _HINTS.items() if words in f"{said} {error}".lower()), said)
        raise BadCertificate(f"{certificate} and {key} cannot be served: {hint}") from error


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Serve this pair in handshakes from now on; connections that are open go on. Raises ssl.SSLError."""
    with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
        context.load_cert_chain(certificate_path, key_path, password=lambda: "")  # or OpenSSL asks at the terminal


def _read_pem(path: str, label: bytes, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise BadCertificate(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise BadCertificate(f"{path} has more than {_LARGEST >> 20} MiB, which is no certificate or key")
    if label + b"-----" not in content:
        raise BadCertificate(f"{path} has no {what} in PEM")
    if b"ENCRYPTED" in content:
        raise BadCertificate(f"{path} has a passphrase; give one without")
    return content


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("pydra-tls")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _describe(server: ssl.SSLContext, certificate: bytes, key: bytes) -> Certificate:
    leaf = _LEAF.search(certificate)
    assert leaf is not None, "OpenSSL has just loaded one"
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=leaf.group().decode("ascii", "replace"))
    client.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME)
    found = _shake_hands(client, server)
    return Certificate(
        certificate=certificate,
        key=key,
        not_before=ssl.cert_time_to_seconds(found["notBefore"]),
        not_after=ssl.cert_time_to_seconds(found["notAfter"]),
        names=tuple(str(name) for _, name in found.get("subjectAltName", ())),
    )


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        done = [_step(side) for side in (asking, answering)]
        if all(done):
            return dict(asking.getpeercert() or {})
    raise BadCertificate("the certificate cannot be served: its handshake does not end")


def _step(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
