"""Carries out requests, one after the other; labels of nodes, of which there may be hundreds, side by side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import anyio

from pydra.controllers import (
    NODES,
    Cache,
    Conflict,
    JsonObject,
    KubeClient,
    KubeError,
    LostLease,
    NotFound,
    Resource,
    object_key,
)
from pydra_nvidia.compute_domain.controller.object_fields import get_label
from pydra_nvidia.compute_domain.controller.requests import (
    Create,
    Delete,
    LabelNode,
    Patch,
    Replace,
    Request,
    UnlabelNode,
    is_status,
)
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL

log = logging.getLogger(__name__)

AT_ONCE = 16


def name_manager(domain: str) -> str:
    """The owner of the label of a domain's nodes: one for each, so that no domain gets a node that another has."""
    return f"pydra-compute-domain-{domain}"


def build_label(request: LabelNode) -> JsonObject:
    """What is applied to a node: the uid keeps one that is gone from being created."""
    metadata = {"name": request.node, "uid": request.uid, "labels": {DOMAIN_LABEL: request.domain}}
    return {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": metadata}


class Writer:
    """Writes to the API server, and tells the caches what is stored now."""

    def __init__(
        self, client: KubeClient, caches: Mapping[Resource, Cache], may_act: Callable[[], bool] = lambda: True
    ) -> None:
        self._client = client
        self._caches = caches
        self._may_act = may_act

    async def carry_out(self, requests: Sequence[Request]) -> Sequence[KubeError]:
        """Carry out all, in order; return why some failed. What is to be changed and is gone is passed over.

        Those after one that failed are sent all the same, unless that one `comes_first`; but not a status, which would
        say that all is done. Raises LostLease, before a request that another instance may be sending by now.
        """
        errors = list[KubeError]()
        limit = anyio.CapacityLimiter(AT_ONCE)
        for is_label, group in groupby(requests, key=lambda one: isinstance(one, LabelNode | UnlabelNode)):
            if is_label:
                async with anyio.create_task_group() as tasks:
                    for one in group:
                        tasks.start_soon(self._send_aside, one, limit, errors)
                continue
            for one in group:
                if errors and is_status(one):
                    continue
                try:
                    await self._send(one)
                except KubeError as error:
                    errors.append(error)
                    if isinstance(one, Patch) and one.comes_first:
                        return errors
        return errors

    async def _send_aside(self, request: Request, limit: anyio.CapacityLimiter, errors: list[KubeError]) -> None:
        async with limit:
            try:
                await self._send(request)
            except KubeError as error:
                errors.append(error)

    async def _send(self, request: Request) -> None:
        if not self._may_act():
            raise LostLease("the Lease was not renewed in time")
        log.debug("%r", request)
        try:
            if isinstance(request, LabelNode):
                await self._label(request)
            elif isinstance(request, UnlabelNode):
                metadata = {"labels": {DOMAIN_LABEL: None}, "resourceVersion": request.version}
                self._remember(NODES, await self._client.patch(NODES, request.node, {"metadata": metadata}))
            else:
                await self._send_plain(request)
        except NotFound as error:
            if isinstance(request, Create) or not error.is_of_object:
                raise
            log.info("passed over, because the object is gone: %s", error)

    async def _send_plain(self, request: Create | Replace | Patch | Delete) -> None:
        client = self._client
        if isinstance(request, Delete):
            await client.delete(request.resource, request.name, namespace=request.namespace, uid=request.uid)
            return
        if isinstance(request, Patch):
            stored = await client.patch(
                request.resource,
                request.name,
                request.body,
                namespace=request.namespace,
                subresource=request.subresource,
            )
        else:
            namespace, name = object_key(request.body)
            if isinstance(request, Create):
                stored = await client.create(request.resource, request.body, namespace=namespace)
            else:
                stored = await client.replace(request.resource, name, request.body, namespace=namespace)
        self._remember(request.resource, stored)

    async def _label(self, request: LabelNode) -> None:
        body, manager = build_label(request), name_manager(request.domain)
        try:
            node = await self._client.apply(NODES, request.node, body, manager=manager, force=False)
        except Conflict:  # somebody else labelled it meanwhile, or it is gone
            node = await self._client.get(NODES, request.node, deadline=0)
            if get_label(node) is None:
                raise
        self._remember(NODES, node)

    def _remember(self, resource: Resource, stored: JsonObject) -> None:
        self._caches[resource].remember(stored)
