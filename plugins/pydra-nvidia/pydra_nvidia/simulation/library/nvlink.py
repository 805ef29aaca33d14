"""How GPUs are connected: NVLink, the multi-node fabric."""

from __future__ import annotations

import uuid
from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, pointed, put
from pydra_nvidia.simulation.library.devices import fill_place
from pydra_nvidia.simulation.library.function_registry import Call, function
from pydra_nvidia.simulation.scenario_gpus import NvLink

MOST_LINKS = 36
FABRIC_V2, FABRIC_V3 = 0x02000024, 0x3000028
HOPPER = 9


@function("gpu", "nvmlDeviceGetNvLinkState")
def _link_state(call: Call, link: Any, reference: Any) -> None:
    part = _link(call, link)
    put(reference, part.state if part.state != 1 or number(link) in active_links(call) else 0)


@function("gpu", "nvmlDeviceGetNvLinkRemoteDeviceType")
def _link_remote_type(call: Call, link: Any, reference: Any) -> None:
    put(reference, _live_link(call, link).remote)


@function("gpu", "nvmlDeviceGetNvLinkRemotePciInfo_v2")
def _link_remote_pci(call: Call, link: Any, info: Any) -> None:
    part = _live_link(call, link)
    if not part.address:
        raise Refusal(Code.NOT_SUPPORTED)
    fill_place(info, part.address)


@function("gpu", "nvmlDeviceGetNvLinkErrorCounter")
def _link_errors(call: Call, link: Any, counter: Any, reference: Any) -> None:
    """Counted up to Ampere; newer GPUs report them as field values. Those of a simulated GPU are all of link 0."""
    _link(call, link)
    if call.board.model.architecture >= HOPPER:
        raise Refusal(Code.NOT_SUPPORTED)
    counters = call.gpu.counters
    found = (counters.nvlink_replays, counters.nvlink_recoveries, counters.nvlink_crc, counters.nvlink_crc, 0)
    if number(counter) >= len(found):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(reference, found[number(counter)] if number(link) == 0 else 0)


@function("gpu", "nvmlDeviceGetGpuFabricInfo")
def _fabric_info(call: Call, info: Any) -> None:
    _fabric(call, info)


@function("gpu", "nvmlDeviceGetGpuFabricInfoV")
def _fabric_info_v(call: Call, info: Any) -> None:
    version = pointed(info).version
    if version not in (FABRIC_V2, FABRIC_V3):
        raise Refusal(Code.ARGUMENT_VERSION_MISMATCH)
    _fabric(call, info)
    fabric = call.board.fabric
    fill(info, healthMask=fabric.health_mask if fabric else 0)
    if version == FABRIC_V3:
        fill(info, healthSummary=fabric.summary if fabric else 0)


def active_links(call: Call) -> tuple[int, ...]:
    """The links that carry traffic; none in MIG mode."""
    if call.gpu.mig:
        return ()
    down = call.gpu.links_down
    return tuple(number for number, link in enumerate(call.board.links) if link.state == 1 and number not in down)


def _fabric(call: Call, info: Any) -> None:
    if call.board.model.architecture < HOPPER:
        raise Refusal(Code.NOT_SUPPORTED)
    fabric = call.board.fabric
    if fabric is None:
        return fill(info, state=0, status=0, cliqueId=0)
    pointed(info).clusterUuid[:] = uuid.UUID(fabric.cluster).bytes
    return fill(info, state=fabric.state, status=fabric.status, cliqueId=fabric.clique)


def _link(call: Call, link: Any) -> NvLink:
    if not 0 <= number(link) < MOST_LINKS:
        raise Refusal(Code.INVALID_ARGUMENT)
    if number(link) >= len(call.board.links):
        raise Refusal(Code.NOT_SUPPORTED)
    return call.board.links[number(link)]


def _live_link(call: Call, link: Any) -> NvLink:
    part = _link(call, link)
    if number(link) not in active_links(call):
        raise Refusal(Code.NOT_SUPPORTED)
    return part
