"""What containers get for a device: the nodes of its chips, and the environment of the claim's whole mesh. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from pydra import (
    AllocatedDevice,
    Claim,
    ClaimError,
    ContainerEdits,
    DeviceNode,
    DeviceStatus,
    Mount,
    PreparedDevice,
    TerminalError,
    UnknownDevice,
)
from pydra_tpu.cdi.environment import build_environment
from pydra_tpu.cdi.mesh_processes import find_processes
from pydra_tpu.claim_config import TpuConfig
from pydra_tpu.geometry import SubSlice
from pydra_tpu.hardware_types import VFIO_CONTROL, Chip, Host
from pydra_tpu.settings import Settings

LOGS = "/tmp/tpu_logs"  # noqa: S108 - where libtpu writes


class NotAMesh(TerminalError):
    """The chips of a claim cannot form a mesh."""

    reason = "NotAMesh"


class ChipUnusable(ClaimError):
    """A chip of a claim cannot be given to containers."""

    reason = "ChipUnusable"


def prepare_claim(
    claim: Claim, host: Host, offered: Mapping[str, SubSlice], settings: Settings
) -> list[PreparedDevice]:
    """What containers get for each device: its nodes, and the environment of the claim's whole mesh.

    Raises:
        UnknownDevice: a device is not offered any more.
        NotAMesh: the chips of all its devices do not form a sub-slice.
        ChipUnusable: a chip is gone, or lacks a function or a device node.
        NotProcesses: each request is to be a process, and they have no equal parts of the mesh.
    """
    return [_prepare_device(claim, one, host, offered, settings) for one in claim.devices]


def _prepare_device(
    claim: Claim, device: AllocatedDevice, host: Host, offered: Mapping[str, SubSlice], settings: Settings
) -> PreparedDevice:
    mesh = _find_mesh([one.device for one in claim.devices if one.admin_access is device.admin_access], host, offered)
    own = [host.chips[index] for index in offered[device.device].chips]
    if problem := next((text for chip in own if (text := _find_problem(chip))), ""):
        raise ChipUnusable(problem)
    control = [VFIO_CONTROL] if any(chip.uses_vfio for chip in own) else []
    nodes = [*dict.fromkeys(node for chip in own for node in chip.nodes), *control]
    config = device.config(TpuConfig) or TpuConfig()
    processes = {} if device.admin_access else find_processes(claim, offered, mesh, len(host.chips))
    process = processes.get(device.request.partition("/")[0])
    return device.prepared(
        ContainerEdits(
            env={
                **build_environment(host, mesh, config, process),
                f"TPU_DEVICE_{device.device.replace('-', '_')}_RESOURCE_CLAIM": claim.uid,
            },
            device_nodes=tuple(
                DeviceNode(path=node, host_path=posixpath.join(settings.dev_root, node.removeprefix("/dev/")))
                for node in nodes
            ),
            mounts=(_mount_logs(settings.log_directory),) if settings.log_directory else (),
        ),
        own_container=process is not None,
        # Which hardware it is, also when it is published no more.
        status=DeviceStatus(
            data={
                "chips": [chip.index for chip in own],
                "pciBusIDs": [function.address for chip in own for function in chip.functions],
            }
        ),
    )


def _find_mesh(names: Sequence[str], host: Host, offered: Mapping[str, SubSlice]) -> SubSlice:
    """What the devices of these names are together. Raises UnknownDevice, NotAMesh."""
    if unknown := [name for name in names if name not in offered]:
        raise UnknownDevice(f"this machine has no device {unknown[0]}; it has {', '.join(offered) or 'none'}")
    chips = sorted({index for name in names for index in offered[name].chips})
    mesh = host.find_mesh(chips)
    if mesh is None:
        raise NotAMesh(
            f"chips {', '.join(map(str, chips))} of this host do not form a mesh together; "
            "ask for one device of the shape that is needed, such as 2x2, or for all chips of a host"
        )
    return mesh


def _find_problem(chip: Chip) -> str:
    """Why containers cannot use the chip, and what to do; empty if they can."""
    gone = [function.address for function in chip.functions if not function.present]
    unbound = [function for function in chip.functions if not function.node]
    if gone:
        text = f"there is no PCI function {gone[0]} any more"
    elif unbound:
        driver, address = unbound[0].driver or "no driver", unbound[0].address
        return (
            f"chip {chip.index} ({address}) is bound to {driver}, and has no device node; the node's admin must bind it"
            " to the driver for TPUs"
        )
    elif chip.missing_functions:
        text = f"it has {len(chip.functions)} PCI functions, and other chips of this machine have more"
    else:
        return ""
    return f"chip {chip.index} ({chip.address}) cannot be used: {text}; delete the pod to have another"


def _mount_logs(directory: str) -> Mount:
    return Mount(host_path=directory, container_path=LOGS, options=("rw", "nosuid", "nodev", "bind"), optional=True)
