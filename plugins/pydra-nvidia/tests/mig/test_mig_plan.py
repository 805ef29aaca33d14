"""Which MIG steps a claim needs, for the layouts of every generation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_values import find_kind, find_profiles, make_instance
from gpu_values import gpu as gpu_of
from pydra import AllocatedDevice, ClaimError, TerminalError
from pydra_nvidia.claim_targets import Passthrough, find_targets
from pydra_nvidia.device_names import mig_name
from pydra_nvidia.hardware_types import VGPU_GUEST, Gpu, Mig, Placement, Profile, Reading
from pydra_nvidia.mig.plan_partitions import plan_partitions
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import CreateMig, MigModeOff, MigModeOn, Step
from pydra_pci import PciFunction

STATIC, DYNAMIC = Settings(), Settings(dynamic_mig=True)
MODELS = ("a30", "a100-40gb", "h100-80gb", "h200-141gb", "b200-180gb", "gb200-186gb")
UUID = "GPU-0"


def make_gpu(model: str = "h100-80gb", *, on: bool = True, minor: int = 0, virtualization: int = 0) -> Gpu:
    """A GPU of the model without partitions; one that needs a reset tells no profiles with the mode off."""
    kind = find_kind(model).mig
    assert kind is not None
    offered = find_profiles(model) if on or kind.reports_profiles_when_off else ()
    mig = Mig(enabled=on, pending=on, resetless=kind.resetless, profiles=offered)
    return gpu_of(minor, str(minor), f"0000:0{minor}:00.0", model=model, virtualization=virtualization, mig=mig)


def profile_of(gpu: Gpu, name: str) -> Profile:
    assert gpu.mig is not None
    return next(one for one in gpu.mig.profiles if name == one.name or (name[-1] == "." and one.name.startswith(name)))


def put(gpu: Gpu, name: str, start: int, *compute: int) -> Gpu:
    """With a partition more; `compute` are the slices of its compute instances, one that fills it by default."""
    profile = profile_of(gpu, name)
    assert gpu.mig is not None
    number = len(gpu.mig.instances) + 1
    sizes = [one for one in compute if one] if compute else None
    instance = make_instance(profile, start, number=number, compute=sizes)
    return replace(gpu, mig=replace(gpu.mig, instances=(*gpu.mig.instances, instance)))


def name_of(gpu: Gpu, name: str, start: int) -> str:
    profile = profile_of(gpu, name)
    return mig_name(gpu.minor, profile.name, profile.id, start)


def plan(
    names: Sequence[str],
    *gpus: Gpu,
    settings: Settings = DYNAMIC,
    owned: Sequence[tuple[str, Placement]] = (),
    admin: bool = False,
) -> tuple[Step, ...]:
    reading = Reading(gpus=gpus)
    devices = [AllocatedDevice(request="r", pool="p", device=name, admin_access=admin) for name in names]
    return plan_partitions(find_targets(devices, reading), reading, owned=owned, settings=settings)


def create(gpu: Gpu, name: str, start: int) -> CreateMig:
    profile = profile_of(gpu, name)
    place = next(one for one in profile.placements if one.start == start)
    return CreateMig(gpu=gpu.uuid, profile=profile.id, profile_name=profile.name, placement=place)


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_partition_is_created_with_the_mode_where_that_needs_no_reset(model: str) -> None:
    gpu = make_gpu(model)
    assert gpu.mig is not None
    steps = plan([name_of(gpu, "1g.", 1)], gpu)
    mode = (MigModeOn(gpu=UUID),) if gpu.mig.resetless else ()
    assert steps == (*mode, create(gpu, "1g.", 1))


@pytest.mark.parametrize("model", ["h100-80gb", "h200-141gb", "b200-180gb", "gb200-186gb"])
def test_the_mode_is_switched_on_from_hopper_on(model: str) -> None:
    gpu = make_gpu(model, on=False)
    assert plan([name_of(gpu, "7g.", 0)], gpu) == (MigModeOn(gpu=UUID), create(gpu, "7g.", 0))


@pytest.mark.parametrize("model", ["a30", "a100-40gb"])
def test_before_hopper_the_mode_is_the_admins_and_the_claim_says_so(model: str) -> None:
    gpu = make_gpu(model)
    with pytest.raises(TerminalError, match="switch it on and reset the GPU"):
        plan([name_of(gpu, "1g.", 0)], make_gpu(model, on=False))


def test_several_partitions_of_one_gpu_need_its_mode_once() -> None:
    gpu, other = make_gpu(on=False), make_gpu(on=False, minor=1)
    names = [name_of(gpu, "3g.", 4), name_of(gpu, "2g.", 2), name_of(other, "1g.", 0), name_of(gpu, "1g.", 0)]
    assert plan(names, gpu, other) == (
        MigModeOn(gpu="GPU-0"),
        create(gpu, "3g.", 4),
        create(gpu, "2g.", 2),
        MigModeOn(gpu="GPU-1"),
        create(other, "1g.", 0),
        create(gpu, "1g.", 0),
    )


def test_shares_of_one_partition_in_one_claim_create_it_once() -> None:
    gpu = make_gpu()
    name = name_of(gpu, "2g.", 0)
    assert plan([name, name], gpu) == (MigModeOn(gpu=UUID), create(gpu, "2g.", 0))


@pytest.mark.parametrize("settings", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_a_partition_that_somebody_else_made_is_used_as_it_is(settings: Settings) -> None:
    gpu = put(make_gpu(), "3g.", 0)
    assert plan([name_of(gpu, "3g.", 0)], gpu, settings=settings) == ()


@pytest.mark.parametrize("settings", [STATIC, DYNAMIC], ids=["static", "dynamic"])
def test_a_partition_that_a_claim_made_is_held_by_a_step_of_every_claim_that_has_it(settings: Settings) -> None:
    gpu = put(make_gpu(), "3g.", 0)
    steps = plan([name_of(gpu, "3g.", 0)], gpu, settings=settings, owned=[(UUID, Placement(0, 4))])
    assert steps == (MigModeOn(gpu=UUID), create(gpu, "3g.", 0))


def test_a_partition_of_a_vgpu_guest_leaves_the_mode_to_the_hypervisor() -> None:
    gpu = put(make_gpu(virtualization=VGPU_GUEST), "3g.", 0)
    assert plan([name_of(gpu, "3g.", 0)], gpu, owned=[(UUID, Placement(0, 4))]) == (create(gpu, "3g.", 0),)


def test_a_plan_is_the_same_before_and_after_it_was_carried_out() -> None:
    before = make_gpu(on=False)
    name = name_of(before, "2g.", 4)
    after = put(make_gpu(), "2g.", 4)
    assert plan([name], before) == plan([name], after, owned=[(UUID, Placement(4, 2))])
    assert plan(["gpu-0"], make_gpu()) == plan(["gpu-0"], before) == (MigModeOff(gpu=UUID),)


def test_admin_access_needs_nothing_and_is_stopped_by_nothing() -> None:
    gpu = put(make_gpu(), "3g.", 0, 1, 1)
    assert plan(["gpu-0", name_of(gpu, "3g.", 0)], gpu, admin=True) == ()


def test_admin_access_to_a_partition_that_does_not_exist_says_that_it_creates_none() -> None:
    gpu = make_gpu()
    with pytest.raises(ClaimError, match="does not exist now, and admin access creates none"):
        plan([name_of(gpu, "1g.", 1)], gpu, admin=True)


@pytest.mark.parametrize(
    ("compute", "found"),
    [((0,), "it has none"), ((1,), "one of 1 compute slices"), ((1, 2), "1 compute slices, one of 2 compute slices")],
    ids=["no compute instance", "one too small", "two"],
)
def test_a_partition_of_somebody_else_that_is_not_one_device_is_refused(compute: tuple[int, ...], found: str) -> None:
    gpu = put(make_gpu(), "3g.", 4, *compute)
    with pytest.raises(ClaimError, match=f"made outside of this driver.*{found}.*-gi 1 -dci"):
        plan([name_of(gpu, "3g.", 4)], gpu)


def test_a_place_that_somebody_else_has_taken_is_refused_with_what_is_there() -> None:
    gpu = put(make_gpu(), "3g.", 4)
    words = (
        r"needs memory slice 5, where there is 3g\.40gb \(profile 9\) at memory slices 4-7, GPU instance 1: it was made"
    )
    with pytest.raises(ClaimError, match=words) as caught:
        plan([name_of(gpu, "1g.", 5)], gpu)
    assert caught.value.retryable
    with pytest.raises(ClaimError, match="another claim has it"):
        plan([name_of(gpu, "1g.", 5)], gpu, owned=[(UUID, Placement(4, 4))])


def test_more_of_a_profile_than_the_gpu_can_have_is_refused() -> None:
    gpu = put(make_gpu(), "1g.10gb+me", 3)
    with pytest.raises(
        ClaimError, match=r"can have 1 of profile 1g\.10gb\+me at a time, and others begin at memory slices 3"
    ):
        plan([name_of(gpu, "1g.10gb+me", 0)], gpu)
    empty = make_gpu()
    with pytest.raises(ClaimError, match="can have 1 of profile"):
        plan([name_of(empty, "1g.10gb+me", 0), name_of(empty, "1g.10gb+me", 4)], empty)


@pytest.mark.parametrize(
    ("gpu", "name", "settings", "words"),
    [
        (make_gpu(), "gpu-0-mig-1g10gb-19-0", STATIC, r"\(nvidia-smi mig -i GPU-0 -cgi 19:0 -C\), or let this driver"),
        (make_gpu(on=False), "gpu-0-mig-1g10gb-19-0", STATIC, r"\(nvidia-smi -i GPU-0 -mig 1; nvidia-smi mig"),
        (make_gpu(virtualization=2), "gpu-0-mig-1g10gb-19-0", DYNAMIC, "vGPU guest"),
        (make_gpu(), "gpu-0", STATIC, r"-mig 0\), or let this driver do it"),
        (make_gpu("a100-40gb"), "gpu-0", DYNAMIC, r"-mig 0, then --gpu-reset\)$"),
        (make_gpu(virtualization=2), "gpu-0", DYNAMIC, r"-mig 0\)$"),
        (put(make_gpu(), "7g.", 0), "gpu-0", DYNAMIC, r"is partitioned, it has 7g\.80gb .*ORPHANS=remove"),
        (put(make_gpu(), "7g.", 0, 0), "gpu-0", STATIC, r"is partitioned, it has 7g\.80gb .*then -dgi\)$"),
    ],
    ids=[
        "static and missing",
        "static, mode off",
        "vGPU guest",
        "whole, static, mode on",
        "whole, A100, mode on",
        "whole, vGPU guest, mode on",
        "whole, partitioned",
        "whole, half a partition",
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_do(gpu: Gpu, name: str, settings: Settings, words: str) -> None:
    with pytest.raises(ClaimError, match=words):
        plan([name], gpu, settings=settings)


def test_a_whole_gpu_out_of_mig_mode_needs_nothing_of_a_static_node() -> None:
    assert plan(["gpu-0"], make_gpu(on=False), settings=STATIC) == ()
    assert plan(["gpu-0"], replace(make_gpu(), mig=None)) == ()
    assert plan(["gpu-0"], make_gpu("a100-40gb", on=False)) == ()


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Gpu, list[str], list[tuple[str, Placement]]]:
    """A GPU with partitions that do not overlap, some of them owned, and names to ask for that do not either."""
    gpu = make_gpu(draw(st.sampled_from(MODELS)))
    assert gpu.mig is not None
    places = [(profile, place) for profile in gpu.mig.profiles for place in profile.placements]
    wanted: list[tuple[Profile, Placement]] = []
    owned: list[tuple[str, Placement]] = []
    for profile, place in draw(st.lists(st.sampled_from(places), max_size=5)):
        if all(not place.overlaps(one.placement) for one in gpu.mig.instances):
            gpu = put(gpu, profile.name, place.start)
            assert gpu.mig is not None
            if draw(st.booleans()):
                owned.append((UUID, place))
    for profile, place in draw(st.lists(st.sampled_from(places), min_size=1, max_size=4)):
        if all(not place.overlaps(other) for _, other in wanted):
            wanted.append((profile, place))
    return gpu, [mig_name(0, profile.name, profile.id, place.start) for profile, place in wanted], owned


@given(layout=layouts())
def test_whatever_is_planned_takes_nothing_from_anybody(
    layout: tuple[Gpu, list[str], list[tuple[str, Placement]]],
) -> None:
    gpu, names, owned = layout
    try:
        steps = plan(names, gpu, owned=owned)
    except ClaimError:
        return
    assert gpu.mig is not None
    created = [step for step in steps if isinstance(step, CreateMig)]
    foreign = [one for one in gpu.mig.instances if (UUID, one.placement) not in owned]
    for step in created:
        assert not any(step.placement.overlaps(one.placement) for one in foreign)
        others = [one for one in gpu.mig.instances if one.placement.overlaps(step.placement)]
        assert all((one.profile, one.placement) == (step.profile, step.placement) for one in others)
        assert not any(step.placement.overlaps(one.placement) for one in created if one is not step)
    used = [one for one in foreign if mig_name(0, _name(gpu, one.profile), one.profile, one.placement.start) in names]
    assert len(created) + len(used) == len(names), "each device is created, or is there"
    assert steps[: len(steps) - len(created)] == ((MigModeOn(gpu=UUID),) if created and gpu.mig.resetless else ())


def _name(gpu: Gpu, profile: int) -> str:
    assert gpu.mig is not None
    return next(one.name for one in gpu.mig.profiles if one.id == profile)


def passed_through(function: PciFunction, *, admin: bool = False) -> Passthrough:
    allocated = AllocatedDevice(request="r", pool="node", device="gpu-vfio-0", admin_access=admin)
    return Passthrough(allocated=allocated, function=function)


FUNCTION = PciFunction(address="0000:00:00.0", vendor="0x10de", device="0x2330", pci_class="0x030200", driver="nvidia")


@pytest.mark.parametrize(
    ("gpu", "settings", "admin", "steps"),
    [
        pytest.param(make_gpu(), DYNAMIC, False, (MigModeOff(gpu=UUID),), id="on"),
        pytest.param(make_gpu(on=False), DYNAMIC, False, (MigModeOff(gpu=UUID),), id="off already"),
        pytest.param(make_gpu(), DYNAMIC, True, (), id="for an admin who looks"),
        pytest.param(make_gpu(), STATIC, False, (), id="static"),
        pytest.param(make_gpu("a100-40gb"), DYNAMIC, False, (), id="only with a reset"),
        pytest.param(make_gpu(virtualization=VGPU_GUEST), DYNAMIC, False, (), id="in the hands of a hypervisor"),
        pytest.param(replace(make_gpu(), mig=None), DYNAMIC, False, (), id="without MIG"),
        pytest.param(make_gpu(minor=1), DYNAMIC, False, (), id="of another GPU, as this one is bound already"),
    ],
)
def test_a_gpu_to_pass_through_leaves_mig_mode_as_a_whole_one_does(
    gpu: Gpu, settings: Settings, admin: bool, steps: tuple[Step, ...]
) -> None:
    target = passed_through(FUNCTION, admin=admin)
    assert plan_partitions([target], Reading(gpus=(gpu,)), owned=(), settings=settings) == steps
