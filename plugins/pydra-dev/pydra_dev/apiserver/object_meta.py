"""What the API server itself writes into an object's metadata, and what it refuses there. Pure.

Source: apiserver `pkg/registry/rest/{create,update,delete}.go`, `pkg/storage/names` (Kubernetes 1.36).
"""

from __future__ import annotations

import uuid
from datetime import datetime
from random import Random

from pydra_dev.api.errors import (
    JsonObject,
    bad_request,
    conflict,
    forbidden,
    internal_error,
    invalid,
    invalid_object,
    required,
)
from pydra_dev.api.kinds import Kind
from pydra_dev.apiserver.name_and_list_validation import Errors, check_label_key, check_label_value

SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""What a real server builds generated names from: no vowels, nothing that looks like another letter."""
SUFFIX_LENGTH = 5
MAX_GENERATED_BASE = 58
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as metadata has it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def build_suffix(random: Random) -> str:
    """Five random letters."""
    return "".join(random.choices(SUFFIX_LETTERS, k=SUFFIX_LENGTH))


def build_uid(random: Random) -> str:
    """A version 4 uuid."""
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def begin_metadata(kind: Kind, obj: JsonObject, *, namespace: str, now: str, random: Random) -> JsonObject:
    """A new object with its kind, name, uid and creation time filled in; raises a 400 or 422 StatusError."""
    given = obj.get("metadata") or {}
    if given.get("resourceVersion"):
        raise internal_error("resourceVersion should not be set on objects to be created")
    if kind.namespaced and given.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    name = given.get("name") or ""
    if not name and given.get("generateName"):
        name = str(given["generateName"])[:MAX_GENERATED_BASE] + build_suffix(random)
    if not name:
        raise invalid_object(kind, "", [required("metadata.name", "name or generateName is required")])
    kept = {key: value for key, value in given.items() if key not in {*_SERVER_OWNED, "managedFields", "selfLink"}}
    metadata = {**kept, "name": name, "uid": build_uid(random), "creationTimestamp": now}
    if kind.namespaced:
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    if kind.generation:
        metadata["generation"] = 1
    _refuse_bad_metadata(kind, metadata)
    return {**obj, "kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}


def carry_metadata(kind: Kind, obj: JsonObject, old: JsonObject) -> JsonObject:
    """An updated object with what only the server may write taken from the stored one.

    Raises a 409 StatusError when the writer's resource version or uid is not the stored one's.
    """
    given, stored = obj.get("metadata") or {}, old["metadata"]
    name = stored["name"]
    if given.get("uid", stored["uid"]) != stored["uid"]:
        why = f"Precondition failed: UID in precondition: {given['uid']}, UID in object meta: {stored['uid']}"
        raise conflict(kind, name, why)
    version = given.get("resourceVersion") or stored["resourceVersion"]
    if version != stored["resourceVersion"]:
        raise conflict(kind, name)
    kept = {key: value for key, value in given.items() if key not in {*_SERVER_OWNED, "managedFields", "selfLink"}}
    owned = {key: stored[key] for key in _SERVER_OWNED if key in stored}
    metadata = {**kept, **owned, "name": name, "resourceVersion": stored["resourceVersion"]}
    for empty in ("labels", "annotations", "finalizers", "ownerReferences"):
        if not metadata.get(empty, True):
            del metadata[empty]
    if kind.namespaced:
        metadata["namespace"] = stored["namespace"]
    _refuse_bad_metadata(kind, metadata, stored)
    return {**obj, "kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}


def _refuse_bad_metadata(kind: Kind, metadata: JsonObject, old: JsonObject | None = None) -> None:
    errors = list(_check_metadata(metadata))
    if old is not None and "deletionTimestamp" in old:
        added = sorted(set(metadata.get("finalizers") or ()) - set(old.get("finalizers") or ()))
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            detail = "no new finalizers can be added if the object is being deleted, found new finalizers "
            errors.append(forbidden("metadata.finalizers", f"{detail}[]string{{{listed}}}"))
    if errors:
        raise invalid_object(kind, metadata["name"], errors)


def _check_metadata(metadata: JsonObject) -> Errors:
    for key, value in (metadata.get("labels") or {}).items():
        yield from check_label_key("metadata.labels", key)
        yield from check_label_value("metadata.labels", str(value))
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        path = f"metadata.finalizers[{index}]"
        yield from check_label_key(path, finalizer)
        if "/" not in finalizer and finalizer not in {"orphan", "foregroundDeletion", "kubernetes"}:
            yield invalid(path, finalizer, "name is neither a standard finalizer name nor is it fully qualified")
    for owner in metadata.get("ownerReferences") or ():
        yield from _check_owner("metadata.ownerReferences", owner)


def _check_owner(path: str, owner: JsonObject) -> Errors:
    for field in ("apiVersion", "kind", "name", "uid"):
        if not owner.get(field):
            yield invalid(f"{path}.{field}", "", f"{'version ' if field == 'apiVersion' else ''}must not be empty")


def mark_deleted(obj: JsonObject, *, now: str, grace: int) -> JsonObject:
    """The object with the marks of a deletion that something still has to finish."""
    metadata = {**obj["metadata"], "deletionTimestamp": now, "deletionGracePeriodSeconds": grace}
    if metadata.get("generation"):
        metadata["generation"] += 1
    return {**obj, "metadata": metadata}


def refuse_stale_delete(kind: Kind, obj: JsonObject, preconditions: JsonObject) -> None:
    """Raises a 409 StatusError when the object is not the one that the deleter saw."""
    metadata = obj["metadata"]
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    if uid and uid != metadata["uid"]:
        raise conflict(
            kind,
            metadata["name"],
            f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']}). The object "
            "might have been deleted and then recreated",
        )
    if version and version != metadata["resourceVersion"]:
        raise conflict(
            kind,
            metadata["name"],
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            f"({metadata['resourceVersion']}). The object might have been modified",
        )
