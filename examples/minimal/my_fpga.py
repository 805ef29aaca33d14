"""Two FPGAs as a Kubernetes driver."""

from collections.abc import Sequence

from pydra import Capacity, Claim, ContainerEdits, Device, Inventory, PreparedDevice

DRIVER = "fpga.example.com"


async def discover() -> Inventory:
    """Report all devices of this node and their health."""
    memory = {"memory": Capacity("16Gi")}
    devices = [Device(name=f"fpga-{n}", attributes={"model": "x1"}, capacity=memory) for n in range(2)]
    return Inventory(devices=tuple(devices))


async def prepare(claim: Claim) -> list[PreparedDevice]:
    """Configure the hardware for a claim and return what its containers get."""
    return [
        device.prepared(
            ContainerEdits()
            .with_device_node(f"/dev/{device.device}", host_path="/dev/null")  # replace with your hardware's node
            .with_env("FPGA", ",".join(one.device for one in claim.devices))
        )
        for device in claim.devices
    ]


async def unprepare(claim: Claim, prepared: Sequence[PreparedDevice]) -> None:
    """Undo what `prepare` did; it is called again if it fails."""
