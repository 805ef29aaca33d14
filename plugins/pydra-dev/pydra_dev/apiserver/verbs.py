"""The API's verbs, without HTTP: what a request does to the store, and what a watch sends.

Each call but `watch` is synchronous and one atomic step. `Api` is what the HTTP handlers and the controllers share;
objects that it returns are shared too and must not be changed.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any

import anyio
import msgspec

from pydra_dev.api.errors import (
    JsonObject,
    StatusError,
    already_exists,
    bad_request,
    expired,
    forbidden_request,
    internal_error,
    invalid,
    invalid_object,
    not_found,
    too_large_version,
)
from pydra_dev.api.feature_gates import Gates
from pydra_dev.api.kinds import KINDS, NAMESPACES, NEW_EVENTS, PODS, Kind
from pydra_dev.api.schema import refuse_types
from pydra_dev.apiserver import server_side_apply
from pydra_dev.apiserver.core_rules import convert_event, store_form
from pydra_dev.apiserver.custom_kinds import CustomKind, admit_custom
from pydra_dev.apiserver.field_label_selectors import Matcher, build_matcher
from pydra_dev.apiserver.object_meta import (
    begin_metadata,
    carry_metadata,
    format_time,
    mark_deleted,
    refuse_stale_delete,
)
from pydra_dev.apiserver.patches import apply_patch
from pydra_dev.apiserver.registry_strategy import Context, admit_create, admit_update
from pydra_dev.apiserver.store import Change, HistoryLostError, Store

_LATE_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What a list or watch asks for."""

    namespace: str = ""
    field_selector: str = ""
    label_selector: str = ""
    limit: int = 0
    token: str = ""
    version: str = ""


_EVERYTHING = Query()


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A list, or part of one: `token` is where the next part begins."""

    items: tuple[JsonObject, ...]
    version: int
    token: str = ""
    remaining: int | None = None


class _Position(msgspec.Struct, frozen=True):
    version: int
    namespace: str
    name: str


class Api:
    """The verbs over one store, by the rules of release 1.`minor`.

    `clock` gives the time in UTC; `random` makes uids and generated names; `custom` kinds are served beside the others.
    """

    def __init__(
        self,
        *,
        store: Store,
        minor: int,
        gates: Gates,
        clock: Callable[[], datetime],
        random: Random,
        custom: Sequence[CustomKind] = (),
    ) -> None:
        self.store = store
        self.minor = minor
        self.gates = gates
        self.random = random
        self.kinds = (*KINDS, *(one.kind for one in custom))
        self._custom = {one.kind: one for one in custom}
        self._clock = clock
        self._applied: dict[str, dict[tuple[str, str], JsonObject]] = {}
        """What each manager applied last, by the object's uid; for a subresource apart."""

    @property
    def now(self) -> str:
        """The time as metadata has it."""
        return format_time(self._clock())

    def find(self, kind: Kind, name: str, *, namespace: str = "") -> JsonObject | None:
        """The object, or None."""
        found = self.store.get(kind.storage, (namespace if kind.namespaced else "", name))
        return present(kind, found) if found is not None else None

    def get(self, kind: Kind, name: str, *, namespace: str = "") -> JsonObject:
        """The object; raises a 404 StatusError."""
        found = self.find(kind, name, namespace=namespace)
        if found is None:
            raise not_found(kind, name)
        return found

    def list(self, kind: Kind, query: Query = _EVERYTHING) -> Page:
        """The objects that a query asks for; raises 400, 410 and 504 StatusErrors."""
        matches = build_matcher(kind, query.field_selector, query.label_selector)
        position = _parse_token(query.token) if query.token else None
        self._refuse_future(query)
        version = position.version if position is not None else None
        try:
            objects = self.store.list(kind.storage, namespace=query.namespace, version=version)
        except HistoryLostError as error:
            assert position is not None  # a list without a token is of now
            token = _build_token(_Position(self.store.version, position.namespace, position.name))
            raise expired(_LATE_CONTINUE, continue_token=token) from error
        shown = self.store.version if version is None else version
        if position is not None:
            after = (position.namespace, position.name)
            objects = tuple(obj for obj in objects if _key(obj) > after)
        chosen = [obj for obj in objects if matches(obj)]
        page, rest = (chosen[: query.limit], chosen[query.limit :]) if query.limit else (chosen, [])
        token = _build_token(_Position(shown, *_key(page[-1]))) if rest else ""
        counted = len(rest) if rest and not (query.field_selector or query.label_selector) else None
        items = tuple(present(kind, obj) for obj in page)
        return Page(items=items, version=shown, token=token, remaining=counted)

    def _refuse_future(self, query: Query) -> None:
        asked = parse_version(query.version or "0")
        if asked > self.store.version:
            raise too_large_version(asked, self.store.version)

    def create(self, kind: Kind, obj: JsonObject, *, namespace: str = "", dry_run: bool = False) -> JsonObject:
        """Admit and store a new object; raises 400, 403, 404, 409 and 422 StatusErrors."""
        _refuse_other_kind(kind, obj)
        refuse_types(kind.kind, obj)
        labels = self._namespace_labels(kind, obj, namespace)
        begun = begin_metadata(kind, obj, namespace=namespace, now=self.now, random=self.random)
        body = admit_create(kind, begun, self._context(labels))
        if custom := self._custom.get(kind):
            body = admit_custom(custom, body, None)
        key = _key(body)
        if self.store.get(kind.storage, key) is not None:
            raise already_exists(kind, key[1])
        return present(kind, body if dry_run else self.store.put(kind.storage, key, body))

    def _namespace_labels(self, kind: Kind, obj: JsonObject, namespace: str) -> Mapping[str, str]:
        if not kind.namespaced:
            return {}
        home = self.get(NAMESPACES, namespace)
        if "deletionTimestamp" in home["metadata"]:
            name = str((obj.get("metadata") or {}).get("name", ""))
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden_request(kind, name, why)
        labels: Mapping[str, str] = home["metadata"].get("labels") or {}
        return labels

    def _context(self, labels: Mapping[str, str]) -> Context:
        return Context(minor=self.minor, gates=self.gates, now=self.now, namespace_labels=labels)

    def update(
        self,
        kind: Kind,
        name: str,
        obj: JsonObject,
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> JsonObject:
        """Admit and store a changed object; raises 400, 404, 409 and 422 StatusErrors.

        An update that changes nothing is not a write. One that takes the last finalizer off an
        object that is being deleted deletes it.
        """
        _refuse_other_kind(kind, obj)
        refuse_types(kind.kind, obj)
        given = (obj.get("metadata") or {}).get("name", name)
        if given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        old = self.get(kind, name, namespace=namespace)
        carried = carry_metadata(kind, obj, old)
        home = self.find(NAMESPACES, namespace) if kind.namespaced else None
        context = self._context(home["metadata"].get("labels") or {} if home else {})
        body = admit_update(kind, carried, old, context, status=subresource == "status")
        if custom := self._custom.get(kind):
            body = admit_custom(custom, body, old)
        if kind == NEW_EVENTS:
            body, old = store_form(body), store_form(old)
        if body == old or dry_run:
            return present(kind, body)
        if kind.generation and _counted(kind, body) != _counted(kind, old):
            generation = old["metadata"].get("generation", 0) + 1
            body = {**body, "metadata": {**body["metadata"], "generation": generation}}
        return present(kind, self._store_or_finish(kind, body))

    def _store_or_finish(self, kind: Kind, body: JsonObject) -> JsonObject:
        metadata = body["metadata"]
        finished = not metadata.get("finalizers") and metadata.get("deletionGracePeriodSeconds", 0) == 0
        stored = self.store.put(kind.storage, _key(body), body)
        if "deletionTimestamp" in metadata and finished and kind != NAMESPACES:
            return self.store.remove(kind.storage, _key(body))
        return stored

    def patch(
        self,
        kind: Kind,
        name: str,
        patch: Any,
        *,
        content_type: str,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> JsonObject:
        """Patch an object as it is now; a resource version in the patch makes it conditional."""
        patched = apply_patch(content_type, self.get(kind, name, namespace=namespace), patch)
        return self.update(kind, name, patched, namespace=namespace, subresource=subresource, dry_run=dry_run)

    def apply(
        self,
        kind: Kind,
        name: str,
        applied: JsonObject,
        *,
        manager: str,
        force: bool = False,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> JsonObject:
        """Apply the manager's fields, and create the object if it is not there; raises what both do, and 409."""
        live = self.find(kind, name, namespace=namespace)
        given = (applied.get("metadata") or {}).get("uid")
        if live and given and given != live["metadata"]["uid"]:
            raise invalid_object(kind, name, [invalid("metadata.uid", given, "field is immutable")])
        if live is None:
            if subresource:
                raise not_found(kind, name)
            if given:
                why = f"uid mismatch: the provided object specified uid {given}, and no existing object was found"
                raise StatusError(409, "Conflict", why)
            done = self.create(kind, applied, namespace=namespace, dry_run=dry_run)
            live = {}
        uid = live["metadata"]["uid"] if live else done["metadata"]["uid"]
        managers = self._applied.setdefault(uid, {}) if not dry_run else dict(self._applied.get(uid, {}))
        mine = (manager, subresource)
        others = {who: what for who, what in managers.items() if who != mine}
        if live:
            named = {who: what for (who, _), what in others.items()}
            refused = server_side_apply.find_conflict(live, applied, managers.get(mine, {}), named)
            if refused is not None and not force:
                raise refused
            merged = server_side_apply.apply(live, applied, managers.get(mine, {}), others.values())
            done = self.update(kind, name, merged, namespace=namespace, subresource=subresource, dry_run=dry_run)
        managers[mine] = applied
        return done

    def bind(self, name: str, node: str, *, namespace: str) -> None:
        """Give a pod its node, once; raises 404 and 409 StatusErrors."""
        pod = self.get(PODS, name, namespace=namespace)
        if pod["spec"].get("nodeName"):
            bound = pod["spec"]["nodeName"]
            raise already_exists(PODS, f"{name} is already assigned to node {bound}")
        body = {**pod, "spec": {**pod["spec"], "nodeName": node}}
        self.store.put(PODS.storage, _key(body), body)

    def delete(
        self, kind: Kind, name: str, options: JsonObject | None = None, *, namespace: str = "", dry_run: bool = False
    ) -> JsonObject:
        """Delete an object, or begin to; returns it as it is then. Raises 404 and 409 StatusErrors.

        It goes at once when it has no finalizers and, for a pod, no grace period to wait for.
        """
        options = options or {}
        obj = store_form(self.get(kind, name, namespace=namespace))
        refuse_stale_delete(kind, obj, options.get("preconditions") or {})
        if dry_run:
            return obj
        grace = _grace_period(kind, obj, options)
        held = bool(obj["metadata"].get("finalizers")) or kind == NAMESPACES
        if not grace and not held:
            gone = self.store.remove(kind.storage, _key(obj))
            return mark_deleted(gone, now=self.now, grace=0) if kind == PODS else gone
        left = obj["metadata"].get("deletionGracePeriodSeconds")
        if "deletionTimestamp" in obj["metadata"] and (left is None or grace >= left):
            return obj
        marked = mark_deleted(obj, now=obj["metadata"].get("deletionTimestamp", self.now), grace=grace)
        if kind == NAMESPACES:
            marked = {**marked, "status": {**marked.get("status", {}), "phase": "Terminating"}}
        return self.store.put(kind.storage, _key(obj), marked)

    def write_status(self, kind: Kind, obj: JsonObject, status: JsonObject) -> JsonObject:
        """Give the object another status; raises 404 and 422 StatusErrors."""
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        current = self.get(kind, name, namespace=namespace)
        return self.update(kind, name, {**current, "status": status}, namespace=namespace, subresource="status")

    def write_finalizers(self, kind: Kind, obj: JsonObject, finalizers: Sequence[str]) -> JsonObject:
        """Give the object, as it is now, other finalizers; raises 404, 409 and 422 StatusErrors."""
        metadata = {**obj["metadata"], "finalizers": list(finalizers)}
        body = {**obj, "metadata": metadata}
        return self.update(kind, metadata["name"], body, namespace=metadata.get("namespace", ""))

    def delete_object(self, kind: Kind, obj: JsonObject, options: JsonObject | None = None) -> None:
        """Delete an object, or begin to; raises what `delete` does."""
        self.delete(kind, obj["metadata"]["name"], options, namespace=obj["metadata"].get("namespace", ""))

    def remove_namespace(self, name: str) -> None:
        """Finish the deletion of a namespace whose content is gone."""
        self.store.remove(NAMESPACES.storage, ("", name))


def _grace_period(kind: Kind, obj: JsonObject, options: JsonObject) -> int:
    if kind != PODS or not obj["spec"].get("nodeName") or obj["status"].get("phase") in {"Succeeded", "Failed"}:
        return 0
    grace = options.get("gracePeriodSeconds")
    return int(obj["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace)


def _key(obj: JsonObject) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def present(kind: Kind, obj: JsonObject) -> JsonObject:
    """A stored object as this version of its kind shows it."""
    return convert_event(obj, api_version=kind.api_version) if kind == NEW_EVENTS else obj


def _counted(kind: Kind, obj: JsonObject) -> Any:
    """What a change of counts as another generation: without a status of its own, all but the metadata."""
    if "spec" in obj or kind.status:
        return obj.get("spec")
    return {key: value for key, value in obj.items() if key != "metadata"}


def _refuse_other_kind(kind: Kind, obj: JsonObject) -> None:
    found_kind, found_version = obj.get("kind", kind.kind), obj.get("apiVersion", kind.api_version)
    if (found_kind, found_version) != (kind.kind, kind.api_version):
        raise bad_request(
            f"{found_kind} in version {found_version!r} cannot be handled as a {kind.kind} of {kind.api_version}"
        )


def parse_version(text: str) -> int:
    """A resource version as a number; raises a 500 StatusError, as a real server answers it."""
    if not text.isdecimal():
        raise internal_error(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


def _build_token(position: _Position) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode()


def _parse_token(token: str) -> _Position:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(token), type=_Position)
    except ValueError as error:
        raise bad_request(f"continue key is not valid: {error}") from error


LAST_BOOKMARK = 2.0
"""Seconds before its end at which a watch gets a bookmark, as a real server gives it."""


def select_event(change: Change, kind: Kind, namespace: str, matches: Matcher) -> tuple[str, JsonObject] | None:
    """What a watch with these selectors sees of a change; None when nothing.

    An object that starts or stops matching appears or disappears for the watcher.
    """
    if change.collection != kind.storage or (namespace and change.key[0] != namespace):
        return None
    before = change.previous is not None and matches(change.previous)
    now = change.type != "DELETED" and matches(change.object)
    if now:
        return ("MODIFIED" if before else "ADDED"), change.object
    if not before or change.previous is None:
        return None
    version = {"resourceVersion": str(change.version)}
    last = change.object if change.type == "DELETED" else change.previous
    return "DELETED", {**last, "metadata": {**last["metadata"], **version}}


def watch(
    api: Api, kind: Kind, query: Query, *, seconds: float, bookmarks: bool, bookmark_period: float, initial: bool
) -> AsyncGenerator[JsonObject, None]:
    """The events of a collection as JSON values, until the seconds are over, the history is lost or the server stops.

    `initial`: what is there already comes first, also for a watch that resumes, with a bookmark behind it.
    Raises a 400 StatusError at once for what cannot be followed.
    """
    matches = build_matcher(kind, query.field_selector, query.label_selector)
    after = parse_version(query.version or "0")

    async def follow() -> AsyncGenerator[JsonObject, None]:
        nonlocal after
        written, deadline = api.store.written, time.monotonic() + seconds
        bookmark_at = min(time.monotonic() + bookmark_period, deadline - LAST_BOOKMARK) if bookmarks else math.inf
        if initial or not after:
            after = api.store.version
            for obj in filter(matches, api.store.list(kind.storage, namespace=query.namespace)):
                yield _event("ADDED", kind, obj)
            if initial and bookmarks:
                yield _bookmark(kind, after, initial=True)
        while not written.closed:
            wakeup = written.event
            try:
                changes = tuple(api.store.changes(after))
            except HistoryLostError as error:
                yield {"type": "ERROR", "object": expired(str(error)).build_status()}
                return
            for change in changes:
                after = change.version
                seen = select_event(change, kind, query.namespace, matches)
                if seen is not None:
                    yield _event(seen[0], kind, seen[1])
            now = time.monotonic()
            if now >= deadline:
                return
            if now >= bookmark_at:
                yield _bookmark(kind, after)
                bookmark_at = now + bookmark_period
            if not changes:
                with anyio.move_on_after(max(0.0, min(deadline, bookmark_at) - now)):
                    await wakeup.wait()

    return follow()


def _event(type_: str, kind: Kind, obj: JsonObject) -> JsonObject:
    return {"type": type_, "object": present(kind, obj)}


def _bookmark(kind: Kind, version: int, *, initial: bool = False) -> JsonObject:
    metadata: JsonObject = {"resourceVersion": str(version)}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}}
