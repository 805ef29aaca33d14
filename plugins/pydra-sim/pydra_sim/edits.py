"""What containers get with a simulated device. Pure."""

from __future__ import annotations

from pydra import AllocatedDevice, ContainerEdits, DeviceNode, Mount
from pydra_sim.config import SimConfig
from pydra_sim.hardware import Part
from pydra_sim.state import Active


def build_edits(part: Part, allocated: AllocatedDevice, active: Active, config: SimConfig, info: str) -> ContainerEdits:
    """Variables `SIM_<DEVICE>_...`, the device node, and the file `info` that describes the device.

    The device's name is part of every name, so that a container with several devices sees them all.
    """
    prefix = "SIM_" + part.name.upper().replace("-", "_")
    env = {
        **config.env,
        f"{prefix}_UUID": active.uuid,
        f"{prefix}_MEMORY": active.memory,
        f"{prefix}_CORES": active.cores,
    }
    if active.clock_mhz is not None:
        env[f"{prefix}_CLOCK_MHZ"] = str(active.clock_mhz)
    if active.interval is not None:
        env[f"{prefix}_TIME_SLICE_MS"] = str(active.interval)
    if allocated.admin_access:
        env[f"{prefix}_ADMIN"] = "true"
    node, file = part.group.device_node, f"/run/pydra-sim/{part.name}.json"
    return ContainerEdits(
        env=env,
        device_nodes=(DeviceNode(path=f"/dev/sim/{part.name}", host_path=node),) if node else (),
        mounts=(Mount(host_path=info, container_path=file),) if part.group.info_file and info else (),
    )
