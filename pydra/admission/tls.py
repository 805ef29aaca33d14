"""Loads, checks and reloads the webhook's TLS certificate.

cert-manager and Secret mounts replace the files at any time. A pair that cannot be served, or that clients would
refuse, never replaces one that they accept. New connections use the reloaded pair; open ones keep theirs.

The ssl module describes only the peer's certificate, not one's own, so a new pair makes a TLS handshake with itself in
memory. This also proves that key and certificate belong together and that OpenSSL accepts them. The bytes are loaded
through memfds, so what was checked is what is served, although the files may change in between.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec

from pydra.errors import SettingsError

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
        raise BadCertificate(f"{path} has more than {_LARGEST >> 20} MiB, which is not a certificate or key")
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


_log = logging.getLogger(__name__)


def replaces(new: Certificate, current: Certificate | None, now: float) -> bool:
    """Whether the new pair is served: clients accept it, or at least refuse the current one too. Pure."""
    return current is None or not new.trouble(now) or bool(current.trouble(now))


class ServedCertificate:
    """`context` is for the listening socket. `report` hears of every load: the pair, or None for a failure."""

    def __init__(
        self,
        certificate: str,
        key: str,
        *,
        report: Callable[[Certificate | None], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.current: Certificate | None = None
        self._paths = (certificate, key)
        self._report = report
        self._clock = clock
        self._seen: object = None
        self._complaint = ""
        self._told = ""
        self._trouble = ""

    def open(self) -> None:
        """Load the pair before the first handshake, even if it has expired. Raises SettingsError."""
        self._seen = self._look()
        try:
            self._take(read_certificate(*self._paths))
        except BadCertificate as error:
            raise SettingsError([f"tlsCert, tlsKey: {error}"]) from error
        self._tell_trouble()

    async def run(self, period: float) -> None:
        """Look every `period` seconds until cancelled."""
        while True:
            await anyio.sleep(period)
            await self.renew()

    async def renew(self) -> None:
        """Look at the files, and serve what is in them if it is better than what is served."""
        seen = await anyio.to_thread.run_sync(self._look)
        if seen != self._seen or self._complaint:
            self._seen = seen
            try:
                new = await anyio.to_thread.run_sync(read_certificate, *self._paths)
            except BadCertificate as error:
                self._complain(str(error))
            else:
                self._consider(new)
        self._tell_trouble()

    def _consider(self, new: Certificate) -> None:
        now = self._clock()
        if new == self.current:
            self._complaint = self._told = ""
        elif replaces(new, self.current, now):
            self._take(new)
        else:
            self._complain(f"the certificate {new} {new.trouble(now)}")

    def _take(self, new: Certificate) -> None:
        load_pair(self.context, new.certificate, new.key)
        self.current = new
        self._complaint = self._told = ""
        _log.info("serving the certificate %s", new)
        self._report(new)

    def _complain(self, complaint: str) -> None:
        """Told when it was met twice: between two files that are replaced one by one, nothing fits for a moment."""
        if complaint == self._complaint != self._told:
            _log.error("%s; the one before is kept", complaint)
            self._told = complaint
            self._report(None)
        self._complaint = complaint

    def missing(self) -> str:
        """Why the API server refuses what is served now, with what to do, for /readyz; empty when it does not."""
        trouble = self.current.trouble(self._clock()) if self.current else ""
        advice = f"the API server refuses it until {self._paths[0]} and {self._paths[1]} hold a valid one"
        return trouble and f"the served certificate {trouble}: {advice}, which is then loaded without a restart"

    def _tell_trouble(self) -> None:
        trouble = self.missing()
        if trouble and trouble != self._trouble:
            _log.error("%s", trouble)
        self._trouble = trouble

    def _look(self) -> tuple[object, ...]:
        """What tells other content, through all links; a file that is not there is None."""
        return tuple(_identity(path) for path in self._paths)


def _identity(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
