"""Loads and reloads API server credentials (kubeconfig or service account).

kubernetes-asyncio reads the many forms of a kubeconfig. Two things are done here instead: inline keys are
kept in memory, not in temporary files, and a credential plugin that hangs is killed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ipaddress
import json
import logging
import os
import re
import signal
import ssl
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from pydra.errors import SettingsError
from pydra.kube.lean_imports import aiohttp, import_kubeconfig_loader

log = logging.getLogger(__name__)

SERVICE_ACCOUNT_DIRECTORY = "/var/run/secrets/kubernetes.io/serviceaccount"
RENEWAL_PERIOD = 60.0
"""Projected tokens are replaced on disk when 80 % of their life (at least 10 minutes) is over; looking once a minute
is what client-go does."""
LOAD_DEADLINE = 30.0
"""Seconds for a credential plugin or an identity provider."""
_PLUGIN_BYTES, _CHUNK_BYTES = 1 << 20, 1 << 16
"""How much of a credential plugin's output counts, and how much of it is read at once."""

INLINE = ("certificate-authority", "client-certificate", "client-key")
"""Fields that name a file, or with `-data` behind carry it in base64."""
_IMPERSONATION = ("as", "as-uid", "as-groups", "as-user-extra")
_HEADER_SAFE = re.compile(r"[\x20-\x7e]*").fullmatch


class _SourceError(Exception):
    """The source cannot be used; the message says why."""


# What the loaders raise for files that are missing, unreadable, malformed, or refused by an identity provider; they
# check little before they index.
_LOADER_ERRORS = (
    OSError,
    aiohttp.ClientError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    RuntimeError,
    _SourceError,
)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """The current content of a source; an empty string or None for what it does not have."""

    host: str
    authorization: str = ""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    server_hostname: str | None = None
    proxy: str | None = None


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a request needs to be sent; replaced as a whole, so requests in flight keep theirs."""

    headers: Mapping[str, str]
    ssl: ssl.SSLContext | bool
    server_hostname: str | None
    proxy: str | None


Load: TypeAlias = Callable[[bool], Awaitable[Loaded]]
"""Loads a source; the argument says whether the server has refused what it had, so that nothing may be kept."""


class Credentials:
    """The API server's address, how to trust it, and the `Authorization` header.

    `server` is a URL without a trailing slash. `problem` says why the files cannot be used at the moment.
    """

    def __init__(
        self,
        load: Load,
        *,
        source: str,
        environ: Mapping[str, str],
        verify_x509_strict: bool = False,
        deadline: float = LOAD_DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.server = ""
        self.access = Access(headers={}, ssl=True, server_hostname=None, proxy=None)
        self.problem = ""
        self.clock = clock
        self.fresh_until = 0.0
        self._load = load
        self._environ = environ
        self._deadline = deadline + 1  # the loader's own timeout has the better message
        self._verify_x509_strict = verify_x509_strict
        self._loaded = Loaded(host="")
        self._tls_content: tuple[bytes | bool, ...] = ()
        self._renewing = asyncio.Lock()

    @property
    def trust(self) -> str:
        """The certificate files in use, for a message about TLS."""
        names = {"CA file": self._loaded.ca_file, "client certificate": self._loaded.cert_file}
        inline = f"in {self.source}"
        return ", ".join(f"{what} {_name_file(file, inline)}" for what, file in names.items() if file) or self.source

    async def open(self) -> None:
        """Read everything once; raises SettingsError when the source cannot be used."""
        try:
            await self._read(refused=False)
        except _LOADER_ERRORS as error:
            raise SettingsError([f"{self.source}: {_describe(error)}"]) from error
        if self.access.proxy is not None:
            log.info("requests to %s go through the proxy %s", self.server, _hide_user(self.access.proxy))

    async def renew(self, *, refused: Access | None = None) -> bool:
        """Read the files again; return whether `refused`, with which a request failed, has been replaced since.

        Never raises: the old credentials may still be valid, which the server's answer shows.
        """
        async with self._renewing:
            is_refused = refused is self.access
            if is_refused or self.clock() >= self.fresh_until:
                try:
                    await self._read(refused=is_refused)
                except _LOADER_ERRORS as error:
                    self.fresh_until = self.clock() + RENEWAL_PERIOD
                    self.problem = f"cannot read the credentials again, {self.source}: {_describe(error)}"
                    log.warning("%s; the old ones stay in use", self.problem)
        return refused is not self.access

    async def _read(self, *, refused: bool) -> None:
        async with asyncio.timeout(self._deadline):
            loaded = await self._load(refused)
        if not _HEADER_SAFE(loaded.authorization):
            raise _SourceError(
                "the token has several lines or characters that a header cannot carry; it must be one line"
            )
        server = loaded.host.rstrip("/")
        _check_address("server", server)
        if self.server not in ("", server):  # its credentials are not for the one that is in use
            now, in_use = _hide_user(server), _hide_user(self.server)
            raise _SourceError(f"it names the server {now} now, and {in_use} is in use; restart to change it")
        proxy = loaded.proxy or find_proxy(server, self._environ)
        if proxy is not None:
            _check_address("proxy", proxy)
        context, content = self.access.ssl, self._tls_content
        if server.startswith("https://"):
            files = (loaded.ca_file, loaded.cert_file, loaded.key_file)
            content = (loaded.verify, *map(_read_file, files))
            if content != self._tls_content:
                context = _build_ssl_context(loaded, strict=self._verify_x509_strict)
        headers = {"Authorization": loaded.authorization} if loaded.authorization else {}
        access = Access(headers=headers, ssl=context, server_hostname=loaded.server_hostname, proxy=proxy)
        if access != self.access:
            if self._tls_content and content != self._tls_content:
                log.info("the certificates of %s changed, and are used for new connections", self.source)
            self.access = access
        self.server = server
        self._loaded, self._tls_content = loaded, content
        self.problem = ""
        self.fresh_until = self.clock() + RENEWAL_PERIOD


async def load_credentials(
    *,
    environ: Mapping[str, str],
    kubeconfig: str = "",
    verify_x509_strict: bool = False,
    service_account: str = SERVICE_ACCOUNT_DIRECTORY,
    deadline: float = LOAD_DEADLINE,
    clock: Callable[[], float] = time.monotonic,
) -> Credentials:
    """Load the first that exists: `kubeconfig`, $KUBECONFIG, the pod's service account, ~/.kube/config.

    A proxy is the kubeconfig's `proxy-url`, or what `find_proxy` finds in `environ`.

    With `verify_x509_strict`, Python's strict verification (3.13 and later) stays on; many clusters' authorities lack
    the key identifiers that it requires. Raises SettingsError.
    """
    path = kubeconfig or environ.get("KUBECONFIG", "")
    home = os.path.join(environ.get("HOME", ""), ".kube", "config")
    if not path and environ.get("KUBERNETES_SERVICE_HOST"):
        load, source = _service_account_loader(environ, service_account), "the pod's service account"
    elif path or _is_file(home):
        load, source = _KubeconfigLoader(path or home, deadline).load, f"kubeconfig {path or home}"
    else:
        raise SettingsError(
            [
                "no credentials for the API server: not in a pod (KUBERNETES_SERVICE_HOST is not set), no kubeconfig, "
                f"and {home} does not exist; name a kubeconfig with --kubeconfig or KUBECONFIG"
            ]
        )
    credentials = Credentials(
        load, source=source, environ=environ, verify_x509_strict=verify_x509_strict, deadline=deadline, clock=clock
    )
    await credentials.open()
    return credentials


def find_proxy(server: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy for a server's URL, as kubectl and other programs in Go choose it.

    `HTTPS_PROXY`, or `HTTP_PROXY` for http, in capitals or not. `NO_PROXY` lists what is reached without it: addresses,
    networks (`10.96.0.0/12`), names with all that is below them, each with a port or without, or `*`. Neither is
    loopback reached through a proxy. Source: golang.org/x/net/http/httpproxy.
    """
    url = urlsplit(server)

    def read(name: str) -> str:
        return environ.get(name.upper()) or environ.get(name, "")

    proxy = read(f"{url.scheme}_proxy").strip()
    if not proxy or _is_direct(url.hostname or "", url.port or 443, read("no_proxy")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(host: str, port: int, no_proxy: str) -> bool:
    address = _parse_network(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for entry in no_proxy.lower().replace(" ", "").split(","):
        name, _, digits = entry.rpartition(":")
        has_port = digits.isdigit() and bool(name) and _parse_network(entry) is None
        listed = (name if has_port else entry).strip("[]").removeprefix("*")
        if not entry or (has_port and int(digits) != port):
            continue
        network = _parse_network(listed)
        if network is not None and address is not None:
            found = address.network_address in network
        else:  # a name stands for itself and all that is below it, `.name` only for what is below it
            found = host == listed or host.endswith(listed if listed.startswith(".") else f".{listed}")
        if found or not listed:
            return True
    return False


def _parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def _service_account_loader(environ: Mapping[str, str], directory: str) -> Load:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"

    async def load(_refused: bool) -> Loaded:
        token = _read_file(os.path.join(directory, "token")).decode(errors="replace").strip()
        if not token:
            raise _SourceError(f"the token file {directory}/token is empty")
        ca_file = os.path.join(directory, "ca.crt")
        return Loaded(host=address, authorization=f"Bearer {token}", ca_file=ca_file)

    return load


class _KubeconfigLoader:
    """Loads a kubeconfig, of one or several files, and reloads it when a file has changed.

    kubernetes-asyncio's loader would write each inline certificate and key to the shared temporary directory, where
    they outlive a process that is killed. OpenSSL and the loader need paths: here those of memfds, which end with the
    process.
    """

    def __init__(self, path: str, deadline: float) -> None:
        self._path = path
        self._deadline = deadline
        self._content: tuple[bytes, ...] = ()
        self._loader: Any = None

    async def load(self, refused: bool) -> Loaded:
        """Load the current content; raises one of _LOADER_ERRORS."""
        listed = [part for part in self._path.split(os.pathsep) if part]
        parts = [part for part in listed if _is_file(part)]  # kubectl leaves out those that are not there, too
        if not parts:
            raise _SourceError(f"there is no file {' or '.join(listed)}")
        content = tuple(map(_read_file, parts))
        module = import_kubeconfig_loader()
        found: Any = SimpleNamespace(host="", api_key={})
        try:
            if content != self._content:
                self._loader, self._content = _build_loader(module, parts, self._deadline), content
            elif refused:
                self._loader.plugin_until = 0.0  # revoked, or the clocks of this machine and the server's differ
            await self._loader.load_and_set(found)
        except (module.ConfigException, module.yaml.YAMLError) as error:
            raise _SourceError(str(error)) from error
        values = vars(found)
        return Loaded(
            host=found.host or "",
            authorization=str(found.api_key.get("BearerToken", "")).strip(),
            ca_file=values.get("ssl_ca_cert"),
            cert_file=values.get("cert_file"),
            key_file=values.get("key_file"),
            verify=values.get("verify_ssl", True),
            server_hostname=values.get("tls_server_name"),
            proxy=values.get("proxy"),
        )


def _build_loader(module: Any, files: Sequence[str], deadline: float) -> Any:
    class Loader(module.KubeConfigLoader):  # type: ignore[misc]
        """Runs a credential plugin in a process group of its own, which ends with it or at the deadline."""

        plugin_until = 0.0

        def set_active_context(self, context_name: str | None = None) -> None:
            super().set_active_context(context_name)
            if self._user is not None and (found := [name for name in _IMPERSONATION if self._user.value.get(name)]):
                raise _SourceError(f"{found[0]}: impersonation is not supported; use credentials of that user")

        async def load_from_exec_plugin(self) -> bool:
            if time.time() < self.plugin_until:
                return True
            status = await _run_plugin(self._user["exec"].value, self._cluster.value, deadline)
            if token := status.get("token"):
                self.token = f"Bearer {token}"
            if (certificate := status.get("clientCertificateData")) and (key := status.get("clientKeyData")):
                _close_all(plugin_files)
                self.cert_file = _keep_in_memory("certificate", certificate.encode(), plugin_files)
                self.key_file = _keep_in_memory("key", key.encode(), plugin_files)
            elif not token:
                raise _SourceError("exec: the plugin gave neither a token nor a certificate with its key")
            if expiry := status.get("expirationTimestamp"):
                self.plugin_until = datetime.datetime.fromisoformat(expiry).timestamp() - RENEWAL_PERIOD
            return True

    merger = module.KubeConfigMerger(os.pathsep.join(files))
    config = merger.config
    # The first file counts, as for kubectl; the merger takes the last one's.
    if context := next((one for file in merger.config_files.values() if (one := file.get("current-context"))), ""):
        config.value["current-context"] = context
    inline_files: list[int] = []
    plugin_files: list[int] = []
    for kind in ("clusters", "users"):
        for entry in config.value[kind]:
            _resolve_files(entry.value.get(kind[:-1]), os.path.dirname(os.path.abspath(entry.path)), inline_files)
    loader = Loader(config_dict=config, config_base_path=None)
    weakref.finalize(loader, _close_all, inline_files)
    weakref.finalize(loader, _close_all, plugin_files)
    return loader


def _resolve_files(entry: Any, directory: str, descriptors: list[int]) -> None:
    """Replace certificates and keys in a kubeconfig by paths of memfds, and paths by absolute ones, as kubectl does."""
    if not isinstance(entry, dict):
        return
    for name in INLINE:
        if data := entry.pop(f"{name}-data", None):  # preferred to a file of the same name
            entry[name] = _keep_in_memory(name, base64.b64decode(data), descriptors)
    for name in (*INLINE, "tokenFile"):
        if path := entry.get(name):
            entry[name] = os.path.join(directory, path)
    if entry.get("tokenFile"):
        entry.pop("token", None)  # the file may have a newer one
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and "/" in str(plugin.get("command")):
        plugin["command"] = os.path.join(directory, plugin["command"])


async def _run_plugin(config: Mapping[str, Any], cluster: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
    """Run a credential plugin of `client.authentication.k8s.io`; return its status."""
    for key in ("command", "apiVersion"):
        if not config.get(key):
            raise _SourceError(f"exec: {key} is missing")
    command = [str(config["command"]), *(str(argument) for argument in config.get("args") or ())]
    spec: dict[str, Any] = {"interactive": False}
    if config.get("provideClusterInfo"):
        spec["cluster"] = _describe_cluster(cluster)
    info = {"apiVersion": config["apiVersion"], "kind": "ExecCredential", "spec": spec}
    given = {str(item["name"]): str(item["value"]) for item in config.get("env") or ()}
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    ended = False
    try:
        async with asyncio.timeout(deadline):
            output, errors = await asyncio.gather(_read_start(process.stdout), _read_start(process.stderr))
            await process.wait()
        ended = True
    except TimeoutError as error:
        raise _SourceError(f"exec: {command[0]} timed out after {deadline:g} s, and was killed") from error
    finally:
        if not ended:  # the program, or a child that holds its output open
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        raise _SourceError(
            f"exec: {command[0]} ended with {process.returncode}: {errors[:500].decode(errors='replace')}"
        )
    try:
        answer = json.loads(output)
        if answer["apiVersion"] != config["apiVersion"]:
            raise _SourceError(f"exec: {command[0]} answered in {answer['apiVersion']}, not {config['apiVersion']}")
        return dict(answer["status"])
    except (ValueError, TypeError, LookupError) as error:
        raise _SourceError(f"exec: {command[0]} did not answer with an ExecCredential that has a status") from error


def _describe_cluster(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Build the description of a cluster of the kubeconfig that a plugin gets.

    Source: client-go's ConfigToExecCluster, and Cluster of client.authentication.k8s.io.
    """
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    found = {name: cluster[name] for name in names if cluster.get(name)}
    if authority := _read_file(cluster.get("certificate-authority")):
        found["certificate-authority-data"] = base64.b64encode(authority).decode()
    extensions = {one["name"]: one.get("extension") for one in cluster.get("extensions") or ()}
    return {**found, "config": extensions.get("client.authentication.k8s.io/exec")}


async def _read_start(stream: asyncio.StreamReader | None) -> bytes:
    """Read to the end; return the beginning: a program may write without end."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        kept += chunk[: _PLUGIN_BYTES - len(kept)]
    return bytes(kept)


def _keep_in_memory(name: str, content: bytes, descriptors: list[int]) -> str:
    """Create a memfd with this content; return its path."""
    descriptor = os.memfd_create(f"pydra-{name}")  # not inherited: a plugin does not need it
    descriptors.append(descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return f"/proc/self/fd/{descriptor}"


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


def _is_file(path: str) -> bool:
    return os.path.isfile(os.path.expanduser(path))


def _read_file(path: str | None) -> bytes:
    if not path:
        return b""
    with open(os.path.expanduser(path), "rb") as file:
        return file.read()


def _build_ssl_context(loaded: Loaded, *, strict: bool) -> ssl.SSLContext:
    """Build the TLS context. Raises _SourceError or OSError for a file that OpenSSL refuses."""
    try:
        context = ssl.create_default_context(cafile=loaded.ca_file)
    except ssl.SSLError as error:
        text = f"the CA {_name_file(loaded.ca_file)} is not a usable certificate: {_name_reason(error)}"
        raise _SourceError(text) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Python's default, but not that of Debian's Python
    if loaded.cert_file:
        try:
            context.load_cert_chain(loaded.cert_file, keyfile=loaded.key_file)
        except ssl.SSLError as error:
            certificate, key = _name_file(loaded.cert_file), _name_file(loaded.key_file)
            text = f"the client certificate {certificate} with the key {key} cannot be used: {_name_reason(error)}"
            raise _SourceError(text) from error
    if not loaded.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if not strict:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _check_address(what: str, address: str) -> None:
    """Raise _SourceError for what is not the URL of a host."""
    shown = _hide_user(address)
    if not address.startswith(("http://", "https://")):
        raise _SourceError(f"the {what} {shown!r} must begin with https:// or http://")
    try:
        if URL(address).host:
            return
    except ValueError as error:
        raise _SourceError(f"the {what} {shown!r} is not the URL of a host: {error}") from error
    raise _SourceError(f"the {what} {shown!r} names no host")


def _hide_user(address: str) -> str:
    """Return a URL, valid or not, without the user and the password."""
    return re.sub("//[^/]*@", "//", address)


def _name_file(file: str | None, inline: str = "in the kubeconfig") -> str:
    return file if file and not file.startswith("/proc/self/fd/") else inline


def _name_reason(error: ssl.SSLError) -> str:
    return error.reason or "it is not PEM"


def _describe(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, TimeoutError):
        return "timed out while reading the credentials"
    if isinstance(error, _SourceError | OSError) and text:
        return text
    return f"not a usable kubeconfig ({type(error).__name__}{': ' + text if text else ''})"
