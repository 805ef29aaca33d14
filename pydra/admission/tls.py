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
    """The pair cannot be served; the message says why."""


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """A pair that can be served. Times are Unix seconds, `names` the DNS names and addresses that it is for."""

    certificate: bytes
    key: bytes
    not_before: float
    not_after: float
    names: tuple[str, ...]

    def problem_at(self, now: float) -> str:
        """Return why clients refuse it at `now`; empty if they do not."""
        if now < self.not_before:
            return f"is not valid before {_date(self.not_before)}"
        return f"has expired on {_date(self.not_after)}" if now >= self.not_after else ""

    def __str__(self) -> str:
        return f"for {', '.join(self.names) or 'no name'}, valid until {_date(self.not_after)}"


def read_certificate(certificate: str, key: str) -> Certificate:
    """Read the pair from two PEM files. Raises BadCertificate, which names the file at fault."""
    pair = _read_pem(certificate, b"CERTIFICATE", "certificate"), _read_pem(key, b"PRIVATE KEY", "private key")
    context = _build_context()
    try:
        load_pair(context, *pair)
        if (leaf := _LEAF.search(pair[0])) is None:  # OpenSSL takes other labels too, Python's ssl does not
            raise BadCertificate(f"{certificate} must be labelled BEGIN CERTIFICATE; convert it with `openssl x509`")
        return _describe(context, leaf.group(), *pair)
    except ssl.SSLError as error:
        said = (error.reason or "it is damaged").lower().replace("_", " ")
        hint = next((hint for words, hint in _HINTS.items() if words in f"{said} {error}".lower()), said)
        raise BadCertificate(f"{certificate} and {key} cannot be served: {hint}") from error


def load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Serve this pair in handshakes from now on; open connections are not affected. Raises ssl.SSLError."""
    with _in_memory(certificate) as certificate_path, _in_memory(key) as key_path:
        context.load_cert_chain(certificate_path, key_path, password=lambda: "")  # or OpenSSL asks at the terminal


def _build_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Python's default, but not that of Debian's Python
    return context


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


def _describe(server: ssl.SSLContext, leaf: bytes, certificate: bytes, key: bytes) -> Certificate:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=leaf.decode("ascii", "replace"))
    client.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME)
    found = _handshake(client, server)
    return Certificate(
        certificate=certificate,
        key=key,
        not_before=ssl.cert_time_to_seconds(found["notBefore"]),
        not_after=ssl.cert_time_to_seconds(found["notAfter"]),
        names=tuple(str(name) for _, name in found.get("subjectAltName", ())),
    )


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
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
    """Return whether to serve the new pair: clients accept it, or refuse the current one, too."""
    return current is None or not new.problem_at(now) or bool(current.problem_at(now))


class ServedCertificate:
    """Keeps the served certificate current. `context` is for the listening socket; `report` gets each loaded pair, or
    None for a failure.
    """

    def __init__(
        self,
        certificate: str,
        key: str,
        *,
        report: Callable[[Certificate | None], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.context = self._with_pair = _build_context()
        self.context.sni_callback = self._choose
        self.current: Certificate | None = None
        self._paths = (certificate, key)
        self._report = report
        self._clock = clock
        self._seen: object = None
        self._problem = ""
        self._logged = ""
        self._last_problem = ""

    def open(self) -> None:
        """Load the pair before the first handshake, even if it has expired. Raises SettingsError."""
        self._seen = self._read_identities()
        try:
            self._serve_pair(read_certificate(*self._paths))
        except BadCertificate as error:
            raise SettingsError([f"tlsCert, tlsKey: {error}"]) from error
        self._log_problem()

    async def run(self, period: float) -> None:
        """Check the files every `period` seconds until cancelled."""
        while True:
            await anyio.sleep(period)
            await self.renew()

    async def renew(self) -> None:
        """Read changed files, and serve the new pair if it is better than the current one."""
        seen = await anyio.to_thread.run_sync(self._read_identities)
        if seen != self._seen or self._problem:
            self._seen = seen
            try:
                new = await anyio.to_thread.run_sync(read_certificate, *self._paths)
            except BadCertificate as error:
                self._report_problem(str(error))
            else:
                self._consider(new)
        self._log_problem()

    def _consider(self, new: Certificate) -> None:
        now = self._clock()
        if new == self.current:
            self._problem = self._logged = ""
        elif replaces(new, self.current, now):
            self._serve_pair(new)
        else:
            self._report_problem(f"the certificate {new} {new.problem_at(now)}")

    def _serve_pair(self, new: Certificate) -> None:
        # A context of its own: one that has had another kind of key, such as EC, may go on serving that certificate.
        fresh = _build_context()
        load_pair(fresh, new.certificate, new.key)
        self._with_pair = fresh
        self.current = new
        self._problem = self._logged = ""
        _log.info("serving the certificate %s", new)
        self._report(new)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """Let a handshake that begins have the current pair; OpenSSL calls this also if the client names no server."""
        connection.context = self._with_pair

    def _report_problem(self, problem: str) -> None:
        """Report a problem found twice in a row: while two files are replaced one by one, they do not match."""
        if problem == self._problem != self._logged:
            _log.error("%s; the former certificate is kept", problem)
            self._logged = problem
            self._report(None)
        self._problem = problem

    def missing(self) -> str:
        """Return why API servers refuse the served certificate, and what to do, for /readyz; empty if they do not."""
        problem = self.current.problem_at(self._clock()) if self.current else ""
        advice = f"the API server refuses it until {self._paths[0]} and {self._paths[1]} hold a valid one"
        return problem and f"the served certificate {problem}: {advice}, which is then loaded without a restart"

    def _log_problem(self) -> None:
        problem = self.missing()
        if problem and problem != self._last_problem:
            _log.error("%s", problem)
        self._last_problem = problem

    def _read_identities(self) -> tuple[object, ...]:
        """Return what identifies the files' content, through all links; None for a missing file."""
        return tuple(_identity(path) for path in self._paths)


def _identity(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
