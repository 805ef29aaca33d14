"""Where the API server is and as whom to talk to it: kubeconfig or service account, with renewal.

Reading the many forms of credentials is kubernetes-asyncio's; choosing a source, keeping tokens
fresh and saying plainly what is wrong is done here.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping

import anyio

from pydra.errors import SettingsError
from pydra.kube import lazy

lazy.install()

# After the lazy packages are in place, or these lines load 770 modules.
from kubernetes_asyncio.client.configuration import Configuration  # noqa: E402
from kubernetes_asyncio.config.config_exception import ConfigException  # noqa: E402

from pydra.kube.kubeconfig import kubeconfig_loader  # noqa: E402
from pydra.kube.transport import aiohttp  # noqa: E402

log = logging.getLogger(__name__)

SERVICE_ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
RENEWAL_PERIOD = 60.0
"""Projected tokens are replaced on disk when 80 % of their life (at least 10 minutes) is over; looking once a minute
is what client-go does."""
EXEC_DEADLINE = 30.0

# What the loaders raise for files that are missing, unreadable, of the wrong shape, or refused by an
# identity provider; they check little before they index.
_LOADER_ERRORS = (
    ConfigException,
    OSError,
    aiohttp.ClientError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    AssertionError,
    RuntimeError,
)


class Credentials:
    """The API server's address, how to trust it, and the `Authorization` header.

    `server` is a URL without a trailing slash; `ssl_context` is None for plain http.
    """

    def __init__(
        self,
        load: Callable[[Configuration], Awaitable[None]],
        *,
        source: str,
        verify_x509_strict: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.server = ""
        self.authorization = ""
        self.ssl_context: ssl.SSLContext | None = None
        self.server_hostname: str | None = None
        self.proxy: str | None = None
        self._load = load
        self._verify_x509_strict = verify_x509_strict
        self._clock = clock
        self._fresh_until = 0.0
        self._renewing = anyio.Lock()

    async def open(self) -> None:
        """Read everything once; raises SettingsError when the source cannot be used."""
        try:
            configuration = await self._read()
            self.ssl_context = _build_ssl_context(configuration, strict=self._verify_x509_strict)
        except _LOADER_ERRORS as error:
            raise SettingsError([f"{self.source}: {_say(error)}"]) from error
        self.server = (configuration.host or "").rstrip("/")
        if not self.server.startswith(("http://", "https://")):
            raise SettingsError([f"{self.source}: the server {self.server!r} must begin with https:// or http://"])
        self.server_hostname = configuration.tls_server_name
        self.proxy = configuration.proxy

    @property
    def stale(self) -> bool:
        """Whether the token should be read again before the next request."""
        return self._clock() >= self._fresh_until

    async def renew(self, *, refused: str | None = None) -> None:
        """Read the token again; `refused` is the header that the server did not accept.

        Never raises: the old token may be good still, and the server's answer says so best.
        """
        async with self._renewing:
            if not self.stale and refused != self.authorization:
                return  # another request renewed it while this one waited
            try:
                await self._read()
            except _LOADER_ERRORS as error:
                self._fresh_until = self._clock() + RENEWAL_PERIOD
                log.warning("cannot renew the credentials of %s, going on with the old: %s", self.source, _say(error))

    async def _read(self) -> Configuration:
        configuration = Configuration(host="")
        with anyio.fail_after(EXEC_DEADLINE):
            await self._load(configuration)
        self.authorization = str(configuration.api_key.get("BearerToken", "")).strip()
        self._fresh_until = self._clock() + RENEWAL_PERIOD
        return configuration


async def load_credentials(
    *,
    environ: Mapping[str, str],
    kubeconfig: str = "",
    context: str = "",
    verify_x509_strict: bool = False,
    service_account: str = SERVICE_ACCOUNT_DIRECTORY,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """The first that there is: `kubeconfig`, $KUBECONFIG, the pod's service account, ~/.kube/config.

    With `verify_x509_strict` Python's own strictness about certificates stays on (3.13 and later); many clusters'
    authorities lack the key identifiers that it asks for. Raises SettingsError.
    """
    path = kubeconfig or environ.get("KUBECONFIG", "")
    home = os.path.join(environ.get("HOME", ""), ".kube", "config")
    if not path and environ.get("KUBERNETES_SERVICE_HOST"):
        load, source = _service_account_loader(environ, service_account), "the pod's service account"
    elif path or _is_file(home):
        load, source = kubeconfig_loader(path or home, context), f"kubeconfig {path or home}"
    else:
        raise SettingsError(
            [
                "no way to the API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), no kubeconfig named, "
                f"and {home} does not exist; name a kubeconfig with --kubeconfig or KUBECONFIG"
            ]
        )
    credentials = Credentials(load, source=source, verify_x509_strict=verify_x509_strict, clock=clock)
    await credentials.open()
    return credentials


def _service_account_loader(environ: Mapping[str, str], directory: str) -> Callable[[Configuration], Awaitable[None]]:
    async def load(configuration: Configuration) -> None:
        from kubernetes_asyncio.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415 - one of two

        loader = InClusterConfigLoader(
            token_filename=os.path.join(directory, "token"),
            cert_filename=os.path.join(directory, "ca.crt"),
            try_refresh_token=False,
            environ=dict(environ),
        )
        loader.load_and_set(configuration)

    return load


def _is_file(path: str) -> bool:
    return os.path.isfile(os.path.expanduser(path))


def _build_ssl_context(configuration: Configuration, *, strict: bool) -> ssl.SSLContext | None:
    if not (configuration.host or "").startswith("https://"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if not strict:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _say(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, ConfigException | OSError) and text:
        return text
    return f"not a usable kubeconfig ({type(error).__name__}{': ' + text if text else ''})"
