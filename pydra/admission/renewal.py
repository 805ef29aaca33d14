"""Keeps the served certificate that of the files, which cert-manager and Secret mounts replace while we run.

A pair that cannot be served, or that clients would refuse, never takes the place of one that they accept. What was
loaded counts for new connections; open ones go on.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable

import anyio

from pydra.admission.certificate import BadCertificate, Certificate, load_pair, read_certificate
from pydra.errors import SettingsError

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
