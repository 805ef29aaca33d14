"""The webhook's process: read the types, load the certificate, serve until a signal, leave without failing a review."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import anyio

from pydra import __version__
from pydra.admission.certificate import Certificate
from pydra.admission.known import index_drivers, read_backends
from pydra.admission.metrics import AdmissionMetrics
from pydra.admission.renewal import ServedCertificate
from pydra.admission.server import ReviewService, serve_reviews
from pydra.admission.settings import WebhookSettings
from pydra.admission.verdict import judge
from pydra.errors import SettingsError
from pydra.observability.http import serve_http
from pydra.observability.logging import configure_logs

_log = logging.getLogger(__name__)


def run(settings: WebhookSettings, *, reread: Callable[[], WebhookSettings]) -> int:
    """Run until SIGTERM or SIGINT; the exit code. `reread` gives the settings as they are at a SIGHUP.

    Raises:
        SettingsError: a backend is not installed, the certificate cannot be served, an address is taken.
        BackendError: the types of a backend cannot be read.
    """
    configure_logs(level=settings.log_level, form=settings.log_format, file="")
    known = read_backends(settings.backends, settings.drivers)
    for one in known:
        kinds = ", ".join(sorted(one.types)) or "no config at all"
        _log.info("driver %s of backend %s takes %s", one.driver, one.name, kinds)
    metrics = AdmissionMetrics()
    metrics.build.labels(__version__).set(1)
    drivers = index_drivers(known)
    served = _open_certificate(settings, metrics)
    service = ReviewService(
        lambda question: judge(question, drivers),
        metrics,
        read_deadline=settings.read_deadline,
        trouble=served.missing if served else lambda: "",
    )
    anyio.run(_serve, settings, service, metrics, served, reread)
    return 0


def _open_certificate(settings: WebhookSettings, metrics: AdmissionMetrics) -> ServedCertificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        _log.warning("no certificate is given: plain HTTP is spoken, which no API server does; put a proxy in front")
        return None

    def report(loaded: Certificate | None) -> None:
        metrics.loads.labels("ok" if loaded else "failed").inc()
        if loaded:
            metrics.expiry.set(loaded.not_after)

    served = ServedCertificate(settings.tls_cert, settings.tls_key, report=report)
    served.open()
    return served


async def _serve(
    settings: WebhookSettings,
    service: ReviewService,
    metrics: AdmissionMetrics,
    served: ServedCertificate | None,
    reread: Callable[[], WebhookSettings],
) -> None:
    async with AsyncExitStack() as stack:
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        tls = served.context if served else None
        await stack.enter_async_context(serve_reviews(*settings.endpoint, service, metrics=metrics, tls=tls))
        if endpoint := settings.http_endpoint:
            await stack.enter_async_context(serve_http(*endpoint, metrics=metrics, missing=service.missing))
        async with anyio.create_task_group() as tasks:
            if served:
                tasks.start_soon(partial(served.run, settings.tls_period), name="certificate")
            async for number in signals:
                if number != signal.SIGHUP:
                    break
                _reread(reread)
                if served:
                    await served.renew()
            _log.info(
                "told to stop by %s: on for %g s, until no API server comes here", number.name, settings.drain_grace
            )
            service.leaving = True
            with anyio.move_on_after(settings.drain_grace):
                async for number in signals:  # told again: at once
                    if number != signal.SIGHUP:
                        break
            tasks.cancel_scope.cancel()
    _log.info("stopped")


def _reread(reread: Callable[[], WebhookSettings]) -> None:
    try:
        fresh = reread()
    except SettingsError as error:
        _log.error("the settings are as before; what was read is wrong: %s", error)
        return
    configure_logs(level=fresh.log_level, form=fresh.log_format, file="")
    _log.info("log settings read again; all others need a restart")
