"""From configs to steps: what is set, on what, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from msgspec.structs import replace

from pydra import InvalidConfig
from pydra_nvidia.claim_config import (
    GpuConfig,
    GpuSharing,
    Interval,
    MigDeviceConfig,
    MigDeviceSharing,
    MpsConfig,
    TimeSlicingConfig,
    VfioDeviceConfig,
)
from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.settings import Settings, Shares
from pydra_nvidia.sharing.plan_sharing import plan_sharing
from pydra_nvidia.steps import SetTimeSlice, StartMps, Step

SETTINGS = Settings()
DYNAMIC = Settings(dynamic_mig=True)


def sliced(interval: Interval | None = None) -> GpuConfig:
    return GpuConfig(
        sharing=GpuSharing(strategy="TimeSlicing", time_slicing_config=TimeSlicingConfig(interval=interval))
    )


def mps(**fields: Any) -> GpuConfig:
    return GpuConfig(sharing=GpuSharing(strategy="MPS", mps_config=MpsConfig(**fields)))


def mig_mps(**fields: Any) -> MigDeviceConfig:
    return MigDeviceConfig(sharing=MigDeviceSharing(strategy="MPS", mps_config=MpsConfig(**fields)))


def named(uid: str, devices: str) -> str:
    return f"{uid}-{hashlib.sha256(devices.encode()).hexdigest()[:5]}"


class Node:
    """Three GPUs, the last of them partitioned."""

    def __init__(self, kit: Any, **compute: tuple[int, int]) -> None:
        self.kit = kit
        self.reading = kit.reading(
            kit.gpu(0, uuid="GPU-b", compute=compute.get("first", (9, 0))),
            kit.gpu(1, uuid="GPU-a", compute=compute.get("second", (9, 0))),
            kit.gpu(2, uuid="GPU-c", mig=kit.mig((kit.PROFILE, 0, "MIG-z"), (kit.PROFILE, 1, "MIG-y"))),
        )

    def plan(self, *devices: Any, settings: Settings = SETTINGS) -> tuple[Step, ...]:
        return plan_sharing("u1", self.kit.targets(self.reading, *devices), settings=settings)

    def problems(self, *devices: Any, settings: Settings = SETTINGS) -> tuple[str, ...]:
        with pytest.raises(InvalidConfig) as caught:
            self.plan(*devices, settings=settings)
        return caught.value.problems


@pytest.fixture
def node(kit: Any) -> Node:
    return Node(kit)


@pytest.mark.parametrize(
    "configs",
    [(), (GpuConfig(),), (MigDeviceConfig(sharing=MigDeviceSharing(strategy="MPS")),), (VfioDeviceConfig(),)],
    ids=["no config", "no sharing", "a config for partitions", "a config for passthrough"],
)
def test_a_gpu_that_is_not_configured_to_be_shared_is_left_as_it_is(node: Node, kit: Any, configs: Any) -> None:
    assert node.plan(kit.give("gpu-0", *configs)) == ()


@pytest.mark.parametrize(("interval", "number"), [(None, 0), ("Default", 0), ("Short", 1), ("Medium", 2), ("Long", 3)])
def test_a_time_slice_is_set_on_each_gpu(node: Node, kit: Any, interval: Interval | None, number: int) -> None:
    config = sliced(interval)
    assert node.plan(kit.give("gpu-0", config), kit.give("gpu-1", config)) == (
        SetTimeSlice(gpu="GPU-a", interval=number),
        SetTimeSlice(gpu="GPU-b", interval=number),
    )


def test_time_slicing_without_a_config_sets_the_default(node: Node, kit: Any) -> None:
    config = GpuConfig(sharing=GpuSharing(strategy="TimeSlicing"))
    assert node.plan(kit.give("gpu-0", config)) == (SetTimeSlice(gpu="GPU-b", interval=0),)


def test_two_shares_of_one_gpu_set_its_time_slice_once(node: Node, kit: Any) -> None:
    config = sliced("Long")
    devices = (kit.give("gpu-0", config, share="s1"), kit.give("gpu-0", config, request="other", share="s2"))
    assert node.plan(*devices) == (SetTimeSlice(gpu="GPU-b", interval=3),)


def test_time_slicing_of_a_partition_is_what_its_hardware_does_anyway(node: Node, kit: Any) -> None:
    config = MigDeviceConfig(sharing=MigDeviceSharing(strategy="TimeSlicing"))
    assert node.plan(kit.give("gpu-2-mig-1g10gb-19-0", config)) == ()


def test_the_gpus_of_one_config_share_a_daemon(node: Node, kit: Any) -> None:
    config = mps(default_active_thread_percentage=50, multi_user=True)
    assert node.plan(kit.give("gpu-0", config), kit.give("gpu-1", config, request="other")) == (
        StartMps(
            id=named("u1", "GPU-a,GPU-b"),
            devices=("GPU-a", "GPU-b"),
            exclusive=("GPU-a", "GPU-b"),
            thread_percentage=50,
            multi_user=True,
        ),
    )


ONE_DAEMON = (
    "a claim has one MPS daemon at most, since a container may get all of the claim and is the client of one; allowed:"
    " a claim for each of them, or whole GPUs in requests of one config"
)
FIRST, SECOND = "gpu-2-mig-1g10gb-19-0", "gpu-2-mig-1g10gb-19-1"


@pytest.mark.parametrize("settings", [SETTINGS, DYNAMIC], ids=["that exist", "made for the claim"])
def test_two_partitions_of_one_claim_would_need_two_daemons_and_are_refused(
    node: Node, kit: Any, settings: Settings
) -> None:
    config = mig_mps()
    (problem,) = node.problems(kit.give(FIRST, config), kit.give(SECOND, config), settings=settings)
    names = (FIRST, SECOND) if settings.dynamic_mig else (SECOND, FIRST)  # by place, or by UUID
    assert problem == (
        f'MigDeviceConfig of {", ".join(names)}: sharing.strategy: found "MPS", which needs a daemon of its own for'
        f" {' and for '.join(names)}; {ONE_DAEMON}"
    )


@pytest.mark.parametrize(
    ("devices", "refused"),
    [
        pytest.param([("gpu-0", mps()), ("gpu-1", mps())], "GpuConfig of gpu-1", id="equal configs written twice"),
        pytest.param([(FIRST, mig_mps()), (SECOND, mig_mps())], f"MigDeviceConfig of {SECOND}", id="two partitions"),
        pytest.param([("gpu-0", mps()), (FIRST, mig_mps())], f"MigDeviceConfig of {FIRST}", id="a GPU and a partition"),
    ],
)
def test_each_further_config_with_mps_is_refused_with_what_it_comes_beside(
    node: Node, kit: Any, devices: list[tuple[str, Any]], refused: str
) -> None:
    (problem,) = node.problems(*(kit.give(name, config) for name, config in devices))
    (first, _), (second, _) = devices
    assert problem == (
        f'{refused}: sharing.strategy: found "MPS", which needs a daemon of its own for {second}, beside that for'
        f" {first}; {ONE_DAEMON}"
    )


def test_one_daemon_goes_with_devices_that_need_none(node: Node, kit: Any) -> None:
    steps = node.plan(
        kit.give("gpu-0", mps()),
        kit.give("gpu-1", sliced("Long")),
        kit.give(FIRST),
        kit.give(SECOND, mig_mps(), admin=True),
    )
    assert steps == (
        SetTimeSlice(gpu="GPU-a", interval=3),
        StartMps(id=named("u1", "GPU-b"), devices=("GPU-b",), exclusive=("GPU-b",)),
    )


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, {}),
        ({"default_pinned_device_memory_limit": "10Gi"}, {"GPU-a": 10240, "GPU-b": 10240}),
        ({"default_per_device_pinned_memory_limit": {"0": "1Gi"}}, {"GPU-a": 1024}),
        ({"default_per_device_pinned_memory_limit": {"GPU-b": "1.9Mi"}}, {"GPU-b": 1}),
        (
            {"default_pinned_device_memory_limit": "1Gi", "default_per_device_pinned_memory_limit": {"1": "2Gi"}},
            {"GPU-a": 1024, "GPU-b": 2048},
        ),
    ],
    ids=["none", "for all", "by index in the order of UUIDs", "by UUID", "one apart from the others"],
)
def test_limits_are_in_whole_mib_and_a_devices_own_comes_first(
    node: Node, kit: Any, limits: dict[str, Any], wanted: dict[str, int]
) -> None:
    config = mps(**limits)
    (step,) = node.plan(kit.give("gpu-0", config), kit.give("gpu-1", config))
    assert isinstance(step, StartMps)
    assert step.pinned_mib == wanted


@pytest.mark.parametrize(
    ("device", "uuid", "limit"),
    [(FIRST, "MIG-z", 4096), (SECOND, "MIG-y", 2048)],
    ids=["the default", "a limit of its own"],
)
def test_a_partition_that_exists_has_a_daemon_by_its_uuid(
    node: Node, kit: Any, device: str, uuid: str, limit: int
) -> None:
    own = {"0": "2Gi"} if limit == 2048 else None
    config = mig_mps(
        default_active_thread_percentage=25,
        default_pinned_device_memory_limit="4Gi",
        default_per_device_pinned_memory_limit=own,
    )
    assert node.plan(kit.give(device, config)) == (
        StartMps(id=named("u1", uuid), devices=(uuid,), default_pinned_mib=limit, thread_percentage=25),
    )


def test_a_partition_that_is_made_for_the_claim_is_named_by_its_place(node: Node, kit: Any) -> None:
    config = mig_mps(default_per_device_pinned_memory_limit={"0": "2Gi"})
    assert node.plan(kit.give("gpu-2-mig-3g40gb-9-4", config), settings=DYNAMIC) == (
        StartMps(id=named("u1", "GPU-c/4+4"), partition=("GPU-c", Placement(4, 4)), default_pinned_mib=2048),
    )


def test_a_plan_is_the_same_once_its_partition_exists(node: Node, kit: Any) -> None:
    device = kit.give("gpu-2-mig-1g10gb-19-3", mig_mps())
    before = node.plan(device, settings=DYNAMIC)
    created = kit.mig((kit.PROFILE, 0, "MIG-z"), (kit.PROFILE, 1, "MIG-y"), (kit.PROFILE, 3, "MIG-new"))
    gpus = tuple(replace(gpu, mig=created) if gpu.mig else gpu for gpu in node.reading.gpus)
    node.reading = replace(node.reading, gpus=gpus)
    assert node.plan(device, settings=DYNAMIC) == before


@pytest.mark.parametrize("config", [sliced("Long"), mps(default_per_device_pinned_memory_limit={"7": "1Gi"})])
def test_admins_who_look_change_nothing(node: Node, kit: Any, config: GpuConfig) -> None:
    assert node.plan(kit.give("gpu-0", config, admin=True)) == ()


@pytest.mark.parametrize(
    ("shares", "share"), [(Shares.MEMORY, None), (Shares.UNLIMITED, None), (4, None), (Shares.DISABLED, "one")]
)
def test_mps_is_refused_with_the_setting_where_claims_have_shares_or_had_when_it_was_allocated(
    node: Node, kit: Any, shares: Shares | int, share: str | None
) -> None:
    assert node.problems(kit.give("gpu-0", mps(), share=share), settings=Settings(consumable_shares=shares)) == (
        'GpuConfig of gpu-0: sharing.strategy: found "MPS", which is not possible where several claims have shares of'
        ' one GPU; allowed: "TimeSlicing", or an admin who sets PYDRA_NVIDIA_CONSUMABLE_SHARES=disabled',
    )


@pytest.mark.parametrize(
    ("compute", "refused"), [((5, 2), True), ((6, 0), False), ((6, 1), True), ((7, 0), False), ((7, 5), False)]
)
def test_time_slices_need_a_gpu_that_has_them(kit: Any, compute: tuple[int, int], refused: bool) -> None:
    node = Node(kit, first=compute)
    device = kit.give("gpu-0", sliced())
    if refused:
        (problem,) = node.problems(device)
        assert "GpuConfig of gpu-0: sharing.strategy: gpu-0 is a " in problem
        assert f"compute capability {compute[0]}.{compute[1]}, whose time slice cannot be set" in problem
    else:
        assert len(node.plan(device)) == 1


def test_all_gpus_too_old_for_several_users_are_named(kit: Any) -> None:
    node = Node(kit, first=(6, 1), second=(6, 0))
    config = mps(multi_user=True)
    assert node.problems(kit.give("gpu-0", config), kit.give("gpu-1", config)) == (
        "GpuConfig of gpu-1, gpu-0: sharing.mpsConfig.multiUser: gpu-1 is a Tesla P100 of compute capability 6.0;"
        " allowed: false, or GPUs of compute capability 7.0 and above",
        "GpuConfig of gpu-1, gpu-0: sharing.mpsConfig.multiUser: gpu-0 is a Tesla P4 of compute capability 6.1;"
        " allowed: false, or GPUs of compute capability 7.0 and above",
    )


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (["2"], 'Limit["2"]: found index 2, allowed: 0 to 1'),
        (["GPU-c"], 'Limit["GPU-c"]: no such device has this config, allowed: index 0 to 1, or GPU-a, GPU-b'),
        (["0", "GPU-a"], 'Limit["GPU-a"]: gpu-1 has a limit by the key "0" already, allowed: one of them'),
    ],
    ids=["an index too high", "another device", "one device twice"],
)
def test_limits_of_devices_that_are_not_the_configs_are_refused(
    node: Node, kit: Any, keys: list[str], wanted: str
) -> None:
    config = mps(default_per_device_pinned_memory_limit=dict.fromkeys(keys, "1Gi"))
    (problem,) = node.problems(kit.give("gpu-0", config), kit.give("gpu-1", config))
    assert problem == f"GpuConfig of gpu-1, gpu-0: sharing.mpsConfig.defaultPerDevicePinnedMemory{wanted}"


def test_a_partition_to_be_made_is_not_named_by_a_uuid(node: Node, kit: Any) -> None:
    config = mig_mps(default_per_device_pinned_memory_limit={"MIG-y": "1Gi"})
    (problem,) = node.problems(kit.give("gpu-2-mig-1g10gb-19-3", config), settings=DYNAMIC)
    assert problem.endswith(
        "no such device has this config, allowed: index 0; a partition that is made for a claim has no UUID before"
    )


def test_the_problems_of_all_devices_are_reported_at_once(kit: Any) -> None:
    node = Node(kit, first=(6, 1))
    problems = node.problems(
        kit.give("gpu-0", sliced()),
        kit.give("gpu-1", mps(default_per_device_pinned_memory_limit={"5": "1Gi"})),
        kit.give("gpu-2-mig-1g10gb-19-0", mig_mps(default_per_device_pinned_memory_limit={"GPU-c": "1Gi"})),
        settings=Settings(consumable_shares=Shares.MEMORY),
    )
    starts = (
        "GpuConfig of gpu-0: sharing.strategy: gpu-0 is a Tesla P4",
        'GpuConfig of gpu-1: sharing.strategy: found "MPS", which is not possible',
        'GpuConfig of gpu-1: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["5"]: found index 5, allowed: 0',
        'MigDeviceConfig of gpu-2-mig-1g10gb-19-0: sharing.strategy: found "MPS", which is not possible',
        'MigDeviceConfig of gpu-2-mig-1g10gb-19-0: sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit["GPU-c"]: no',
        'MigDeviceConfig of gpu-2-mig-1g10gb-19-0: sharing.strategy: found "MPS", which needs a daemon of its own for',
    )
    assert [problem[: len(start)] for problem, start in zip(problems, starts, strict=True)] == list(starts)
