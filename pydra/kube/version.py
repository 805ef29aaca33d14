"""Checks that pydra can work with this cluster: Kubernetes 1.34 or later, serving resource.k8s.io/v1."""

from __future__ import annotations

import logging
import re

import msgspec

from pydra.errors import NotFound, Unsupported
from pydra.kube.api_resources import RESOURCE_GROUP, JsonObject
from pydra.kube.client import KubeClient

log = logging.getLogger(__name__)

OLDEST = (1, 34)
NEWEST_TESTED = (1, 37)


class ServerVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's Kubernetes version; `text` as it reports it, such as `v1.36.1-gke.100`."""

    major: int
    minor: int
    text: str

    def __str__(self) -> str:
        return self.text


def parse_version(document: JsonObject) -> ServerVersion:
    """From the `/version` document. Vendors write minors such as `34+`. Raises Unsupported for anything else."""
    text = str(document.get("gitVersion") or "")
    match = re.match(r"v?(\d+)\.(\d+)", text)
    numbers = match.groups() if match else (str(document.get("major", "")), str(document.get("minor", "")).rstrip("+"))
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise Unsupported(f"the API server does not report its Kubernetes version: /version has {document!r}")
    return ServerVersion(major=int(numbers[0]), minor=int(numbers[1]), text=text or ".".join(numbers))


async def check_server(client: KubeClient) -> ServerVersion:
    """Return the server's version. Raises Unsupported, with advice for the admin, if it is not supported."""
    version = parse_version(await client.fetch("/version"))
    if (version.major, version.minor) < OLDEST:
        raise Unsupported(
            f"this cluster runs Kubernetes {version}; pydra needs 1.{OLDEST[1]} or later, the first that serves "
            f"{RESOURCE_GROUP}/v1 (v1beta1 and v1beta2 are not enough): upgrade the control plane and the nodes"
        )
    try:
        await client.fetch(f"/apis/{RESOURCE_GROUP}/v1")
    except NotFound as error:
        raise Unsupported(
            f"this cluster (Kubernetes {version}) does not serve {RESOURCE_GROUP}/v1, "
            f"{await _describe_group(client)}: remove {RESOURCE_GROUP}/v1=false from the API server's "
            "--runtime-config, and DynamicResourceAllocation=false from its --feature-gates",
            status=error.status,
            cause=error.cause,
        ) from error
    if (version.major, version.minor) > NEWEST_TESTED:
        log.warning("Kubernetes %s is newer than 1.%d, the newest that pydra is tested with", version, NEWEST_TESTED[1])
    return version


async def _describe_group(client: KubeClient) -> str:
    try:
        group = await client.fetch(f"/apis/{RESOURCE_GROUP}")
    except NotFound:
        return "nor any other version of it"
    versions = group.get("versions")
    found = versions if isinstance(versions, list) else ()
    served = ", ".join(str(one.get("version")) for one in found if isinstance(one, dict))
    return f"only {served}, which pydra does not speak" if served else "nor any other version of it"
