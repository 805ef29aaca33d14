"""The KubeClient: typed paths, JSON objects, deadlines, retries of reads, pydra's errors. No knowledge of DRA.

One HTTP/1.1 session with warm connections. Requests go to aiohttp's session directly: kubernetes-asyncio's own
request path costs much more CPU, and its session asks a thread for proxies at each request.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType, TracebackType
from urllib.parse import urlencode

import anyio
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_before_delay
from yarl import URL

from pydra.errors import Gone, KubeError, Unavailable
from pydra.kube.credentials import Credentials
from pydra.kube.errors import Status, build_error, build_unanswered, parse_status
from pydra.kube.lines import LineSplitter, LineTooLong
from pydra.kube.resources import JsonObject, ObjectList, Resource, WatchEvent, WatchEventType, build_path
from pydra.kube.session import open_session
from pydra.kube.transport import aiohttp

log = logging.getLogger(__name__)

REQUEST_DEADLINE = 10.0
RETRY_FOR = 20.0
PAGE_SIZE = 500
RETRY_PAUSE, RETRY_PAUSE_LIMIT = 0.05, 2.0
WATCH_SECONDS = (300.0, 600.0)
WATCH_LINE_LIMIT = 16 * 1024 * 1024
_DRY_RUN: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {"dryRun": "All"})
MERGE_PATCH = "application/merge-patch+json"
METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}

LOWER_ERRORS = (aiohttp.ClientError, OSError)
"""All that a request without an answer raises; TimeoutError is an OSError."""


class RequestDone(msgspec.Struct, frozen=True, kw_only=True):
    """One request was answered, or not (`status` 0). `resource` is its plural with the group; seconds to the answer."""

    verb: str
    resource: str
    status: int
    seconds: float


class KubeClient:
    """The API server. Use it as an async context manager; every method raises KubeError's branches only.

    Reads are repeated, with jitter, while the server is Unavailable, for `retry_for` seconds at most; writes never.
    There is no rate limit: the server's own (429, Retry-After) is honoured.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        user_agent: str = "pydra-agent",
        deadline: float = REQUEST_DEADLINE,
        retry_for: float = RETRY_FOR,
        report: Callable[[RequestDone], None] = lambda _: None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._credentials = credentials
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": user_agent}
        self._deadline = aiohttp.ClientTimeout(total=deadline)
        self._retry_for = retry_for
        self._report = report
        self._uniform = uniform
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> KubeClient:
        self._session = open_session(self._credentials)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            with anyio.CancelScope(shield=True):
                await self._session.close()
            self._session = None

    async def get(self, resource: Resource, name: str, *, namespace: str = "") -> JsonObject:
        """One object."""
        return await self._read("get", resource, build_path(resource, namespace=namespace, name=name))

    async def list(
        self, resource: Resource, *, namespace: str = "", field_selector: str = "", label_selector: str = ""
    ) -> ObjectList:
        """All objects, page by page; a list whose continuation expires is read once more in one piece."""
        query = {"fieldSelector": field_selector, "labelSelector": label_selector}
        path = build_path(resource, namespace=namespace)
        try:
            return await self._read_pages(resource, path, {**query, "limit": str(PAGE_SIZE)})
        except Gone:
            return await self._read_pages(resource, path, query)

    async def create(
        self, resource: Resource, body: JsonObject, *, namespace: str = "", dry_run: bool = False
    ) -> JsonObject:
        """The object as stored, or as it would be. Conflict: it exists already."""
        path = build_path(resource, namespace=namespace)
        return await self._request("create", resource, path, query=_DRY_RUN[dry_run], body=body)

    async def replace(
        self,
        resource: Resource,
        name: str,
        body: JsonObject,
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> JsonObject:
        """The object as stored, or as it would be. Conflict: it is not the one that `metadata.resourceVersion` says."""
        path = build_path(resource, namespace=namespace, name=name, subresource=subresource)
        return await self._request("update", resource, path, query=_DRY_RUN[dry_run], body=body)

    async def patch(
        self, resource: Resource, name: str, body: JsonObject, *, namespace: str = "", subresource: str = ""
    ) -> JsonObject:
        """The object after a JSON merge patch."""
        path = build_path(resource, namespace=namespace, name=name, subresource=subresource)
        return await self._request("patch", resource, path, body=body)

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
        """Delete, only if uid and resource version still are those given (Conflict otherwise); seconds of grace."""
        options: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1"}
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        if kept := {key: value for key, value in preconditions.items() if value}:
            options["preconditions"] = kept
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        await self._request("delete", resource, build_path(resource, namespace=namespace, name=name), body=options)

    async def fetch(self, path: str) -> JsonObject:
        """Any document by its path, such as `/version`."""
        return await self._read("get", None, path)

    async def watch(
        self, resource: Resource, *, resource_version: str, namespace: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        """What happens after `resource_version`, bookmarks included, until the server ends it, after 5 to 10 minutes.

        Raises Gone when it must be listed again, Unavailable when the connection breaks. Close the iterator.
        """
        lifetime = int(self._uniform(*WATCH_SECONDS))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(lifetime),
            "fieldSelector": field_selector,
        }
        url = self._url(build_path(resource, namespace=namespace), query)
        doing = _describe("watch", resource, url)
        try:
            async with self._send(
                "watch", resource, url, timeout=aiohttp.ClientTimeout(total=lifetime + 30)
            ) as response:
                if response.status != 200:
                    with anyio.fail_after(self._deadline.total):
                        raise await _read_refusal(doing, response)
                lines = LineSplitter(WATCH_LINE_LIMIT)
                async for chunk in response.content.iter_any():
                    for line in lines.feed(chunk):
                        yield _parse_event(doing, line)
        except (*LOWER_ERRORS, msgspec.DecodeError, LineTooLong) as error:
            raise build_unanswered(doing, self._credentials.server, error) from error

    async def _read_pages(self, resource: Resource, path: str, query: Mapping[str, str]) -> ObjectList:
        items: list[JsonObject] = []
        page = await self._read("list", resource, path, query)
        while True:
            items += page.get("items") or ()
            metadata = page.get("metadata") or {}
            token = metadata.get("continue")
            if not token:
                break
            page = await self._read("list", resource, path, {**query, "continue": token})
        for item in items:  # a list leaves out what is the same for all its items
            item.setdefault("apiVersion", resource.api_version)
            item.setdefault("kind", resource.kind)
        return ObjectList(items=tuple(items), resource_version=metadata.get("resourceVersion", ""))

    async def _read(
        self, verb: str, resource: Resource | None, path: str, query: Mapping[str, str] = MappingProxyType({})
    ) -> JsonObject:
        try:
            return await self._request(verb, resource, path, query=query)
        except Unavailable as error:
            first: Unavailable | None = error

        async def attempt() -> JsonObject:
            nonlocal first
            if first is not None:
                error, first = first, None
                raise error
            return await self._request(verb, resource, path, query=query)

        # Built after the first failure only: tenacity's machinery costs half as much as the request itself.
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Unavailable),
            stop=stop_before_delay(self._retry_for),
            wait=self._pause,
            before_sleep=_tell_retry,
            reraise=True,
        )
        return await retrying(attempt)

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.retry_after if isinstance(error, Unavailable) else 0.0
        longest = min(RETRY_PAUSE * 2**state.attempt_number, RETRY_PAUSE_LIMIT)
        return max(asked, self._uniform(longest / 2, longest))

    async def _request(
        self,
        verb: str,
        resource: Resource | None,
        path: str,
        *,
        query: Mapping[str, str] = MappingProxyType({}),
        body: JsonObject | None = None,
    ) -> JsonObject:
        url = self._url(path, query)
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._send(verb, resource, url, data=data, timeout=self._deadline) as response:
                if response.status >= 300:
                    raise await _read_refusal(_describe(verb, resource, url), response)
                return msgspec.json.decode(await response.read(), type=JsonObject)
        except (*LOWER_ERRORS, msgspec.DecodeError) as error:
            raise build_unanswered(_describe(verb, resource, url), self._credentials.server, error) from error

    @asynccontextmanager
    async def _send(
        self,
        verb: str,
        resource: Resource | None,
        url: URL,
        *,
        timeout: aiohttp.ClientTimeout,
        data: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer's head, its body still to be read. Refused credentials are renewed, once."""
        start = time.perf_counter()
        status = 0
        try:
            if self._credentials.stale:
                await self._credentials.renew()
            response = await self._dispatch(verb, url, data, timeout)
            if response.status == 401:
                refused = self._credentials.authorization
                await self._credentials.renew(refused=refused)
                if self._credentials.authorization != refused:
                    response.release()
                    response = await self._dispatch(verb, url, data, timeout)
            status = response.status
        finally:
            self._report(
                RequestDone(verb=verb, resource=str(resource or ""), status=status, seconds=time.perf_counter() - start)
            )
        async with response:
            yield response

    async def _dispatch(
        self, verb: str, url: URL, data: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the KubeClient is not open: use it in `async with`")
        headers = self._headers
        if self._credentials.authorization:
            headers = {**headers, "Authorization": self._credentials.authorization}
        if data is not None:
            headers = {**headers, "Content-Type": MERGE_PATCH if verb == "patch" else "application/json"}
        answering = self._session.request(
            METHODS[verb],
            url,
            data=data,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            proxy=self._credentials.proxy,
            server_hostname=self._credentials.server_hostname,
        )
        if timeout is self._deadline:
            return await answering
        with anyio.fail_after(self._deadline.total):  # a watch has a longer limit, but not for its head
            return await answering

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        given = {key: value for key, value in query.items() if value}
        return URL(f"{self._credentials.server}{path}{'?' if given else ''}{urlencode(given)}", encoded=True)


def _tell_retry(state: RetryCallState) -> None:
    level = logging.WARNING if state.attempt_number == 1 else logging.INFO
    error = state.outcome.exception() if state.outcome is not None else None
    log.log(level, "%s; trying again in %.1f s", error, state.upcoming_sleep)


def _parse_event(doing: str, line: bytes) -> WatchEvent:
    event = msgspec.json.decode(line, type=WatchEvent)
    if event.type is WatchEventType.ERROR:
        status = msgspec.convert(event.object, Status)
        raise build_error(doing, status.code or 500, status)
    return event


async def _read_refusal(doing: str, response: aiohttp.ClientResponse) -> KubeError:
    answer = parse_status(await response.read())
    return build_error(doing, response.status, answer, retry_after=response.headers.get("Retry-After", ""))


def _describe(verb: str, resource: Resource | None, url: URL) -> str:
    return f"{verb} {resource or 'document'} {url.path}"
