"""Asynchronous client for the Kubernetes API.

Typed paths, JSON objects, deadlines, retries of reads, errors of `pydra.errors`. Up to two HTTP/1.1 connections are
kept open for the next claim; those that a burst opened beside them are soon closed. Requests go to aiohttp's session
directly: kubernetes-asyncio's own request path costs much more CPU, and its session asks a thread for proxies at each
request.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode

import anyio
import msgspec
from yarl import URL

from pydra.backoff import find_pause
from pydra.errors import Gone, KubeError, Unavailable
from pydra.kube.api_resources import JsonObject, ObjectList, Resource, WatchEvent, WatchEventType, build_path
from pydra.kube.credentials import Credentials
from pydra.kube.errors import build_error, build_unanswered, describe, find_tls_error, parse_status, read_status
from pydra.kube.lean_imports import aiohttp
from pydra.kube.tolerant_decoding import (
    LineSplitter,
    LineTooLong,
    NotJson,
    TooLarge,
    Undecodable,
    decode_document,
    decode_event,
    decode_object,
    decode_page,
    decode_table,
)

log = logging.getLogger(__name__)

REQUEST_DEADLINE = 10.0
RETRY_FOR = 20.0
RETRY_PAUSE, RETRY_PAUSE_LIMIT = 0.1, 2.0
REQUESTS = 256
"""Requests in flight, watches apart. The kubelet prepares as many claims at once as a node has pods, 110 to 250; more
would cost descriptors and handshakes. What waits for its slot is not counted as waiting for the API server."""
WARM = 2
"""Requests in flight that share the connections that are kept warm; what is beyond is a burst."""
PAGE_SIZE = 500
IDLE_SECONDS = 75.0
"""Less than the API server's own 90 s, so no write uses a connection that the server is closing."""
BURST_IDLE_SECONDS = 10.0
"""The same for connections that a burst opened: long enough for pods that start one after the other. aiohttp uses its
connections in turn, so otherwise the 50 connections of a burst would stay open with one request every 75 s each."""
READ_BUFFER = 256 * 1024
KEEPALIVE = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 60_000,
}
WATCH_SECONDS = (300.0, 600.0)
SILENT_SECONDS = 150.0
"""API servers send a bookmark each minute. A connection without any is dead, though a proxy may keep it open."""
MEBIBYTE = 1024 * 1024
BODY_LIMIT = 64 * MEBIBYTE
"""Bytes of one answer: 500 objects of 128 KiB. etcd takes objects of up to 1.5 MiB."""
REFUSAL_LIMIT = 64 * 1024
LINE_LIMIT = 16 * MEBIBYTE
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML."""
_BODY_TYPES = {"patch": MERGE_PATCH, "apply": APPLY_PATCH}
METADATA_ONLY = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
"""Kinds without their spec and status. A server that does not know the form answers with the whole objects."""
METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "apply": "PATCH",
    "delete": "DELETE",
}

LOWER_ERRORS = (aiohttp.ClientError, OSError)
"""What a request without an answer raises; TimeoutError is an OSError."""
DecodePage: TypeAlias = Callable[[bytes], tuple[JsonObject, list[JsonObject], list[str]]]
_UNUSABLE = (*LOWER_ERRORS, NotJson, Undecodable, TooLarge, LineTooLong)
T = TypeVar("T")


class RequestDone(msgspec.Struct, frozen=True, kw_only=True):
    """One request was answered, or not (`status` 0). `resource` is its plural with the group; seconds to the answer."""

    verb: str
    resource: str
    status: int
    seconds: float


class KubeClient:
    """Sends requests to the API server. Use it as an async context manager; all methods raise only KubeErrors.

    Reads are repeated, with jitter, while the server is Unavailable, for at most `retry_for` seconds; writes are not.
    There is no rate limit; the server's own (429, Retry-After) is honoured.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str = "pydra-agent",
        deadline: float = REQUEST_DEADLINE,
        retry_for: float = RETRY_FOR,
        requests: int = REQUESTS,
        burst_idle: float = BURST_IDLE_SECONDS,
        silent: float = SILENT_SECONDS,
        report: Callable[[RequestDone], None] = lambda _: None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._credentials = credentials
        self._headers = {"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": user_agent}
        self._deadline = deadline
        self._timeout = _build_timeout(deadline)
        self._retry_for = retry_for
        self._report = report
        self._uniform = uniform
        self._slots = asyncio.Semaphore(requests)
        self._in_flight = 0
        self._burst_idle = burst_idle
        self._silent = silent
        self._problem = ""
        self._session: aiohttp.ClientSession | None = None
        self._burst_session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubeClient:
        self._session = open_session(IDLE_SECONDS)
        self._burst_session = open_session(self._burst_idle)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            for session in (self._session, self._burst_session):
                if session is not None:
                    await session.close()
        self._session = self._burst_session = None

    def problem(self) -> str:
        """Return why the API server cannot be used: a certificate or token is refused. Empty if it can."""
        return self._problem or self._credentials.problem

    async def get(
        self, resource: Resource, name: str, *, namespace: str = "", deadline: float | None = None
    ) -> JsonObject:
        """Return one object.

        `deadline`, in seconds, replaces `retry_for` (0: one attempt, as long as any); the error is the last one of the
        API server or the connection.
        """
        path = build_path(resource, namespace=namespace, name=name)
        attempt = partial(self._request, "get", resource, path, decode=partial(decode_object, kind=resource.kind))
        began = time.monotonic()
        try:  # like _read, without one more call for each claim
            return await attempt(seconds=deadline or None)  # aiohttp takes 0 for no limit
        except Unavailable as error:
            return await self._repeat(error, attempt, began, deadline)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        metadata_only: bool = False,
    ) -> ObjectList:
        """Return all objects, read page by page; a list whose continuation expires is read again in one piece.

        Objects that cannot be decoded are left out, with a warning, and named in the result.
        """
        query = {"fieldSelector": field_selector, "labelSelector": label_selector}
        path = build_path(resource, namespace=namespace)
        accept = METADATA_ONLY.format("PartialObjectMetadataList") if metadata_only else JSON
        found = await self._read_list(resource, path, query, accept, decode_page)
        for item in found.items:  # in a list, the items have neither
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return found

    async def list_columns(self, resource: Resource, *, field_selector: str = "") -> Sequence[JsonObject]:
        """Return of each object what `kubectl get` shows, by column: a hundredth of the objects."""
        query = {"fieldSelector": field_selector, "includeObject": "None"}
        path = build_path(resource)
        return (await self._read_list(resource, path, query, METADATA_ONLY.format("Table"), decode_table)).items

    async def create(
        self, resource: Resource, body: JsonObject, *, namespace: str = "", dry_run: bool = False
    ) -> JsonObject:
        """Create the object; return it as stored, or as it would be. Conflict: it already exists."""
        path = build_path(resource, namespace=namespace) + ("?dryRun=All" if dry_run else "")
        return await self._write("create", resource, path, _name_kind(resource, body))

    async def replace(
        self, resource: Resource, name: str, body: JsonObject, *, namespace: str = "", subresource: str = ""
    ) -> JsonObject:
        """Replace the object; return it as stored. Conflict: the resourceVersion is outdated."""
        path = build_path(resource, namespace=namespace, name=name, subresource=subresource)
        return await self._write("update", resource, path, _name_kind(resource, body))

    async def patch(
        self, resource: Resource, name: str, body: JsonObject, *, namespace: str = "", subresource: str = ""
    ) -> JsonObject:
        """Apply a JSON merge patch; return the object."""
        path = build_path(resource, namespace=namespace, name=name, subresource=subresource)
        return await self._write("patch", resource, path, body)

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: JsonObject,
        *,
        manager: str,
        force: bool = True,
        namespace: str = "",
        subresource: str = "",
    ) -> JsonObject:
        """Apply the fields of the manager (server-side apply); return the object.

        Without `force`, a Conflict if another manager has one of them with another value.
        """
        path = build_path(resource, namespace=namespace, name=name, subresource=subresource)
        path = _add_query(path, {"fieldManager": manager, "force": "true" if force else "false"})
        return await self._write("apply", resource, path, _name_kind(resource, body))

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace_period: int | None = None,
    ) -> None:
        """Delete the object if it still has the given uid and resource version (otherwise Conflict)."""
        options: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_period}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options["preconditions"] = {key: value for key, value in preconditions.items() if value}
        path = build_path(resource, namespace=namespace, name=name)
        await self._request("delete", resource, path, decode=decode_document, body=options)

    async def fetch(self, path: str) -> JsonObject:
        """Read a document by its path, such as `/version`."""
        return await self._read(partial(self._request, "get", None, path, decode=decode_document))

    async def watch(
        self,
        resource: Resource,
        *,
        resource_version: str,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield the events after `resource_version`, bookmarks included, until the server ends it in 5 to 10 minutes.

        Events that cannot be decoded are left out, with a warning. Raises Gone if a new list is needed, as when nothing
        comes any more, Unavailable if the connection breaks. Close the iterator.
        """
        lifetime = int(self._uniform(*WATCH_SECONDS))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(lifetime),
            "fieldSelector": field_selector,
            "labelSelector": label_selector,
        }
        path = build_path(resource, namespace=namespace)
        response: aiohttp.ClientResponse | None = None
        try:
            async with asyncio.timeout(self._deadline):  # for the head of the answer
                url = _add_query(path, query)
                response = await self._send("watch", resource, url, seconds=lifetime + 30, silent=self._silent)
                if response.status != 200:
                    raise await self._read_refusal("watch", resource, path, response)
            lines = LineSplitter(LINE_LIMIT)
            async for chunk in response.content.iter_any():
                for line in lines.feed(chunk):
                    try:
                        event = decode_event(line)
                    except Undecodable as error:
                        log.warning("watch of %s: left out %s", resource, error)
                        continue
                    if event.type is WatchEventType.ERROR:
                        status = read_status(event.object)
                        raise build_error(describe("watch", resource, path), status.code or 500, status)
                    yield event
        except aiohttp.SocketTimeoutError as error:
            # A server that was restored from a backup is silent, too, until it has reached the version again.
            text = f"watch of {resource}: nothing has come for {self._silent:g} s; it is listed again"
            log.info("%s", text)
            raise Gone(text) from error
        except _UNUSABLE as error:
            raise self._explain("watch", resource, path, error, self._deadline) from error
        finally:
            if response is not None:
                response.close()

    async def _write(self, verb: str, resource: Resource, path: str, body: JsonObject) -> JsonObject:
        return await self._request(verb, resource, path, decode=partial(decode_object, kind=resource.kind), body=body)

    async def _read_list(
        self, resource: Resource, path: str, query: Mapping[str, str], accept: str, decode: DecodePage
    ) -> ObjectList:
        try:
            return await self._read_pages(resource, path, {**query, "limit": str(PAGE_SIZE)}, accept, decode)
        except Gone:
            return await self._read_pages(resource, path, query, accept, decode)

    async def _read_pages(
        self, resource: Resource, path: str, query: Mapping[str, str], accept: str, decode: DecodePage
    ) -> ObjectList:
        items: list[JsonObject] = []
        unreadable: list[str] = []
        token = ""
        while True:
            url = _add_query(path, {**query, "continue": token})
            read_page = partial(self._request, "list", resource, url, decode=decode, accept=accept)
            metadata, found, left_out = await self._read(read_page)
            items += found
            unreadable += left_out
            token = str(metadata.get("continue") or "")
            if not token:
                break
        if unreadable:
            log.warning("list of %s: left out %s", resource, "; ".join(unreadable))
        return ObjectList(items=tuple(items), resource_version=str(metadata.get("resourceVersion") or ""))

    async def _read(self, attempt: Callable[..., Awaitable[T]]) -> T:
        began = time.monotonic()
        try:
            return await attempt()
        except Unavailable as error:
            return await self._repeat(error, attempt, began, None)

    async def _repeat(
        self, error: Unavailable, attempt: Callable[..., Awaitable[T]], began: float, deadline: float | None
    ) -> T:
        """Repeat the request that failed with `error`, until the deadline; then raise the last informative error."""
        # Not at the top: importing it takes 10 ms, and the first attempt seldom fails.
        from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type  # noqa: PLC0415

        limit = self._retry_for if deadline is None else deadline
        left = limit

        def choose_pause(state: RetryCallState) -> float:
            longest = find_pause(state.attempt_number, first=RETRY_PAUSE, cap=RETRY_PAUSE_LIMIT)
            return max(error.retry_after, self._uniform(longest / 2, longest))

        def is_over(state: RetryCallState) -> bool:
            nonlocal left
            left = limit - (time.monotonic() - began) - state.upcoming_sleep
            return left <= 0

        def log_pause(state: RetryCallState) -> None:
            level = logging.WARNING if state.attempt_number == 1 else logging.INFO
            log.log(level, "%s; trying again in %.1f s", error, state.upcoming_sleep)

        def give_up(state: RetryCallState) -> T:
            if state.attempt_number == 1:
                raise error
            text = f"{error}; gave up after {limit:g} s"
            raise Unavailable(text, status=error.status, cause=error.cause, retry_after=error.retry_after)

        async def try_again() -> T:
            nonlocal error
            if retrying.statistics["attempt_number"] == 1:
                raise error  # of the attempt that was already made
            try:
                return await attempt(seconds=left)
            except Unavailable as last:
                # If the total deadline cut the last attempt off, the error before it says more.
                if last.cause != "Timeout" or left >= self._deadline:
                    error = last
                raise

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Unavailable),
            wait=choose_pause,
            stop=is_over,
            before_sleep=log_pause,
            retry_error_callback=give_up,
            sleep=asyncio.sleep,
        )
        return await retrying(try_again)

    async def _request(
        self,
        verb: str,
        resource: Resource | None,
        path: str,
        *,
        decode: Callable[[bytes], T],
        body: JsonObject | None = None,
        accept: str = JSON,
        seconds: float | None = None,
    ) -> T:
        headers = {"Accept": accept}
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = _BODY_TYPES.get(verb, JSON)
        seconds = self._deadline if seconds is None else min(seconds, self._deadline)
        response: aiohttp.ClientResponse | None = None
        await self._slots.acquire()
        self._in_flight += 1
        try:
            response = await self._send(verb, resource, path, headers=headers, data=data, seconds=seconds)
            if response.status >= 300:
                raise await self._read_refusal(verb, resource, path, response)
            content = response.content
            answer = await content.readany()
            if not content.at_eof():
                answer = await _read_on(content, answer)
            return decode(answer)
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, _UNUSABLE):
                raise self._explain(verb, resource, path, error, seconds) from error
            raise
        finally:
            self._in_flight -= 1
            self._slots.release()

    async def _send(
        self,
        verb: str,
        resource: Resource | None,
        path: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        data: bytes | None = None,
        seconds: float,
        silent: float | None = None,
    ) -> aiohttp.ClientResponse:
        """Send the request; return the response with its body unread. Refused credentials are reloaded once."""
        session = self._session if self._in_flight <= WARM else self._burst_session
        if session is None:
            raise RuntimeError("the KubeClient is not open: use it in `async with`")
        credentials = self._credentials
        url: str | URL = credentials.server + path
        if "%" in path or "?" in path:
            url = URL(url, encoded=True)  # otherwise yarl decodes what it considers needlessly encoded
        start = time.perf_counter()
        status = 0
        try:
            if credentials.clock() >= credentials.fresh_until:
                await credentials.renew()
            last = False
            while True:
                access = credentials.access
                try:
                    response = await session.request(
                        METHODS[verb],
                        url,
                        data=data,
                        headers={**self._headers, **headers, **access.headers},
                        timeout=self._timeout if seconds == self._deadline else _build_timeout(seconds, silent),
                        allow_redirects=False,
                        ssl=access.ssl,
                        proxy=access.proxy,
                        server_hostname=access.server_hostname,
                    )
                except LOWER_ERRORS as error:
                    # A server that hangs up may refuse the certificate, too, but may also have executed the request.
                    tls_failed = find_tls_error(error) is not None
                    may_be_refused = tls_failed or isinstance(error, aiohttp.ServerDisconnectedError)
                    if last or not may_be_refused or not await credentials.renew(refused=access) or not tls_failed:
                        raise
                else:
                    if response.status != 401 or last or not await credentials.renew(refused=access):
                        break
                    response.close()
                last = True
            status = response.status
            self._problem = ""
            return response
        finally:
            self._report(
                RequestDone(
                    verb=verb,
                    resource=resource.full_name if resource is not None else "",
                    status=status,
                    seconds=time.perf_counter() - start,
                )
            )

    async def _read_refusal(
        self, verb: str, resource: Resource | None, path: str, response: aiohttp.ClientResponse
    ) -> KubeError:
        body = b""
        while len(body) < REFUSAL_LIMIT and (chunk := await response.content.readany()):
            body += chunk
        retry_after = response.headers.get("Retry-After", "")
        error = build_error(
            describe(verb, resource, path), response.status, parse_status(body), retry_after=retry_after
        )
        if response.status == 401:
            self._problem = str(error)
        return error

    def _explain(
        self, verb: str, resource: Resource | None, path: str, error: BaseException, seconds: float
    ) -> KubeError:
        credentials = self._credentials
        found = build_unanswered(
            describe(verb, resource, path), credentials.server, error, seconds=seconds, trust=credentials.trust
        )
        if found.cause == "TLS":
            self._problem = str(found)
        return found


def _name_kind(resource: Resource, body: JsonObject) -> JsonObject:
    """Add apiVersion and kind, which the API server needs for what is applied and for CustomResourceDefinitions."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}


def _build_timeout(seconds: float, silent: float | None = None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_read=silent, ceil_threshold=math.inf)


def _add_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode({key: value for key, value in query.items() if value})}"


async def _read_on(content: aiohttp.StreamReader, begun: bytes) -> bytes:
    """Read the rest of a body that begins with `begun`; return all of it. Raises TooLarge."""
    chunks, size = [begun], len(begun)
    while chunk := await content.readany():
        size += len(chunk)
        if size > BODY_LIMIT:
            raise TooLarge(f"more than {BODY_LIMIT // MEBIBYTE} MiB")
        chunks.append(chunk)
    return b"".join(chunks)


def open_session(idle_seconds: float) -> aiohttp.ClientSession:
    """Open a session that closes connections `idle_seconds` after their last use, without cookies and proxies.

    The number of connections is not limited: waiting for one would look like a server that does not answer.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=idle_seconds, socket_factory=_open_socket)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=READ_BUFFER,
    )


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    """Open a socket that detects a vanished server within a minute, even for a watch, which sends nothing."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock
