"""The controller of namespaces: service accounts, and what is in a namespace that is deleted."""

from __future__ import annotations

from pydra_dev.api.kinds import NAMESPACES, SERVICE_ACCOUNTS
from pydra_dev.apiserver.verbs import Api, Query
from pydra_dev.controllers.garbage_collection import list_stored_kinds


def step_namespaces(api: Api) -> None:
    """Give each namespace its service account; empty those that are being deleted, then remove them."""
    for namespace in api.list(NAMESPACES).items:
        name = namespace["metadata"]["name"]
        if "deletionTimestamp" not in namespace["metadata"]:
            if api.find(SERVICE_ACCOUNTS, "default", namespace=name) is None:
                api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)
            continue
        content = [
            (kind, obj)
            for kind in list_stored_kinds(api)
            if kind.namespaced
            for obj in api.list(kind, Query(namespace=name)).items
        ]
        for kind, obj in content:
            if "deletionTimestamp" not in obj["metadata"]:
                api.delete_object(kind, obj)
        if not content:
            api.remove_namespace(name)
