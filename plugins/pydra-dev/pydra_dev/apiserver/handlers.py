"""HTTP requests to verbs and back: the API server's one handler.

Every path goes through `Handlers.handle`, which logs the call, lets injected faults act, refuses web pages, checks the
token and answers refusals with a `Status` body. Writes must name the type of their body, which pages cannot choose
without an Origin. Unknown fields of the kinds that `api.schema` describes are refused or reported as warnings, as
`fieldValidation` asks.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from yarl import URL

from pydra_dev.api.errors import (
    JsonObject,
    StatusError,
    bad_request,
    method_not_allowed,
    no_resource,
    unauthorized,
    unsupported_media_type,
)
from pydra_dev.api.kinds import KINDS, Kind
from pydra_dev.api.request_path import Target, index_paths, parse_path
from pydra_dev.api.schema import refuse_fields
from pydra_dev.apiserver import patches, server_side_apply
from pydra_dev.apiserver.faults import ConnectionCutError, Faults, RawAnswerError
from pydra_dev.apiserver.registry_strategy import find_unknown_fields
from pydra_dev.apiserver.request_log import Call, RequestLog
from pydra_dev.apiserver.tables import build_table, wants_table
from pydra_dev.apiserver.verbs import Api, Query, watch

_METHODS = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
OPENAPI = "/openapi/v3"
_HEALTH = frozenset({"/healthz", "/livez", "/readyz"})
_PROTOBUF = "application/vnd.kubernetes.protobuf"
_BODIES = ("application/json", "application/yaml", _PROTOBUF)
_YAML = frozenset({"application/yaml", server_side_apply.CONTENT_TYPE})
_CONTAINER_PATH = re.compile("/api/v1/namespaces/[^/]+/pods/[^/]+/(log|exec|attach|portforward)")
_ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
MAX_BODY = 3 * 1024 * 1024
"""Bytes of a request's body, as a real server limits it."""
CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})
WATCH_SECONDS = (1800.0, 3600.0)
"""Between these a watch ends that did not say when."""


class Handlers:
    """What stands between aiohttp and the verbs. `token` empty: nobody needs one."""

    def __init__(
        self,
        api: Api,
        *,
        served: tuple[Kind, ...],
        documents: Mapping[str, Callable[[], JsonObject]],
        faults: Faults,
        requests: RequestLog,
        token: str = "",
        bookmark_period: float = 60.0,
    ) -> None:
        self.api = api
        self.token = token
        self.watches: dict[int, web.Request] = {}
        self._by_path = index_paths(api.kinds)
        self._served = frozenset(served)
        self._documents = documents
        self.faults = faults
        self.requests = requests
        self._bookmark_period = bookmark_period

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        request, has_token = self._read_token(request)
        target = parse_path(request.path, self._by_path)
        call = _build_call(request, target)
        self.requests.record(call)
        try:
            await self.faults.apply(call)
            _refuse_foreign(request)
            if not has_token:
                raise unauthorized()
            response = await self._answer(request, target, call)
        except ConnectionCutError:
            cut_connection(request)
            raise
        except RawAnswerError as answer:
            response = web.Response(status=answer.status, text=answer.body)
        except StatusError as error:
            response = _build_refusal(error)
        call.status = response.status
        return response

    def _read_token(self, request: web.Request) -> tuple[web.Request, bool]:
        """The request without a token in its path, and whether it has the right one, there or in its header.

        kubectl sends no header with a token over HTTP, but it keeps the path of the server.
        """
        prefix = f"/{self.token}/"
        if self.token and request.raw_path.startswith(prefix):
            return request.clone(rel_url=URL(request.raw_path[len(prefix) - 1 :], encoded=True)), True
        return request, not self.token or request.headers.get("Authorization") == f"Bearer {self.token}"

    def _answer_unknown(self, path: str) -> web.StreamResponse:
        """The 404 for a path of nothing that is served; from 1.38 on, it is a Status below `/apis/`, too."""
        known = any(one.startswith("/api") and path.startswith(f"{one}/") for one in self._documents)
        if known or (self.api.minor >= 38 and path.startswith("/apis/")):
            raise no_resource()
        return web.Response(status=404, text="404 page not found\n")

    async def _answer(self, request: web.Request, target: Target | None, call: Call) -> web.StreamResponse:
        if request.path in _HEALTH:
            return web.Response(text="ok")
        if request.path.rstrip("/") == OPENAPI:
            return _build_answer(self._index_openapi())
        if request.path.rstrip("/") in self._documents:
            return _build_answer(self._documents[request.path.rstrip("/")]())
        if _CONTAINER_PATH.fullmatch(request.path):
            why = "its containers are simulated: they have no log, and nothing can run in them"
            raise StatusError(501, "NotImplemented", f"this pod runs on a node of `pydra dev`, and {why}")
        if (request.path, request.method) == (_ACCESS_REVIEWS, "POST"):
            return _build_answer(self._review(await _read_body(request, "create")), status=201)
        if target is None or target.kind not in self._served:
            return self._answer_unknown(request.path)
        return await self._answer_target(request, target, call)

    async def _answer_target(self, request: web.Request, target: Target, call: Call) -> web.StreamResponse:
        _refuse_bad_name(target.name)
        if call.verb == "watch":
            return await self._watch(request, target)
        handler = _BY_VERB.get((call.verb, bool(target.name)))
        if handler is None or (target.subresource == "binding") != (call.verb == "create" and bool(target.name)):
            raise method_not_allowed()
        body = await _read_body(request, call.verb)
        if call.verb in {"create", "update"}:
            _require_kind(target.kind, body)
        warnings = _check_fields(request, target, call.verb, body)
        is_new = call.verb == "create" or (call.verb == "patch" and not self._has(target))  # by server-side apply
        answered = handler(self.api, request, target, body)
        if request.method == "GET" and wants_table(request.headers.get("Accept", "")):
            answered = self._print(request, target.kind, answered)
        answer = _build_answer(answered, status=201 if is_new else 200)
        for warning in warnings:
            answer.headers.add("Warning", f'299 - "{warning}"')
        return answer

    def _index_openapi(self) -> JsonObject:
        """Where the documents of OpenAPI are; a client asks for them without the path of its server."""
        paths = self._documents[OPENAPI]()["paths"]
        root = f"/{self.token}" if self.token else ""
        return {
            "paths": {name: {"serverRelativeURL": f"{root}{one['serverRelativeURL']}"} for name, one in paths.items()}
        }

    def _has(self, target: Target) -> bool:
        return self.api.find(target.kind, target.name, namespace=target.namespace) is not None

    def _print(self, request: web.Request, kind: Kind, found: JsonObject) -> JsonObject:
        """An object or a list as a table."""
        objects, metadata = found.get("items"), found["metadata"]
        if objects is None:
            objects, metadata = [found], {"resourceVersion": metadata["resourceVersion"]}
        include = request.query.get("includeObject", "")
        return build_table(kind, objects, metadata, now=self.api.now, include=include)

    def _review(self, body: JsonObject) -> JsonObject:
        """Answer a SelfSubjectAccessReview: all is allowed but what a fault forbids."""
        asked = (body.get("spec") or {}).get("resourceAttributes") or {}
        fields = {name: asked.get(name, "") for name in ("verb", "resource", "subresource", "namespace", "name")}
        allowed = self.faults.permits(Call(path="", **fields))
        return {**body, "metadata": {}, "status": {"allowed": allowed}}

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        events = watch(
            self.api,
            target.kind,
            _build_query(request, target),
            seconds=float(request.query.get("timeoutSeconds") or self.api.random.uniform(*WATCH_SECONDS)),
            bookmarks=_flag(request, "allowWatchBookmarks"),
            bookmark_period=self._bookmark_period,
            initial=_flag(request, "sendInitialEvents"),
        )
        is_table = wants_table(request.headers.get("Accept", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self.watches[id(request)] = request
        try:
            await response.prepare(request)
            async for event in events:
                if is_table and event["type"] in CHANGES:
                    event = {**event, "object": self._print(request, target.kind, event["object"])}  # noqa: PLW2901
                await response.write(msgspec.json.encode(event) + b"\n")
            await response.write_eof()
        except ConnectionError:
            pass  # the watcher went away: there is nobody left to tell
        finally:
            del self.watches[id(request)]
            await events.aclose()
        return response

    def stop(self) -> None:
        """End every watch and let go of whatever is frozen."""
        self.api.store.written.close()
        self.faults.clear()

    def break_watches(self) -> None:
        """Reset the connection of every watch."""
        for request in tuple(self.watches.values()):
            cut_connection(request)


def cut_connection(request: web.Request) -> None:
    """Reset the connection under a request: its client gets no further byte."""
    if request.transport is not None:
        request.transport.abort()


def _build_call(request: web.Request, target: Target | None) -> Call:
    verb = _METHODS.get(request.method, request.method.lower())
    agent = request.headers.get("User-Agent", "")
    if target is None:
        return Call(verb=verb, resource="", path=request.path, user_agent=agent)
    if verb == "get" and _flag(request, "watch"):
        verb = "watch"
    elif not target.name and verb in {"get", "delete"}:
        verb = "list" if verb == "get" else "deletecollection"
    return Call(
        verb=verb,
        resource=target.kind.plural,
        path=request.path,
        subresource=target.subresource,
        namespace=target.namespace,
        name=target.name,
        user_agent=agent,
        dry_run=_dry_run(request),
    )


def _refuse_foreign(request: web.Request) -> None:
    """Refuse what a web page can make its reader's browser send: pages can create pods and run code here otherwise.

    Every client of Kubernetes sends the address that it has connected to, and no Origin. A page that has made its own
    name resolve to this address sends that name as Host; over HTTPS it would need a certificate for it.
    """
    if "Origin" in request.headers:
        raise StatusError(403, "Forbidden", "requests of web pages (with the header Origin) are refused")
    try:
        host = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
        if host != "localhost" and not request.secure:
            ipaddress.ip_address(host)
    except ValueError as error:
        message = "the Host of a request must be localhost or an IP address, as in the kubeconfig of this server"
        raise StatusError(403, "Forbidden", message) from error


def _refuse_bad_name(name: str) -> None:
    if name in {".", ".."}:
        raise bad_request(f"Name parameter invalid: {json.dumps(name)}: may not be '{name}'")
    if "%" in name:
        raise bad_request(f"Name parameter invalid: {json.dumps(name)}: may not contain '%'")


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "") in {"1", "true", "True"}


def _build_query(request: web.Request, target: Target) -> Query:
    query = request.query
    limit = query.get("limit", "0")
    if not limit.isdecimal():
        raise bad_request(f'invalid limit "{limit}"')
    # A watch or list of one name is a collection with one member.
    selector = ",".join(
        filter(None, [query.get("fieldSelector", ""), f"metadata.name={target.name}" if target.name else ""])
    )
    return Query(
        namespace=target.namespace,
        field_selector=selector,
        label_selector=query.get("labelSelector", ""),
        limit=int(limit),
        token=query.get("continue", ""),
        version=query.get("resourceVersion", ""),
    )


async def _read_body(request: web.Request, verb: str) -> Any:
    if verb in {"get", "list"}:
        return None
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}") from error
    if verb == "delete" and not raw:
        return {}
    supported = (*patches.SUPPORTED, server_side_apply.CONTENT_TYPE) if verb == "patch" else _BODIES
    given = request.headers.get("Content-Type", "").partition(";")[0].strip()
    if given not in supported:
        raise unsupported_media_type(given, supported)
    if given == _PROTOBUF and verb == "delete":
        return {}  # its options have what is never needed here
    if given == _PROTOBUF:
        raise bad_request("bodies in protobuf are not read here: use kubectl apply -f FILE, which sends JSON")
    try:
        body = _decode(raw, may_be_yaml=given in _YAML)
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the object provided is unrecognized (must be of type JSON): {error}") from error
    if not isinstance(body, dict) and verb != "patch":
        raise bad_request("the object provided is unrecognized (must be a JSON object)")
    return body


def _decode(raw: bytes, *, may_be_yaml: bool) -> Any:
    """The value of a body. What kubectl sends as YAML is JSON, too, which is read much faster."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        if not may_be_yaml:
            raise
    return msgspec.to_builtins(msgspec.yaml.decode(raw))


def _require_kind(kind: Kind, body: JsonObject) -> None:
    """Only of kinds that are its own does the API server know what a request is for without being told."""
    if kind not in KINDS and not (body.get("kind") and body.get("apiVersion")):
        missing = "apiVersion" if body.get("kind") else "Kind"
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): Object '{missing}' is missing"
        )


def _check_fields(request: web.Request, target: Target, verb: str, body: Any) -> Sequence[str]:
    """What to warn of; raises a 400 StatusError when the writer asked for strictness."""
    mode = request.query.get("fieldValidation", "Warn")
    if verb not in {"create", "update"} or mode == "Ignore":
        return ()
    unknown = [f'unknown field "{path}"' for path in find_unknown_fields(target.kind, body)]
    if unknown and mode == "Strict":
        raise refuse_fields(target.kind.kind, "strict decoding error: " + ", ".join(unknown))
    return [text.replace('"', '\\"') for text in unknown]


def _get(api: Api, _request: web.Request, target: Target, _body: Any) -> JsonObject:
    return api.get(target.kind, target.name, namespace=target.namespace)


def _list(api: Api, request: web.Request, target: Target, _body: Any) -> JsonObject:
    page = api.list(target.kind, _build_query(request, target))
    metadata: JsonObject = {"resourceVersion": str(page.version)}
    if page.token:
        metadata["continue"] = page.token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    kind = target.kind
    return {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata, "items": page.items}


def _dry_run(request: web.Request) -> bool:
    return request.query.get("dryRun") == "All"


def _read_place(request: web.Request, target: Target) -> dict[str, Any]:
    """Where a write goes: what the verbs that change an object have in common."""
    return {"namespace": target.namespace, "subresource": target.subresource, "dry_run": _dry_run(request)}


def _create(api: Api, request: web.Request, target: Target, body: Any) -> JsonObject:
    if target.kind.namespaced and not target.namespace:
        raise method_not_allowed()
    return api.create(target.kind, body, namespace=target.namespace, dry_run=_dry_run(request))


def _bind(api: Api, _request: web.Request, target: Target, body: Any) -> JsonObject:
    node = (body.get("target") or {}).get("name")
    if not node:
        raise bad_request("a binding needs `target.name`, the node's name")
    api.bind(target.name, node, namespace=target.namespace)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _update(api: Api, request: web.Request, target: Target, body: Any) -> JsonObject:
    return api.update(target.kind, target.name, body, **_read_place(request, target))


def _patch(api: Api, request: web.Request, target: Target, body: Any) -> JsonObject:
    if request.content_type == server_side_apply.CONTENT_TYPE:
        return _apply(api, request, target, body)
    place = _read_place(request, target)
    return api.patch(target.kind, target.name, body, content_type=request.content_type, **place)


def _apply(api: Api, request: web.Request, target: Target, body: Any) -> JsonObject:
    manager = request.query.get("fieldManager", "")
    if not manager:
        why = 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
        raise StatusError(422, "Invalid", why)
    if not isinstance(body, dict):
        raise bad_request("the applied configuration is not an object")
    force = request.query.get("force") == "true"
    return api.apply(target.kind, target.name, body, manager=manager, force=force, **_read_place(request, target))


def _delete(api: Api, request: web.Request, target: Target, body: Any) -> JsonObject:
    options = dict(body)
    if request.query.get("gracePeriodSeconds", "").isdecimal():
        options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
    dry_run = _dry_run(request) or body.get("dryRun") == ["All"]
    obj = api.delete(target.kind, target.name, options, namespace=target.namespace, dry_run=dry_run)
    gone = dry_run or api.find(target.kind, target.name, namespace=target.namespace) is None
    if target.kind.returns_deleted or not gone:
        return obj
    kind, metadata = target.kind, obj["metadata"]
    details = {"name": metadata["name"], "group": kind.group, "kind": kind.plural, "uid": metadata["uid"]}
    details = {key: value for key, value in details.items() if value}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


_BY_VERB = {
    ("get", True): _get,
    ("list", False): _list,
    ("create", False): _create,
    ("create", True): _bind,
    ("update", True): _update,
    ("patch", True): _patch,
    ("delete", True): _delete,
}


def _build_answer(body: JsonObject, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body) + b"\n", status=status, content_type="application/json")


def _build_refusal(error: StatusError) -> web.Response:
    response = _build_answer(error.build_status(), status=error.code)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response
