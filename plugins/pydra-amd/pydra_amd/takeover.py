"""Takes over from AMD's own DRA driver at a start beside its checkpoint, `checkpoint.json` in the plugin directory.

    {"checksum": n, "v1": {"preparedClaims": {UID: [{request_names, pool_name, device_name, ...}]}}}

Its plugin must have ended: two plugins of one driver name would prepare behind each other's back. A claim becomes one
that holds what its devices' names mean now; no hardware is touched. One whose devices cannot be found is prepared
again; where no GPU can be used at all, that waits until one can.
The checksum is over what that driver's Go structures print, which differs by version, and is not looked at.
Source: ROCm/k8s-gpu-dra-driver, cmd/gpu-kubeletplugin/checkpoint.go and state.go, and the kubelet's API for the device.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from pydra import AllocatedDevice, Claim, ClaimError, Inheritance, InheritedClaim
from pydra_amd.cdi.edits import build_edits
from pydra_amd.claim_records import Hold, build_data
from pydra_amd.devices import Offered, identify, list_offered
from pydra_amd.hardware_types import Reading
from pydra_amd.settings import Partitioning
from pydra_pci import Tree, read_left_checkpoint

FILE = "checkpoint.json"

_log = logging.getLogger(__name__)


class _Device(msgspec.Struct, frozen=True, kw_only=True):
    requests: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = msgspec.field(name="request_names")
    pool: str = msgspec.field(name="pool_name")
    device: str = msgspec.field(name="device_name")


class _V1(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    prepared_claims: Mapping[str, tuple[_Device, ...]] = {}


class _Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    v1: _V1


class GpusUnusable(ClaimError):
    """This process can use none of the GPUs that claims have."""

    reason = "GpusUnusable"


async def inherit_claims(directory: str, reading: Reading, tree: Tree) -> Inheritance:
    """What the plugin directory holds of that driver's. Raises VendorRuns, GpusUnusable."""
    path = os.path.join(directory, FILE)
    text = await read_left_checkpoint(path, "AMD")
    if text is None:
        return Inheritance()
    try:
        checkpoint = msgspec.json.decode(text, type=_Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("%s cannot be read, its claims are prepared again: %s", path, error)
        return Inheritance(files=(path,))
    if checkpoint.v1.prepared_claims and reading.problems and not reading.gpus:
        address, why = min(reading.problems.items())
        raise GpusUnusable(
            f"the claims that AMD's driver prepared ({path}) are taken over when their GPUs can be used: GPU {address}:"
            f" {why}; to do without these claims, remove the file and delete their pods"
        )
    return Inheritance(claims=tuple(_convert(checkpoint.v1, reading, tree)), files=(path,))


def _convert(checkpoint: _V1, reading: Reading, tree: Tree) -> Iterator[InheritedClaim]:
    """That driver names a GPU, and a partition that exists, by its nodes, whatever modes claims may choose here."""
    offered = list_offered(reading, Partitioning.EXISTING)
    for uid, devices in sorted(checkpoint.prepared_claims.items()):
        if lost := [one.device for one in devices if one.device not in offered]:
            _log.warning(
                "claim %s, which AMD's driver prepared, has %s, which this node does not have under that name; it is "
                "prepared again, so delete its pods",
                uid,
                ", ".join(lost),
            )
        elif devices:
            yield _convert_claim(uid, devices, offered, tree)


def _convert_claim(
    uid: str, devices: tuple[_Device, ...], offered: Mapping[str, Offered], tree: Tree
) -> InheritedClaim:
    """Without the claim's name, which that driver does not write down."""
    found = [offered[one.device] for one in devices]
    allocated = tuple(AllocatedDevice(request=one.requests[-1], pool=one.pool, device=one.device) for one in devices)
    holds = tuple(Hold(device=one.name, gpu=one.gpu.address, mode=one.mode, index=one.index) for one in found)
    return InheritedClaim(
        claim=Claim(uid=uid, namespace="", name="", devices=allocated, plan=build_data(holds)),
        prepared=tuple(
            device.prepared(build_edits(device, one.partition, tree), status=identify(one.gpu, one.partition))
            for device, one in zip(allocated, found, strict=True)
            if one.partition is not None
        ),
    )
