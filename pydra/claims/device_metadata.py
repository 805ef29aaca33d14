"""Builds the device metadata files of a claim (KEP-5304): which devices its containers have, with their attributes.

For each request there is a JSON file with the attributes, and a CDI spec that mounts it into the request's containers:

    PLUGIN_DIRECTORY/dra-device-metadata/NAMESPACE_CLAIM/REQUEST/metadata.json
    CDI_DIRECTORY/DRIVER_metadata_UID_REQUEST.json

Names, paths and JSON are those of Kubernetes' Go library, which is what containers read them with. Where
NAMESPACE_CLAIM is too long for the name of a directory, it is cut and ends with a digest.
Source: k8s.io/dynamic-resource-allocation, kubeletplugin and api/metadata, of Kubernetes 1.36 and 1.37.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.api_name_formats import is_label
from pydra.cdi.device_metadata_files import MetadataPaths
from pydra.cdi.spec import cdi_vendor
from pydra.checkpoint.record import Metadata, Record, Stage
from pydra.claim import Claim, ClaimRef, ContainerDevice, PreparedDevice
from pydra.claims.allocation import base_request
from pydra.claims.device_status import StatusIndex, build_network, find_status
from pydra.claims.device_use import Published, PublishedPool
from pydra.devices import DeviceStatus, NetworkData
from pydra.errors import ClaimError, ContractError
from pydra.inventory.api_rules import ATTRIBUTES_AND_CAPACITIES
from pydra.slices.build import build_attributes

VERSIONS = ("v1alpha1", "v1beta1")
"""Of metadata.resource.k8s.io, oldest first: readers of Kubernetes 1.36 know the first, those of 1.37 both."""

_GROUP = "metadata.resource.k8s.io"
_IN_CONTAINER = "/var/run/kubernetes.io/dra-device-attributes"
_CDI_VERSION = "0.5.0"
"""The first in which the name of a CDI device may begin with a digit, as a claim's uid does."""
_POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


def parse_pod_claim_name(resource_claim: Mapping[str, Any], ref: ClaimRef) -> str:
    """Return the name that the claim has in its pod's spec; empty for a claim that was not made from a template.

    Raises:
        ClaimError: the annotation is not a DNS label. It becomes part of a path in the container.
    """
    annotations = (resource_claim.get("metadata") or {}).get("annotations") or {}
    name = annotations.get(_POD_CLAIM_NAME) or ""
    if name and not (isinstance(name, str) and is_label(name)):
        raise ClaimError(
            f"claim {ref}: the annotation {_POD_CLAIM_NAME} is {ascii(name)[:80]}; it must be a DNS label, since the "
            "path of the claim's metadata files has it; Kubernetes sets it on claims that are made from a template"
        )
    return name


def build_metadata(claim: Claim, published: Published, *, pod_claim_name: str) -> Metadata:
    """Build what the claim's record says about its metadata files, from what this node publishes."""
    attributes = {
        _key(device.pool, device.device): found.attributes
        for device in claim.devices
        if (found := published.get(device.pool, PublishedPool()).devices.get(device.device)) is not None
    }
    return Metadata(pod_claim_name=pod_claim_name, attributes=attributes)


def renew_metadata(record: Record, latest: StatusIndex) -> Record | None:
    """Return the record with the next generation of its metadata, if the network data of a device has changed."""
    if record.metadata is None or record.stage is not Stage.COMPLETED:
        return None
    found = tuple(_network_data(find_status(record.claim.uid, one, latest)) for one in record.prepared)
    if found == _list_network_data(record, record.metadata):
        return None
    generation = record.metadata.generation + 1
    return replace(record, metadata=replace(record.metadata, generation=generation, network_data=found))


def begin_again(metadata: Metadata) -> Metadata:
    """Return the metadata of a claim that was prepared again: what changed after the last time does not count."""
    if not metadata.network_data:
        return metadata
    return replace(metadata, generation=metadata.generation + 1, network_data=())


def build_metadata_files(record: Record, paths: MetadataPaths) -> dict[str, bytes]:
    """Return the content of the claim's metadata files by path: of each request the JSON, then the CDI spec.

    Raises:
        ContractError: a device has too many attributes with those that the backend added.
    """
    claim, metadata, driver = record.claim, record.metadata, paths.driver
    if metadata is None:
        return {}
    requests: dict[str, list[dict[str, Any]]] = {}
    for device, network in zip(record.prepared, _list_network_data(record, metadata), strict=True):
        requests.setdefault(device.request, []).append(_build_device(device, network, metadata, driver))
    if metadata.pod_claim_name:
        directory = f"{_IN_CONTAINER}/resourceclaimtemplates/{metadata.pod_claim_name}"
    else:
        directory = f"{_IN_CONTAINER}/resourceclaims/{claim.name}"
    files: dict[str, bytes] = {}
    for request, devices in requests.items():
        base = base_request(request)
        path = paths.file(claim, base)
        document = {
            "metadata": {
                "name": claim.name,
                "namespace": claim.namespace,
                "uid": claim.uid,
                "generation": metadata.generation,
            },
            **({"podClaimName": metadata.pod_claim_name} if metadata.pod_claim_name else {}),
            "requests": [{"name": request, "devices": devices}],
        }
        files[path] = b"".join(
            _encode({"kind": "DeviceMetadata", "apiVersion": f"{_GROUP}/{version}", **document}) for version in VERSIONS
        )
        mount = {
            "hostPath": path,
            "containerPath": f"{directory}/{base}/{driver}-metadata.json",
            "options": ["ro", "bind"],
        }
        spec = {
            "cdiVersion": _CDI_VERSION,
            "kind": f"{cdi_vendor(driver)}/metadata",
            "devices": [{"name": f"{claim.uid}_{base}", "containerEdits": {"mounts": [mount]}}],
        }
        files[paths.spec(claim.uid, base)] = _encode(spec)
    return files


def add_metadata_ids(devices: Sequence[ContainerDevice], *, driver: str, uid: str) -> list[ContainerDevice]:
    """Add the CDI id of each request's metadata file to the request's first device."""
    done: set[str] = set()
    answered: list[ContainerDevice] = []
    for device in devices:
        (request,) = device.requests
        own = () if request in done else (f"{cdi_vendor(driver)}/metadata={uid}_{request}",)
        done.add(request)
        answered.append(replace(device, cdi_ids=device.cdi_ids + own))
    return answered


def _list_network_data(record: Record, metadata: Metadata) -> tuple[NetworkData | None, ...]:
    """Of each prepared device, as the files have it."""
    return metadata.network_data or tuple(_network_data(one.status) for one in record.prepared)


def _network_data(status: DeviceStatus | None) -> NetworkData | None:
    return status.network_data if status is not None else None


def _build_device(
    device: PreparedDevice, network: NetworkData | None, metadata: Metadata, driver: str
) -> dict[str, Any]:
    attributes = {**metadata.attributes.get(_key(device.pool, device.device), {}), **device.attributes}
    if len(attributes) > ATTRIBUTES_AND_CAPACITIES:
        raise ContractError(
            driver,
            [
                f"device {device.device} (request {device.request}): {len(attributes)} attributes with those of "
                f"prepare; at most {ATTRIBUTES_AND_CAPACITIES} are allowed"
            ],
        )
    body: dict[str, Any] = {"driver": driver, "pool": device.pool, "name": device.device}
    parts = {"attributes": build_attributes(attributes), "networkData": build_network(network)}
    return {**body, **{name: part for name, part in parts.items() if part}}


def _key(pool: str, device: str) -> str:
    return f"{pool}/{device}"


def _encode(document: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
