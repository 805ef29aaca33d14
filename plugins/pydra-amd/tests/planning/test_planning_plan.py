"""What a claim holds, which modes change for it, and what it is refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from amd_values import allocated_device, claim_of, gpu_of, held_claim, reading_of
from pydra import Claim, ClaimError, ClaimStep, DeviceInUse, HeldClaim, Plan, UnknownDevice
from pydra_amd.claim_plan import ModeConflict, plan_claim
from pydra_amd.claim_records import Hold, list_steps, read_holds
from pydra_amd.devices import list_functions, list_offered
from pydra_amd.hardware_types import Mode, Reading
from pydra_amd.settings import Partitioning
from pydra_amd.steps import SetComputePartition, SetMemoryPartition
from pydra_pci import PciFunction, VfioHost

READING = reading_of(gpu_of(), gpu_of(index=1))
CPX = "gpu-0-128-cpx-nps1"
TO_CPX = SetComputePartition(gpu="0000:05:00.0", before="spx", target="cpx", holds=(f"{CPX}-3",))


def hold(claim: Claim, planned: Plan) -> HeldClaim:
    steps = [ClaimStep(step=one, key=one.key, label=str(one)) for one in planned.steps]
    return held_claim(replace(claim, plan=planned.data, steps=tuple(steps)))


def plan(
    *devices: object, uid: str = "uid-1", held: tuple[HeldClaim, ...] = (), reading: Reading = READING
) -> HeldClaim:
    claim = claim_of(*devices, uid=uid)  # type: ignore[arg-type]
    return hold(claim, plan_claim(claim, list_offered(reading, Partitioning.COMPUTE), held=held))


def test_a_partition_of_another_mode_is_held_with_the_change_that_makes_it() -> None:
    planned = plan(f"{CPX}-3", "gpu-8-136").claim
    assert read_holds(planned) == (
        Hold(device=f"{CPX}-3", gpu="0000:05:00.0", mode=Mode("cpx", "nps1"), index=3),
        Hold(device="gpu-8-136", gpu="0000:25:00.0", mode=Mode("spx", "nps1")),
    )
    assert list_steps(planned) == (TO_CPX,)
    assert (TO_CPX.key, TO_CPX.holds) == ("0000:05:00.0=cpx", (f"{CPX}-3",))


def test_a_second_claim_has_the_change_that_the_first_began_whether_it_is_done_or_not() -> None:
    first = plan(f"{CPX}-0")
    for present in ("spx_nps1", "cpx_nps1"):
        second = plan(f"{CPX}-1", uid="uid-2", held=(first,), reading=reading_of(gpu_of(mode=present)))
        assert list_steps(second.claim) == (replace(TO_CPX, holds=(f"{CPX}-1",)),)


def test_a_gpu_in_another_mode_for_a_claim_is_refused_whatever_the_scheduler_believed() -> None:
    first = plan(f"{CPX}-0")
    with pytest.raises(DeviceInUse, match="claim-uid-1"):
        plan(f"{CPX}-0", uid="uid-2", held=(first,))
    with pytest.raises(ModeConflict, match=r"needs the mode spx_nps1 .* claim default/claim-uid-1 has .*-cpx-nps1-0"):
        plan("gpu-0-128", uid="uid-2", held=(first,))
    assert plan("gpu-8-136", uid="uid-2", held=(first,)).claim.steps == ()


def test_the_driver_is_reloaded_for_another_memory_mode_when_the_claims_of_other_gpus_have_ended() -> None:
    offered = list_offered(reading_of(gpu_of(), gpu_of(index=1)), Partitioning.MEMORY)
    wanted, other = claim_of("gpu-0-128-cpx-nps4-0", uid="uid-2"), plan("gpu-8-136-cpx-nps1-0")
    with pytest.raises(ModeConflict, match=r"amdgpu is reloaded .* claims have some of them: default/claim-uid-1"):
        plan_claim(wanted, offered, held=(other,))
    planned = plan_claim(wanted, offered, held=(replace(other, left_over=True),))
    assert any(isinstance(step, SetMemoryPartition) for step in planned.steps)


def test_admin_access_holds_nothing_and_changes_nothing() -> None:
    looks = plan(allocated_device("gpu-0-128", admin_access=True), held=(plan(f"{CPX}-0"),))
    assert looks.claim.steps == ()
    assert plan(f"{CPX}-3", held=(looks,)).claim.steps[0].step == TO_CPX


@pytest.mark.parametrize(
    ("claim", "error", "words"),
    [
        (claim_of("gpu-0-128", f"{CPX}-0"), ModeConflict, "need different modes of it"),
        (claim_of("gpu-3-131"), UnknownDevice, "no device gpu-3-131; it has gpu-0-128"),
        (claim_of("gpu-0-128-tpx-nps1-0"), UnknownDevice, "no device"),
    ],
)
def test_what_cannot_be_is_refused(claim: Claim, error: type[ClaimError], words: str) -> None:
    with pytest.raises(error, match=words):
        plan_claim(claim, list_offered(READING, Partitioning.COMPUTE), held=())


ADDRESSES = ("0000:05:00.0", "0000:25:00.0")
MACHINE = reading_of(
    gpu_of(),
    gpu_of(index=1),
    functions=tuple(
        PciFunction(address=address, vendor="0x1002", device="0x74a1", pci_class="0x120000", driver="amdgpu", group="7")
        for address in ADDRESSES
    ),
    vfio=VfioHost(iommu=True),
)
OFFERED, FUNCTIONS = list_offered(MACHINE, Partitioning.MEMORY), list_functions(MACHINE)
NAMES = [
    *FUNCTIONS,
    *("gpu-0-128", f"{CPX}-0", "gpu-0-128-cpx-nps4-0", "gpu-0-128-cpx-nps4-1", "gpu-0-128-dpx-nps2-0"),
    *("gpu-8-136", "gpu-8-136-cpx-nps1-0", "gpu-8-136-qpx-nps4-0", "gpu-8-136-cpx-nps4-0"),
]
ASKED = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=2, unique_by=lambda one: one[0])


@given(st.lists(st.one_of(ASKED, st.integers(0, 9)), min_size=4, max_size=12))
def test_whatever_claims_come_and_go_no_gpu_has_two_modes_and_the_last_claim_knows_what_to_undo(
    happens: list[list[tuple[str, bool]] | int],
) -> None:
    held: list[HeldClaim] = []
    for number, one in enumerate(happens):
        if isinstance(one, int):  # a claim ends
            del held[one : one + 1]
            continue
        claim = claim_of(*(allocated_device(name, admin_access=admin) for name, admin in one), uid=f"uid-{number}")
        with contextlib.suppress(ClaimError):
            held.append(hold(claim, plan_claim(claim, OFFERED, FUNCTIONS, host=MACHINE.vfio, held=held)))
        holds = [hold for one in held for hold in read_holds(one.claim) if not hold.admin]
        for gpu in {hold.gpu for hold in holds}:
            own = [hold for hold in holds if hold.gpu == gpu]
            assert len({(hold.mode, hold.passthrough) for hold in own}) == 1
            assert len({hold.index for hold in own}) == len(own)
        steps = [list_steps(one.claim) for one in held]
        changes = [[step for step in some if isinstance(step, SetMemoryPartition)] for some in steps]
        assert all(one == changes[0] for one in changes), "all claims, or none, undo a change of the memory mode"
        assert len({hold.mode.memory for hold in holds if hold.mode}) <= 1


def test_virtual_functions_of_one_gpu_do_not_change_which_gpu_another_name_means() -> None:
    first, second = MACHINE.functions
    virtual = replace(first, address="0000:05:02.0", parent=first.address, driver="vfio-pci")
    machine = replace(MACHINE, functions=(replace(first, driver="gim", has_virtual=True), virtual, second))
    offered = {name: one.function.address for name, one in list_functions(machine).items()}
    assert offered == {"gpu-vfio-1": FUNCTIONS["gpu-vfio-1"].function.address, "gpu-vfio-2": virtual.address}


def test_a_guest_beside_a_memory_mode_that_claims_chose_may_be_the_one_that_ends_last() -> None:
    first, second = "gpu-0-128-cpx-nps4-0", "gpu-vfio-1"
    held: tuple[HeldClaim, ...] = ()
    for uid, name in enumerate((first, second)):
        claim = claim_of(name, uid=f"uid-{uid}")
        held = (*held, hold(claim, plan_claim(claim, OFFERED, FUNCTIONS, host=MACHINE.vfio, held=held)))
    before, all_gpus = dict.fromkeys(ADDRESSES, Mode("spx", "nps1")), ("gpu-0-128", "gpu-8-136")
    changes = [list_steps(one.claim)[0] for one in held]
    assert changes[0] == changes[1] == SetMemoryPartition(before=before, target="nps4", holds=all_gpus)
