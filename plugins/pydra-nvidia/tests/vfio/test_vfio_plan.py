"""What a claim's passthrough devices make necessary, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from gpu_values import gpu
from pydra import AllocatedDevice, ClaimError, TerminalError
from pydra_nvidia.claim_targets import Passthrough, WholeGpu
from pydra_nvidia.hardware_types import VGPU_GUEST, Gpu, GpuInstance, LostGpu, Mig, Placement, Reading
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import BindVfio
from pydra_nvidia.vfio.plan_passthrough import plan_passthrough
from pydra_pci import Owner, PciFunction, VfioHost

ADDRESS = "0000:53:00.0"
FUNCTION = PciFunction(
    address=ADDRESS, vendor="0x10de", device="0x2330", pci_class="0x030200", driver="nvidia", group="17"
)
GPU = gpu(0, "a", ADDRESS, persistence=True)
INSTANCE = GpuInstance(id=1, profile=19, placement=Placement(0, 1))


def mig(*instances: GpuInstance, enabled: bool = True, pending: bool = True, resetless: bool = True) -> Gpu:
    return replace(GPU, mig=Mig(enabled=enabled, pending=pending, resetless=resetless, instances=instances))


def target(function: PciFunction = FUNCTION, *, device: str = "gpu-vfio-0", admin: bool = False) -> Passthrough:
    allocated = AllocatedDevice(request="r", pool="node", device=device, admin_access=admin)
    return Passthrough(allocated=allocated, function=function)


def plan(
    *targets: Any,
    gpu: Gpu | None = GPU,
    begun: tuple[BindVfio, ...] = (),
    owners: Mapping[str, Owner] = {},
    dynamic: bool = False,
    **reading: Any,
) -> Any:
    options: dict[str, Any] = {"gpus": (gpu,) if gpu else (), "vfio": VfioHost(iommu=True), **reading}
    settings = Settings(vfio=True, dynamic_mig=dynamic)
    return plan_passthrough(targets, Reading(**options), begun=begun, owners=owners, settings=settings)


def bind(**fields: Any) -> BindVfio:
    return BindVfio(**{"address": ADDRESS, "before": "nvidia", "target": "vfio-pci", "persistence": True, **fields})


BEGUN = bind()
VARIANT = replace(FUNCTION, vfio_driver="nvgrace_gpu_vfio_pci")
UNBOUND = replace(FUNCTION, driver="")
BOUND = replace(FUNCTION, driver="vfio-pci")
MATE = replace(BOUND, address="0000:53:00.4")
FREE = replace(BOUND, address="0000:53:00.3")
ELSEWHERE = replace(BOUND, address="0000:52:00.0", group="18")
OWNERS = {ELSEWHERE.address: Owner("default/another"), MATE.address: Owner("default/guest")}


@pytest.mark.parametrize(
    ("function", "gpu", "begun", "step"),
    [
        pytest.param(FUNCTION, GPU, (), bind(), id="from the nvidia driver"),
        pytest.param(FUNCTION, replace(GPU, persistence=False), (), bind(persistence=False), id="not persistent"),
        pytest.param(
            FUNCTION, replace(GPU, persistence=None), (), bind(persistence=False), id="persistence not reported"
        ),
        pytest.param(FUNCTION, mig(enabled=False, pending=False), (), bind(), id="MIG mode off"),
        pytest.param(VARIANT, GPU, (), bind(target="nvgrace_gpu_vfio_pci"), id="to a variant"),
        pytest.param(UNBOUND, None, (), bind(before="", persistence=False), id="from no driver"),
        pytest.param(BOUND, None, (), bind(before="vfio-pci", persistence=False), id="bound by the admin"),
        pytest.param(
            replace(VARIANT, driver="vfio-pci"),
            None,
            (),
            bind(before="vfio-pci", persistence=False),
            id="bound by the admin to the driver of his choice",
        ),
        pytest.param(BOUND, None, (BEGUN,), BEGUN, id="bound by the claim itself"),
        pytest.param(UNBOUND, None, (BEGUN,), BEGUN, id="begun and killed half-way"),
        pytest.param(FUNCTION, GPU, (BEGUN,), BEGUN, id="begun and killed at once"),
        pytest.param(
            FUNCTION, replace(GPU, persistence=False), (BEGUN,), BEGUN, id="begun, so that what was before is known"
        ),
        pytest.param(
            UNBOUND,
            None,
            (bind(before="vfio-pci", persistence=False),),
            bind(before="", persistence=False),
            id="the admin changed his mind",
        ),
    ],
)
def test_each_function_has_one_step_that_says_what_it_had(
    function: PciFunction, gpu: Gpu | None, begun: tuple[BindVfio, ...], step: BindVfio
) -> None:
    assert plan(target(function), target(function), gpu=gpu, begun=begun) == (step,)


@pytest.mark.parametrize("gpu", [mig(), mig(enabled=False), mig(pending=False)], ids=["on", "pending", "going off"])
def test_mig_mode_that_is_left_for_the_claim_is_not_in_the_way(gpu: Gpu) -> None:
    assert plan(target(), gpu=gpu, dynamic=True) == (bind(),)


def test_other_claims_functions_and_devices_that_are_not_passed_through_need_nothing_here() -> None:
    whole = WholeGpu(allocated=AllocatedDevice(request="r", pool="n", device="gpu-0"), gpu=GPU)
    assert plan_passthrough([whole], Reading(gpus=(GPU,)), begun=[BEGUN], owners={}, settings=Settings()) == ()


def test_admin_access_looks_at_a_function_that_is_passed_through_and_does_nothing() -> None:
    owners = dict.fromkeys((ADDRESS, MATE.address), Owner("default/guest"))
    functions = {ADDRESS: BOUND, MATE.address: MATE}
    assert plan(target(BOUND, admin=True), gpu=None, begun=(BEGUN,), owners=owners, functions=functions) == ()


@pytest.mark.parametrize(
    ("function", "reading", "words"),
    [
        pytest.param(FUNCTION, {"vfio": VfioHost()}, ["intel_iommu=on", "amd_iommu=on"], id="no IOMMU"),
        pytest.param(replace(FUNCTION, group=""), {}, ["no IOMMU group"], id="no group"),
        pytest.param(replace(FUNCTION, has_virtual=True), {}, ["sriov_numvfs"], id="virtual functions"),
        pytest.param(
            FUNCTION,
            {"owners": OWNERS, "functions": {one.address: one for one in (ELSEWHERE, FREE, MATE)}},
            ["IOMMU group 17, of which claim default/guest has"],
            id="a group that another claim has",
        ),
        pytest.param(replace(FUNCTION, driver="nouveau"), {}, ["bound to nouveau", "allowed: nvidia"], id="foreign"),
        pytest.param(replace(FUNCTION, driver="pci-stub"), {}, ["bound to pci-stub"], id="set aside"),
        pytest.param(
            FUNCTION,
            {"gpu": mig()},
            ["MIG mode", "nvidia-smi -i GPU-a -mig 0, or let this driver do it (PYDRA_NVIDIA_DYNAMIC_MIG=true)"],
            id="MIG mode",
        ),
        pytest.param(
            FUNCTION,
            {"gpu": mig(resetless=False), "dynamic": True},
            ["nvidia-smi -i GPU-a -mig 0, then --gpu-reset"],
            id="MIG mode that needs a reset",
        ),
        pytest.param(
            FUNCTION,
            {"gpu": replace(mig(), virtualization=VGPU_GUEST), "dynamic": True},
            ["leave it: nvidia-smi -i GPU-a -mig 0$"],
            id="MIG mode of a hypervisor",
        ),
        pytest.param(FUNCTION, {"gpu": mig(INSTANCE), "dynamic": True}, ["partitions (1)"], id="partitions on demand"),
        pytest.param(FUNCTION, {"gpu": mig(enabled=False)}, ["MIG mode, or will be"], id="MIG mode pending"),
        pytest.param(FUNCTION, {"gpu": mig(INSTANCE)}, ["partitions (1)"], id="partitions"),
        pytest.param(
            FUNCTION,
            {"gpu": None, "lost": (LostGpu(index=0, code=15, message="fell off", last=GPU),)},
            ["is lost: fell off"],
            id="lost",
        ),
        pytest.param(
            replace(FUNCTION, group="", has_virtual=True, driver="nouveau"),
            {},
            ["no IOMMU group", "sriov_numvfs", "nouveau"],
            id="all that is wrong at once",
        ),
    ],
)
def test_what_stands_in_the_way_is_reported_with_what_to_do(
    function: PciFunction, reading: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ClaimError) as caught:
        plan(target(function), **reading)
    assert caught.value.retryable
    for word in ("gpu-vfio-0 (0000:53:00.0)", *words):
        assert word in f"{caught.value}$"  # $ is the end


def test_the_problems_of_all_devices_are_reported() -> None:
    other = replace(FUNCTION, address="0000:64:00.0", has_virtual=True)
    with pytest.raises(ClaimError, match=r"gpu-vfio-0 .*nouveau.*; gpu-vfio-1 .*sriov_numvfs"):
        plan(target(replace(FUNCTION, driver="nouveau")), target(other, device="gpu-vfio-1"))


def test_a_node_that_passes_nothing_through_names_the_setting() -> None:
    with pytest.raises(ClaimError, match=r"gpu-vfio-0: .*PYDRA_NVIDIA_VFIO=true"):
        plan_passthrough([target()], Reading(vfio=VfioHost(iommu=True)), begun=(), owners={}, settings=Settings())


def test_admin_access_to_what_nobody_has_passed_through_is_refused() -> None:
    with pytest.raises(ClaimError, match="admin access only looks"):
        plan(target(admin=True))


def test_a_claim_cannot_have_one_gpu_both_ways() -> None:
    whole = WholeGpu(allocated=AllocatedDevice(request="r", pool="n", device="gpu-0"), gpu=GPU)
    with pytest.raises(TerminalError, match="gpu-0 and gpu-vfio-0 of this claim are one GPU"):
        plan(whole, target())
