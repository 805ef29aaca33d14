"""Plans which functions a claim's passthrough devices take from which driver. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from pydra import AllocatedDevice, ClaimError, HeldClaim
from pydra_amd.claim_config import Iommu, VfioDeviceConfig
from pydra_amd.claim_records import list_steps
from pydra_amd.devices import Offered, OfferedFunction
from pydra_amd.models import AMDGPU
from pydra_amd.steps import BindVfio
from pydra_pci import Owner, VfioHost, find_problems, plan_binding


def plan_passthrough(
    wanted: Iterable[tuple[AllocatedDevice, Offered | OfferedFunction]],
    offered: Iterable[OfferedFunction],
    host: VfioHost,
    held: Iterable[HeldClaim],
) -> tuple[BindVfio, ...]:
    """The steps for the functions of a claim, of those that are `offered`. `held` are the other claims. Pure.

    Raises ClaimError: what stands in the way of each function, and who can remove it.
    """
    functions = [(device, found) for device, found in wanted if isinstance(found, OfferedFunction)]
    owners = {
        step.address: Owner(str(one.claim), left_over=one.left_over)
        for one in held
        for step in list_steps(one.claim)
        if isinstance(step, BindVfio)
    }
    mates = [one.function for one in offered]
    find = partial(find_problems, host=host, driver=AMDGPU, functions=mates, owners=owners)
    if problems := [
        f"{device.device} ({one.function.address}): {problem}"
        for device, one in functions
        for problem in (
            *find(one.function, admin=device.admin_access),
            *_find_wishes(device, host),
        )
    ]:
        raise ClaimError("; ".join(problems))
    return tuple(_plan_step(one) for device, one in functions if not device.admin_access)


def _plan_step(offered: OfferedFunction) -> BindVfio:
    step = plan_binding(offered.function)
    mode = offered.gpu.mode if offered.gpu else None
    return BindVfio(
        address=step.address,
        before=step.before,
        target=step.target,
        override=step.override,
        compute=mode.compute if mode and step.before != step.target else "",
        holds=(offered.name,),
    )


def _find_wishes(device: AllocatedDevice, host: VfioHost) -> Iterator[str]:
    """What the claim wants and cannot have."""
    if read_policy(device) == "RequireIommuFD" and not host.iommufd:
        yield "the claim requires iommufd, and this node has no /dev/iommu; ask for PreferIommuFD"


def read_policy(device: AllocatedDevice) -> str:
    """Which interface to the IOMMU the claim wants."""
    config = device.config(VfioDeviceConfig) or VfioDeviceConfig()
    return (config.iommu or Iommu()).backend_policy
