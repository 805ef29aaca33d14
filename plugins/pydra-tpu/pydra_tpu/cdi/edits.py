"""What containers get for a device: the nodes of its chips, and the environment of the claim's whole mesh. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydra import AllocatedDevice, Claim, ClaimError, ContainerEdits, DeviceNode, Mount, PreparedDevice
from pydra_tpu.cdi.environment import build_environment
from pydra_tpu.cdi.mesh_processes import find_processes
from pydra_tpu.claim_chips import find_chips, identify
from pydra_tpu.claim_config import TpuConfig
from pydra_tpu.geometry import SubSlice
from pydra_tpu.hardware_types import VFIO_CONTROL, Host, host_node
from pydra_tpu.settings import Settings

LOGS = "/tmp/tpu_logs"  # noqa: S108 - where libtpu writes


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
        ChipUnusable: a chip has no device node.
        NotProcesses: each request is to be a process, and they have no equal parts of the mesh.
    """
    return [_prepare_device(claim, one, host, offered, settings) for one in claim.devices]


def _prepare_device(
    claim: Claim, device: AllocatedDevice, host: Host, offered: Mapping[str, SubSlice], settings: Settings
) -> PreparedDevice:
    chips = find_chips(claim.devices, offered, len(host.chips), admin=device.admin_access)
    mesh = host.find_mesh(chips)
    assert mesh is not None  # it has at least this device
    own = [host.chips[index] for index in offered[device.device].chips]
    if useless := [(chip, function) for chip in own for function in chip.functions if not function.node]:
        chip, function = useless[0]
        raise ChipUnusable(
            f"chip {chip.index} ({function.address}) is bound to {function.driver or 'no driver'}, and has "
            "no device node; the node's admin must bind it to the driver for TPUs"
        )
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
            device_nodes=tuple(DeviceNode(path=node, host_path=host_node(node, settings.dev_root)) for node in nodes),
            mounts=(_mount_logs(settings.log_directory),) if settings.log_directory else (),
        ),
        own_container=process is not None,
        status=identify(own),
    )


def _mount_logs(directory: str) -> Mount:
    return Mount(host_path=directory, container_path=LOGS, options=("rw", "nosuid", "nodev", "bind"), optional=True)
